#!/bin/sh
# Makes the device node that UCX wants to see before it uses a verbs device.
# Root, once per machine; does nothing when a node is there. Only UCX (and what
# stands on it) needs it; without root, preload build/softhca/softhca-node.so.
set -eu
node=/dev/infiniband/uverbs0
if [ -e "$node" ]; then
	echo "$node is there"
	exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
	echo "setup.sh: making $node needs root; without it, LD_PRELOAD softhca-node.so" >&2
	exit 1
fi
mkdir -p "${node%/*}"
mknod -m 666 "$node" c 1 3
echo "made $node (a second /dev/null)"
