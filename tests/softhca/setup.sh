#!/bin/sh
# Makes the device nodes that UCX wants to see before it uses a verbs device: setup.sh [N], for the first N devices (2).
# Root, once per machine; leaves nodes that are there. Only UCX (and what
# stands on it) needs them; without root, preload build/softhca/softhca-node.so.
set -eu
i=0
while [ $i -lt "${1:-2}" ]; do
	node=/dev/infiniband/uverbs$i
	i=$((i + 1))
	if [ -e "$node" ]; then
		echo "$node is there"
		continue
	fi
	if [ "$(id -u)" -ne 0 ]; then
		echo "setup.sh: making $node needs root; without it, LD_PRELOAD softhca-node.so" >&2
		exit 1
	fi
	mkdir -p "${node%/*}"
	mknod -m 666 "$node" c 1 3
	echo "made $node (a second /dev/null)"
done
