#!/bin/bash
# Makes a new Debian 12 root, puts the committed files of this repository into it and nothing else, and runs make there:
#   tests/fresh.sh TARGET...      e.g. tests/fresh.sh demo test-quick
# Root only. The root has Debian's minimal set, make and CA certificates; no folder of this machine is mounted in it. How this
# machine reaches Debian's mirror, the Go module proxy and the npm registry is read here and handed on.
set -eu
cd "$(dirname "$0")/.."
B=$(realpath -m "${B:-build}")
[ $# -gt 0 ] || { echo "usage: tests/fresh.sh TARGET..." >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "sigmatrace: error: a new root can only be made and entered by root" >&2; exit 1; }
work=$B/fresh
rm -rf "$work"
mkdir -p "$work"
[ -n "${KEEP:-}" ] || trap 'rm -rf "$work"' EXIT
root=$work/root

step() { echo "fresh: [$SECONDS s] $*"; }

. tests/debian.sh
find_apt_sources
apt_options >"$work/apt.conf"

step "making the root"
mmdebstrap --quiet --mode=root --variant=minbase --include=ca-certificates,make --aptopt="$work/apt.conf" \
	bookworm "$root" "${apt_sources[@]}" >&2

# CA certificates that this machine has beyond Debian's.
for f in /usr/local/share/ca-certificates/*.crt; do
	[ ! -f "$f" ] || cp "$f" "$root/usr/local/share/ca-certificates/"
done
chroot "$root" update-ca-certificates >&2

# Proxies and registries, from the environment and the tools' own configuration.
vars=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM="${TERM:-dumb}" SIGMATRACE_FRESH=1)
for v in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY CI SIGMATRACE_ALLOWED_SKIPS; do
	[ -z "${!v+set}" ] || vars+=("$v=${!v}")
done
for v in GOPROXY GOSUMDB GONOSUMDB GONOPROXY GOPRIVATE; do
	value=$(scripts/go.sh env "$v")
	[ -z "$value" ] || vars+=("$v=$value")
done
if command -v npm >/dev/null; then
	for v in registry proxy https-proxy noproxy; do
		value=$(cd / && npm config get "$v")
		case $value in null | undefined | '') ;; *) vars+=("npm_config_${v//-/_}=$value") ;; esac
	done
fi
vars+=(NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt)

mkdir "$root/sigmatrace"
git archive HEAD | tar -x -C "$root/sigmatrace"
step "root ready: $(du -sm "$root" | cut -f1) MB, commit $(git rev-parse --short HEAD)"

status=0
for target in "$@"; do
	step "make $target"
	unshare --mount --pid --ipc --fork --kill-child tests/enter.sh "$root" -- \
		/usr/bin/env -i "${vars[@]}" make -C /sigmatrace "$target" </dev/null || status=$?
	[ $status = 0 ] || break
	# /proc and the rest went with the mount namespace.
done
rm -rf "$B/fresh-logs"
[ ! -d "$root/sigmatrace/build/test-logs" ] || cp -r "$root/sigmatrace/build/test-logs" "$B/fresh-logs"
step "done, exit status $status"
exit $status
