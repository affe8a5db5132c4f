#!/bin/bash
# Installs with apt what the named groups need, and only what is missing.
#   scripts/deps.sh GROUP...      groups: build deb demo test slurm vm fresh bench all
# Run as root on Debian 12. A package named here is the only place where the project says that it needs it.
set -eu
cd "$(dirname "$0")/.."
export DEBIAN_FRONTEND=noninteractive

die() { echo "sigmatrace: error: $*" >&2; exit 1; }

# Each list holds Debian 12 package names. nodejs and npm are asked for by command, see below. The libraries at the end of TEST are needed by the daemons of
# tests/clock, which are unpacked and never installed: they would steer this machine's clock.
BUILD="gcc libc6-dev make git ca-certificates libucx-dev libibverbs-dev librdmacm-dev libfabric-dev libslurm-dev"
DEMO="openmpi-bin libopenmpi-dev ucx-utils perftest ibverbs-utils ibverbs-providers rdmacm-utils"
TEST="$DEMO zstd libfabric-bin mpich gcc g++ binutils procps iproute2 valgrind xz-utils gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user btrfs-progs e2fsprogs libmpich-dev slurm-wlm munge libpmix2 musl-tools libjemalloc2 heaptrack python3 python3-pyverbs python3-torch man-db lintian strace libcap2 libseccomp2 libgnutls30 libnettle8 libedit2 libssl3 libbsd0 clang libclang-rt-14-dev"
SLURM="slurm-wlm munge libpmix2 openmpi-bin ucx-utils iproute2 util-linux mount procps slurmrestd curl"
DEB="dpkg-dev binutils"
FRESH="mmdebstrap util-linux"
VM="$DEMO qemu-system-x86 busybox-static cpio kmod mmdebstrap xz-utils libfabric-bin"
BENCH="$DEMO valgrind lttng-tools liblttng-ust-dev libfabric-bin"

[ $# -gt 0 ] || die "name at least one group: build deb demo test slurm vm fresh bench all"
packages=() commands=() go=
for group in "$@"; do
	case $group in
	build) packages+=($BUILD); go=yes ;;
	deb) packages+=($DEB) ;;
	demo) packages+=($DEMO) ;;
	test) packages+=($TEST); commands+=(node:nodejs npm:npm) ;;
	slurm) packages+=($SLURM) ;;
	vm) packages+=($VM) ;;
	fresh) packages+=($FRESH) ;;
	bench) packages+=($BENCH) ;;
	all) packages+=($BUILD $DEB $TEST $SLURM $VM $FRESH $BENCH); commands+=(node:nodejs npm:npm); go=yes ;;
	*) die "deps.sh: unknown group \"$group\": use build deb demo test slurm vm fresh bench all" ;;
	esac
done

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

missing=()
for p in "${packages[@]}"; do installed "$p" || missing+=("$p"); done
# A site may have put Node.js there without Debian's packages, which then conflict with it: the command decides.
for c in ${commands[@]+"${commands[@]}"}; do command -v "${c%%:*}" >/dev/null || missing+=("${c##*:}"); done

# retry COMMAND...: another apt may hold a lock that apt-get itself does not wait for (the lists' lock).
retry() {
	local i
	for i in 1 2 3 4 5 6; do
		"$@" && return
		[ "$i" = 6 ] || { echo "deps.sh: \"$*\" failed, trying again in 10 s" >&2; sleep 10; }
	done
	return 1
}
apt_update() { retry apt-get update -qq; }
apt_install() { retry apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=600 "$@" >/dev/null; }

need_root() { [ "$(id -u)" = 0 ] || die "these Debian packages are missing: $*; run scripts/deps.sh as root, or install them"; }

if [ ${#missing[@]} -gt 0 ]; then
	need_root "${missing[@]}"
	echo "deps.sh: installing ${missing[*]}"
	apt_update
	apt_install "${missing[@]}" || die "apt-get could not install: ${missing[*]}"
fi

# Debian 12's own Go (1.19) can neither build this module nor fetch a newer toolchain; 1.21 and newer can. backports has
# golang-1.23-go. Its source is written from the one that this system already uses for bookworm, whatever mirror that is.
backports_source() {
	local uri
	uri=$(apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
		awk '$2 == "bookworm" && $3 == "main" { print $1; exit }')
	[ -n "$uri" ] || die "no apt source for bookworm main is configured, so none can be made for bookworm-backports"
	printf 'Types: deb\nURIs: %s\nSuites: bookworm-backports\nComponents: main\nSigned-By: %s\n' \
		"$uri" /usr/share/keyrings/debian-archive-keyring.gpg >/etc/apt/sources.list.d/sigmatrace-backports.sources
}
if [ -n "$go" ] && ! scripts/go.sh --find >/dev/null 2>&1; then
	need_root golang-1.23-go
	echo "deps.sh: installing golang-1.23-go from bookworm-backports"
	if ! apt-cache show golang-1.23-go >/dev/null 2>&1; then
		backports_source
		apt_update
	fi
	apt_install golang-1.23-go || die "apt-get could not install golang-1.23-go"
	scripts/go.sh --find >/dev/null
fi
