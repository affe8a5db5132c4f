#!/bin/bash
# UCX's mlx5 transports on rings in mlx5's layout, several devices, and the tree for /sys, over the software HCA.
# usage: test-mlx5.sh [WORD...]: as test.sh
. "$(dirname "$0")/lib.sh"

# What programs find under /sys of the adapter's devices.
tree=$work/sysfs
mkdir "$tree"
SOFTHCA_DEVICES=2 "$here/sysfs.sh" "$tree"

# (ucx_perftest ends its warm-up sooner on a busy machine: only what follows it is counted on.)
# Who makes the queues: UCX all of them by DEVX commands, or the send queues only, or verbs calls; mlx5dv_init_obj tells it the rings of the others.
ways=("all:-" "queue_pairs:UCX_IB_MLX5_DEVX_OBJECTS=rcqp" "none:UCX_IB_MLX5_DEVX=n")

ucx_mlx5() {
	local way name set
	export SOFTHCA_DEVX=1 SOFTHCA_SYSFS=$tree UCX_NET_DEVICES=mlx5_0:1 UCX_TLS=rc_x
	for way in "${ways[@]}"; do
		set=${way#*:}
		[ "$set" = - ] || export "${set?}"
		name=ucx_rc_x_devx_${way%%:*}
		if wanted "$name" && ucx_ready "$name"; then
			pair "${name}_tag_lat" '[ $(requests send) -ge 200 ] && [ $(bytes send) -ge $((200 * 64)) ]' ucx_perftest -t tag_lat -n 100 -w 5 -s 64
			pair "${name}_sleep" '[ $(requests send) -ge 200 ]' ucx_perftest -t tag_lat -E sleep -n 100 -w 5 -s 64
			pair "${name}_put" '[ $(bytes write) -ge $((500 * 65536)) ] && [ $(bytes write) -le $((570 * 65536)) ]' ucx_perftest -t ucp_put_bw -n 500 -w 50 -s 65536
			pair "${name}_fadd" '[ $(requests fetch_add) -ge 500 ]' ucx_perftest -t fadd -d mlx5_0:1 -x rc_mlx5 -n 500 -w 50 -s 8
			every_byte "${name}_mpi" rc_x
		fi
		[ "$set" = - ] || unset "${set%%=*}"
	done
	name=ucx_ud_x
	wanted $name && ucx_ready $name && UCX_TLS=ud_x pair $name '[ $(requests send) -ge 200 ]' ucx_perftest -t tag_lat -n 100 -w 5 -s 2000
	unset SOFTHCA_DEVX SOFTHCA_SYSFS UCX_NET_DEVICES UCX_TLS
}

every_byte() { # every_byte NAME TLS: an MPI program that checks what it receives
	wanted "$1" && have mpirun "$1" || return 0
	[ -x "$build/mpi_check" ] || { echo "SKIP $1: mpi_check is not built (make needs mpicc)"; return; }
	timeout -k 5 120 mpirun -np 3 --allow-run-as-root --oversubscribe --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any \
		-x LD_LIBRARY_PATH -x SOFTHCA_SHM -x SOFTHCA_DEVX -x SOFTHCA_SYSFS -x UCX_TLS="$2" -x UCX_NET_DEVICES "$build/mpi_check" >"$work/client" 2>&1 &&
		grep -q "mpi_check: 3 ranks, 0 errors" "$work/client"
	result "$1" $? "$work/client"
}

# counted_on DEVICE OPERATION: requests on queue pairs of one device
counted_on() {
	grep -o "\"device\":$1[^}]*\"$2\":\[[0-9]*" "$work/stats" | awk -F'[' '{ s += $NF } END { print s + 0 }'
}

several_devices() {
	local name=two_devices_listed
	export SOFTHCA_DEVICES=2
	if wanted $name && have ibv_devinfo $name; then
		timeout 120 ibv_devinfo -v >"$work/client" 2>&1
		[ "$(awk '/hca_id|node_guid|port_lid:|GID\[/ { print $NF }' "$work/client" | sort -u | wc -l)" -eq 8 ]
		result $name $? "$work/client"
	fi
	pair perftest_second_device 'eq $(counted_on 1 write) 500 && eq $(counted_on 0 write) 0' ib_write_bw -d mlx5_1 -n 500 -s 4096
	SOFTHCA_LINK=ethernet pair perftest_second_device_ethernet 'eq $(counted_on 1 send) 1000' ib_send_bw -d mlx5_1 -x 1 -n 1000
	name=ucx_two_rails
	wanted $name && ucx_ready $name && [ -e /dev/infiniband/uverbs1 ] &&
		UCX_TLS=rc_v UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1 UCX_MAX_RNDV_RAILS=2 pair $name \
			'[ $(bytes read) -ge 50000000 ] && eq $(counted_on 0 read) $(counted_on 1 read)' ucx_perftest -t tag_bw -n 50 -w 5 -s 1000000
	name=ucx_two_rails_mlx5
	wanted $name && ucx_ready $name && [ -e /dev/infiniband/uverbs1 ] &&
		SOFTHCA_DEVX=1 SOFTHCA_SYSFS=$tree UCX_TLS=rc_x UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1 UCX_MAX_RNDV_RAILS=2 pair $name \
			'[ $(bytes read) -ge 50000000 ] && eq $(counted_on 0 read) $(counted_on 1 read)' ucx_perftest -t tag_bw -n 50 -w 5 -s 1000000
	unset SOFTHCA_DEVICES
}

# Faults asked for, where queues are rung through doorbells (test.sh has the others).
ring_faults() {
	own_fault devx_late_receives rnr_every=3 late_receives
	own_fault devx_delays delay_us=20000 delays
}

own_fault() { # own_fault NAME FAULT CASE
	wanted "$1" || return 0
	SOFTHCA_DEVX=1 SOFTHCA_FAULT=$2 timeout -k 5 100 "$build/devx_check" "$3" >"$work/client" 2>&1
	result "$1" $? "$work/client"
}

devx_two_devices() {
	local name=devx_all_to_all_two_devices
	wanted $name || return 0
	rm -f "$work/stats"
	SOFTHCA_DEVX=1 SOFTHCA_DEVICES=2 SOFTHCA_STATS=$work/stats timeout -k 5 100 "$build/devx_check" all_to_all >"$work/client" 2>&1 &&
		eq "$(counted_on 0 fetch_add)" 2400 && eq "$(counted_on 1 fetch_add)" 2400
	result $name $? "$work/client"
}

# Memory of another process's GPU: mapped where that is asked for, and with its process's help.
gpu_sharing() {
	local name way set
	for way in direct:1 staged:0; do
		name=gpu_${way%:*}
		wanted "$name" || continue
		rm -f "$work/stats"
		SOFTHCA_DEVX=1 SOFTHCA_GPU_IPC=${way#*:} SOFTHCA_STATS=$work/stats LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$build/../standin \
			timeout -k 5 100 "$build/gpu_check" between posted reallocated >"$work/client" 2>&1 &&
			[ "$(stat_sum "gpu_${way%:*}")" -gt 65535 ] && eq $(($(stat_sum gpu_direct) + $(stat_sum gpu_staged))) 10812252 &&
			{ [ "${way#*:}" = 1 ] || eq "$(stat_sum gpu_direct)" 0; }
		result "$name" $? "$work/client" "$work/stats"
	done
}

ucx_mlx5
several_devices
gpu_sharing
devx_two_devices
ring_faults
exit $failed
