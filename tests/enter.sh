#!/bin/sh
# Runs a command in a root made from packages, as its only process besides this one:
#   unshare --mount --pid --ipc --fork --kill-child tests/enter.sh ROOT [FOLDER...] -- COMMAND...
# Mounts what programs expect to find, in the mount namespace that goes with the command, and each FOLDER of this system at its own path.
set -eu
root=$1
shift
mount --bind "$root" "$root" # a mount point, so that programs in it can have mount namespaces of their own
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t tmpfs -o mode=755 dev "$root/dev"
for d in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "$root/dev/${d%:*}" c 1 "${d#*:}"; done
mknod -m 666 "$root/dev/tty" c 5 0
ln -s /proc/self/fd "$root/dev/fd"
for n in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${n%:*}" "$root/dev/${n#*:}"; done
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs shm "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
while [ "$1" != -- ]; do
	mkdir -p "$root$1"
	mount --bind "$1" "$root$1"
	shift
done
shift
exec chroot "$root" "$@"
