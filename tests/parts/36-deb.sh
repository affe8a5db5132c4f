#!/bin/bash
# The Debian package: lintian, and its life in a new Debian 12 root.
# runner: limit=15m
. "$(dirname "$0")/../lib.sh"
check deb scripts/deb
deb=$(ls "$B"/sigmatrace_*.deb)
check lintian lintian --allow-root --fail-on error "$deb"
mkdir -p "$TMP/packages"
cp "$deb" "$TMP/packages/old.deb"
dpkg-deb -R "$deb" "$TMP/newer"
sed -i 's/^\(Version: .*\)$/\1+1/' "$TMP/newer/DEBIAN/control"
dpkg-deb -Znone --root-owner-group -b "$TMP/newer" "$TMP/packages/new.deb" >&2
cp "$B/tests/ucp-client" "$TMP/packages/"

. tests/debian.sh
find_apt_sources
apt_options >"$TMP/apt.conf"
check root mmdebstrap --quiet --mode=root --variant=apt --include=libucx0,ca-certificates --aptopt="$TMP/apt.conf" bookworm "$TMP/root" "${apt_sources[@]}"
cp /usr/local/share/ca-certificates/*.crt "$TMP/root/usr/local/share/ca-certificates/" 2>/dev/null
chroot "$TMP/root" update-ca-certificates >&2
unshare --mount --pid --ipc --fork --kill-child tests/enter.sh "$TMP/root" "$TMP/packages" "$PWD/tests/install" -- \
	/bin/bash "$PWD/tests/install/deb.sh" "$TMP/packages/old.deb" "$TMP/packages/new.deb" "$TMP/packages/ucp-client" >"$TMP/results" || failed=1
grep -E '^(ok|FAIL) ' "$TMP/results" || fail in-root "nothing was reported"
! grep -q '^FAIL' "$TMP/results" || failed=1
rm -rf "$TMP/root" "$TMP/newer"
finish
