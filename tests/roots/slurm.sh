#!/bin/bash
# Makes the Debian root build/roots/slurm-NAME with that release's Slurm, munge and MPI, for a cluster in it (scripts/cluster), and builds the plugin
# and the MPI clients against them in build/roots/slurm-NAME.built:
#   tests/roots/slurm.sh debian13|unstable
# What is there already is kept; a change of how it is made makes it anew. Status 3: the release's packages could not be installed.
set -eu
cd "$(dirname "$0")/../.."
B=$(realpath -m "${B:-build}")
name=${1:-}
case $name in
debian13) suite=trixie options=() ;;
# A mirror's copy of unstable can be older than its lists allow; signatures are still checked.
unstable) suite=sid options=(--aptopt='Acquire::Check-Valid-Until "false"') ;;
*) echo "usage: tests/roots/slurm.sh debian13|unstable" >&2; exit 2 ;;
esac
dir=$B/roots
root=$dir/slurm-$name
out=$root.built
mkdir -p "$dir"
exec 9>"$dir/.slurm-$name.lock"
flock 9

packages=slurm-wlm,slurm-wlm-plugins,slurmrestd,curl,munge,libslurm-dev,gcc,libc6-dev,make,openmpi-bin,libopenmpi-dev,mpich,libmpich-dev,iproute2,util-linux,mount,procps
# Maintainer scripts run: the runtime linker's links, alternatives of MPI and munge's user are theirs to make.
make_root() {
	. tests/debian.sh
	apt_options >"$dir/apt-$name.conf"
	mmdebstrap --quiet --mode=root --variant=apt --include="$packages" --aptopt="$dir/apt-$name.conf" --aptopt='Apt::Install-Recommends "false"' "${options[@]}" \
		--dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		"$suite" "$1" "$(suite_source "$suite")" >&2 || return
	rm -f "$1"/var/cache/apt/archives/*.deb
	rm -rf "$1"/dev "$1/etc/resolv.conf"
	mkdir "$1"/dev
	echo 'hosts: files' >"$1/etc/nsswitch.conf" # glibc's own order asks a name server first
	dpkg-query --admindir="$1/var/lib/dpkg" -W slurmd libslurm-dev openmpi-bin 'libpmix2*' 'libucx0*' libc6 munge gcc 2>/dev/null >"$1/versions" || true
	echo "$recipe" >"$1/recipe"
}
recipe=$( (declare -f make_root; echo "$suite $packages") | sha256sum | cut -c1-16)
if [ "$(cat "$root/recipe" 2>/dev/null)" != "$recipe" ]; then
	rm -rf "$root" "$root.new" "$out"
	make_root "$root.new" || exit 3
	mv "$root.new" "$root"
fi
# make waits for ever where it is itself the first process of a pid namespace.
unshare --mount --pid --ipc --fork --kill-child tests/enter.sh "$root" "$PWD" "$dir" -- /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
	/bin/sh -c 'make "$@"; exit $?' sh -C "$PWD" B="$out" GO=false CC=gcc "$out/lib/slurm/spank_sigmatrace.so" "$out/tests/mpi-app" "$out/tests/mpi-app-mpich" >&2
