#!/bin/bash
# Two hosts on one machine that share a network only, and what programs find of the adapter under /sys. As root, else skipped.
# usage: test-hosts.sh [WORD...]: as test.sh
. "$(dirname "$0")/lib.sh"

# between NAME CHECK COMMAND...: as server on one host and client on the other; CHECK is evaluated when both ended well
between() {
	local name=$1 check=$2
	shift 2
	wanted "$name" || return 0
	have "$1" "$name" || return 0
	[[ $1 == ib_* ]] && set -- "$@" -F
	rm -f "$work/stats"
	SOFTHCA_STATS=$work/stats timeout -k 5 90 "$here/two-hosts.sh" "$*" "$* \$PEER" >"$work/client" 2>&1 && eval "$check"
	result "$name" $? "$work/client" "$work/stats"
}

hosts() {
	if ! unshare -mnp true 2>/dev/null; then
		echo "SKIP hosts: needs namespaces of its own (root)"
		return
	fi
	unset SOFTHCA_SHM # each host has its own
	between hosts_every_operation '[ "$(grep -c "all right" "$work/client")" -eq 1 ] && eq $(requests fetch_add) 100 && eq $(requests read) 5' "$build/host_check"
	between hosts_rc_pingpong 'eq $(requests send) 2000 && eq $(bytes send) 8192000' ibv_rc_pingpong -c
	between hosts_rc_pingpong_events 'eq $(requests send) 2000' ibv_rc_pingpong -e
	between hosts_ud_pingpong '[ $(requests send) -ge 2000 ]' ibv_ud_pingpong -s 2048
	between hosts_ib_write_bw 'eq $(requests write) 500 && eq $(bytes write) 32768000' ib_write_bw -n 500
	between hosts_ib_read_bw 'eq $(requests read) 500' ib_read_bw -n 500
	between hosts_ib_atomic_bw 'eq $(requests fetch_add) 300' ib_atomic_bw -n 300
	local tree=$work/sysfs
	mkdir -p "$tree"
	"$here/sysfs.sh" "$tree"
	if wanted hosts_ucx_rc_x && ucx_ready hosts_ucx_rc_x; then
		SOFTHCA_DEVX=1 SOFTHCA_SYSFS=$tree UCX_TLS=rc_x UCX_NET_DEVICES=mlx5_0:1 between hosts_ucx_rc_x '[ $(requests send) -ge 200 ]' ucx_perftest -t tag_lat -n 100 -w 5 -s 1000
	fi
	export SOFTHCA_SHM=$work/segment
}

# What NCCL, NVSHMEM and UCX look for, with privilege and without.
sysfs() {
	local link name
	if ! unshare -m true 2>/dev/null; then
		echo "SKIP sysfs: needs a mount namespace (root)"
		return
	fi
	for link in infiniband ethernet; do
		name=sysfs_mounted_$link
		if wanted $name; then
			SOFTHCA_DEVICES=2 SOFTHCA_LINK=$link timeout 120 "$here/sysfs.sh" --run "$build/sysfs_check" 2 >"$work/client" 2>&1
			result $name $? "$work/client"
		fi
		name=sysfs_by_name_$link
		if wanted $name; then
			# a user who may mount nothing, where /sys/class/infiniband is there and empty
			local open
			open=$(mktemp -d)
			mkdir "$open/tree"
			chmod -R 755 "$open"
			cp "$build/sysfs_check" "$build"/lib*.so* "$open"
			SOFTHCA_DEVICES=2 SOFTHCA_LINK=$link "$here/sysfs.sh" "$open/tree"
			SOFTHCA_DEVICES=2 SOFTHCA_LINK=$link SOFTHCA_SYSFS=$open/tree SOFTHCA_NAMES=1 LD_LIBRARY_PATH=$open SOFTHCA_SHM=/dev/shm/softhca-names-$$ timeout 120 \
				"$here/sysfs.sh" --run sh -c 'umount /sys/class/infiniband && exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"' - "$open/sysfs_check" 2 >"$work/client" 2>&1 &&
				grep -q "^\.\./\.\./\.\." "$work/client"
			result $name $? "$work/client"
			rm -rf "$open"
		fi
	done
}

hosts
sysfs
exit $failed
