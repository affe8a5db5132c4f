#!/bin/bash
# Makes the Debian root NAME in build/roots/NAME, with the tests' programs built in it, and prints its path:
#   tests/roots/build.sh debian11|debian13
# What is there already is kept; a change of this file or of the programs makes it anew.
set -eu
cd "$(dirname "$0")/../.."
B=$(realpath -m "${B:-build}")
name=${1:-}
case $name in
debian11) suite=bullseye ;;
debian13) suite=trixie ;;
*) echo "usage: tests/roots/build.sh debian11|debian13" >&2; exit 2 ;;
esac
dir=$B/roots
root=$dir/$name
mkdir -p "$dir"
exec 9>"$dir/.$name.lock"
flock 9

# Beside the libraries' own programs, a compiler with their headers: the clients and counters that know the truth are built against
# what they run on. The recorder is not.
packages=base-files,bash,dash,coreutils,grep,sed,mawk,findutils,util-linux,libc-bin,procps,hostname,netbase,iproute2
packages=$packages,gcc,libc6-dev,make,binutils,python3-minimal,libpython3-stdlib
packages=$packages,rdma-core,ibverbs-utils,ibverbs-providers,rdmacm-utils,perftest,libibverbs-dev,librdmacm-dev
packages=$packages,ucx-utils,libucx-dev,libfabric-bin,libfabric-dev
packages=$packages,openmpi-bin,libopenmpi-dev,mpich,libmpich-dev

recipe=$( (hostname; cat tests/roots/build.sh tests/enter.sh) | sha256sum | cut -c1-16)
programs=$(cat tests/roots/programs.sh tests/clients/* tests/count/*.[ch] | sha256sum | cut -c1-16)

# Unpacked packages without their maintainer scripts; what those would have set up is done here.
make_root() {
	. tests/debian.sh
	apt_options >"$dir/apt.conf"
	mmdebstrap --quiet --mode=root --variant=extract --include="$packages" --aptopt="$dir/apt.conf" "$suite" "$1" "$(suite_source "$suite")" >&2
	rm -f "$1"/var/cache/apt/archives/*.deb
	ln -sf dash "$1/bin/sh"
	ln -sf mawk "$1/usr/bin/awk"
	echo 'root:x:0:0:root:/root:/bin/bash' >"$1/etc/passwd"
	echo 'root:x:0:' >"$1/etc/group"
	mkdir -p "$1"/{root,proc,sys,dev,tmp,run,tests}
	printf '127.0.0.1 localhost %s\n' "$(hostname)" >"$1/etc/hosts"
	echo 'hosts: files' >"$1/etc/nsswitch.conf" # glibc's own order asks a name server first
	# An alternative that a maintainer script would have chosen; libfabric 1.11 is linked with it.
	[ ! -e "$1"/usr/lib/libpsm1/libpsm_infinipath.so.1.16 ] || ln -sf /usr/lib/libpsm1/libpsm_infinipath.so.1.16 "$1/usr/lib/x86_64-linux-gnu/libpsm_infinipath.so.1"
	ldconfig -r "$1" 2>/dev/null
	# Which versions these are, for the tests' log and the table in README.md.
	for p in libc6 libibverbs1 libucx0 libfabric1 openmpi-bin mpich perftest; do
		printf '%s ' "$p"
		zcat "$1/usr/share/doc/$p/changelog.Debian.gz" | sed -n '1s/.*(\(.*\)).*/\1/p'
	done >"$1/versions"
	echo "$recipe" >"$1/recipe"
}

if [ "$(cat "$root/recipe" 2>/dev/null)" != "$recipe" ]; then
	rm -rf "$root" "$root.new"
	make_root "$root.new"
	mv "$root.new" "$root"
fi
if [ "$(cat "$root/tests/recipe" 2>/dev/null)" != "$programs" ]; then
	rm -rf "${root:?}/tests"/*
	unshare --mount --pid --ipc --fork --kill-child tests/enter.sh "$root" "$PWD" -- "$PWD/tests/roots/programs.sh" "$PWD" >&2
	echo "$programs" >"$root/tests/recipe"
fi
echo "$root"
