#!/bin/bash
# Runs a command with the software HCA as the machine's adapter: with-hca.sh LIBRARIES COMMAND... As root, in a mount namespace of its own, since
# NCCL and NVSHMEM look for the adapter's PCI device under /sys/class/infiniband.
set -eu
libraries=$(cd "$1" && pwd)
shift
export SOFTHCA_LIBRARIES=$libraries SOFTHCA_DEVX=1
exec unshare -m --propagation private bash -c '
	set -eu
	mount -t tmpfs tmpfs /sys/class/infiniband
	# any PCI device that is neither a GPU nor a bridge
	for d in /sys/bus/pci/devices/*; do
		[ "$(cat "$d/vendor")" != 0x10de ] || continue
		case $(cat "$d/class") in 0x06*) continue ;; esac
		device=$(realpath "$d")
		break
	done
	types=/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types
	mkdir -p "$types"
	ln -s "$device" /sys/class/infiniband/mlx5_0/device
	for i in 0 1; do echo "RoCE v2" >"$types/$i"; done
	export LD_LIBRARY_PATH=$SOFTHCA_LIBRARIES${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
	exec "$@"' with-hca "$@"
