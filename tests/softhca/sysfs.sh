#!/bin/bash
# The adapter's entries of /sys/class/infiniband, for programs that look for its PCI device, its GIDs' types or its numbers there.
#   sysfs.sh DIR               makes them in DIR, an empty folder: for SOFTHCA_SYSFS=DIR
#   sysfs.sh --run COMMAND...  as root: runs the command where they are in /sys/class/infiniband, in a mount namespace of its own
# SOFTHCA_DEVICES and SOFTHCA_LINK are followed as the adapter follows them. A device of the adapter has the place of a device of this machine, one
# that is neither a bridge nor a GPU; where there are not enough, that of the tree itself.
set -eu

put() { # put TEXT FILE
	mkdir -p "${2%/*}"
	printf '%s\n' "$1" >"$2"
}

real_devices() {
	local d
	for d in /sys/bus/pci/devices/*; do
		[ -e "$d/class" ] || continue
		case $(cat "$d/vendor"),$(cat "$d/class") in
		0x10de,* | *,0x06*) ;;
		*) realpath "$d" ;;
		esac
	done
}

entry() { # entry DIR NUMBER REAL_DEVICE
	local dir=$1 k=$2 real=$3 pci guid lid gid link i
	pci=$dir/.pci/$(printf '0000:%02x:00.0' $((0xa0 + k)))
	guid=$(printf '506b4b0300f7%04x' $((1 + k * 0x100)))
	lid=$(printf '0x%x' $((1 + k)))
	link=InfiniBand
	[ "${SOFTHCA_LINK:-}" != ethernet ] || link=Ethernet lid=0x0
	put 0x15b3 "$pci/vendor"
	put 0x1021 "$pci/device"
	put 0x020700 "$pci/class"
	put "32.0 GT/s PCIe" "$pci/current_link_speed"
	put 16 "$pci/current_link_width"
	put -1 "$pci/numa_node"
	local ib=$pci/infiniband/mlx5_$k
	guid=$(sed 's/..../&:/g; s/:$//' <<<"$guid")
	put "$guid" "$ib/node_guid"
	put "$guid" "$ib/sys_image_guid"
	put "1: CA" "$ib/node_type"
	put 28.43.1014 "$ib/fw_ver"
	put MT4129 "$ib/hca_type"
	put "$link" "$ib/ports/1/link_layer"
	put "4: ACTIVE" "$ib/ports/1/state"
	put "5: LinkUp" "$ib/ports/1/phys_state"
	put "200 Gb/sec (4X HDR)" "$ib/ports/1/rate"
	put "$lid" "$ib/ports/1/lid"
	put 0xffff "$ib/ports/1/pkeys/0"
	gid=fe80:0000:0000:0000:$guid
	if [ $link = Ethernet ]; then
		for i in 0 1; do
			put "RoCE v2" "$ib/ports/1/gid_attrs/types/$i"
			put "$gid" "$ib/ports/1/gids/$i"
			gid=$(printf '0000:0000:0000:0000:0000:ffff:0a00:%04x' $((1 + k)))
		done
	else
		put "IB/RoCE v1" "$ib/ports/1/gid_attrs/types/0"
		put "$gid" "$ib/ports/1/gids/0"
	fi
	ln -s "${real:-../..}" "$ib/device"
	ln -s "${ib#"$dir"/}" "$dir/mlx5_$k"
}

make() { # make DIR
	local k
	mapfile -t real < <(real_devices)
	for ((k = 0; k < ${SOFTHCA_DEVICES:-1}; k++)); do entry "$1" $k "${real[k]:-}"; done
}

case ${1:-} in
--run)
	shift
	[ $# -gt 0 ] || { echo "usage: sysfs.sh DIR | --run COMMAND..." >&2; exit 2; }
	exec unshare -m --propagation private "$0" --inside "$@" ;;
--inside) # the new namespace
	shift
	if [ ! -d /sys/class/infiniband ]; then
		# a kernel without RDMA: its classes stay, as links that lead where they led
		copy=$(mktemp -d)
		mount -t tmpfs tmpfs "$copy"
		for class in /sys/class/*; do
			mkdir "$copy/${class##*/}"
			find "$class/" -maxdepth 1 -type l -exec cp -P -t "$copy/${class##*/}" {} +
		done
		mkdir "$copy/infiniband"
		mount --move "$copy" /sys/class
		rmdir "$copy"
	fi
	mount -t tmpfs tmpfs /sys/class/infiniband
	make /sys/class/infiniband
	exec "$@" ;;
"" | -*)
	echo "usage: sysfs.sh DIR | --run COMMAND..." >&2
	exit 2 ;;
*)
	make "$(cd "$1" && pwd)" ;;
esac
