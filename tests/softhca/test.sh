#!/bin/bash
# Unmodified programs over the software HCA. Prints `ok NAME`, `FAIL NAME` or
# `SKIP NAME: why` for each case; exit 1 when one failed.
# usage: test.sh [WORD...]: only cases whose name contains one of the words
. "$(dirname "$0")/lib.sh"

dlopened() {
	local name=dlopen_check
	wanted $name || return 0
	timeout 120 "$build/$name" >"$work/client" 2>&1
	result $name $? "$work/client"
}

devices() {
	wanted ibv_devinfo || return 0
	have ibv_devinfo ibv_devinfo || return 0
	timeout 120 ibv_devinfo -v >"$work/client" 2>&1 && grep -q PORT_ACTIVE "$work/client" && grep -q mlx5_0 "$work/client"
	result ibv_devinfo $? "$work/client"
}

pingpongs() {
	# 1000 rounds of 4096 bytes each way: 2000 sends in all
	local want='eq $(requests send) 2000 && eq $(bytes send) 8192000'
	pair ibv_rc_pingpong "$want" ibv_rc_pingpong
	pair ibv_rc_pingpong_events "$want" ibv_rc_pingpong -e
	pair ibv_rc_pingpong_new_send "$want" ibv_rc_pingpong -N
	pair ibv_rc_pingpong_time_stamps "$want" ibv_rc_pingpong -t
	pair ibv_rc_pingpong_check "$want" ibv_rc_pingpong -c
	pair ibv_ud_pingpong 'eq $(requests send) 2000 && eq $(bytes send) 4096000' ibv_ud_pingpong -s 2048
	pair ibv_ud_pingpong_events 'eq $(requests send) 2000' ibv_ud_pingpong -e -s 2048
	# it ends when each side has polled 1000 of each: what the other sent beyond that may stay in the queue
	pair ibv_srq_pingpong 'test $(stat_sum recv_cqes) -ge 2000 -a $(stat_sum recv_cqes) -le $(requests send)' ibv_srq_pingpong
	SOFTHCA_LINK=ethernet pair ibv_rc_pingpong_ethernet "$want" ibv_rc_pingpong -g 1
}

perftests() {
	pair ib_write_bw 'eq $(requests write) 500 && eq $(bytes write) 2048000 && eq $(stat_sum send_cqes) 5' ib_write_bw -n 500 -s 4096
	pair ib_write_bw_old_post_send 'eq $(requests write) 500 && eq $(bytes write) 2048000 && eq $(stat_sum send_cqes) 5' ib_write_bw -n 500 -s 4096 --use_old_post_send
	pair ib_write_bw_4_queues 'eq $(requests write) 2000 && eq $(bytes write) 131072000' ib_write_bw -n 500 -q 4
	pair ib_write_bw_both_ways 'eq $(requests write) 1000' ib_write_bw -n 500 -b
	pair ib_write_lat 'eq $(requests write) 2000' ib_write_lat -n 1000
	pair ib_send_bw 'eq $(requests send) 1000 && eq $(stat_sum recv_cqes) 1000 && eq $(stat_sum recv_bytes) 65536000' ib_send_bw -n 1000
	pair ib_send_bw_events 'eq $(requests send) 1000 && eq $(stat_sum recv_cqes) 1000' ib_send_bw -n 1000 -e
	pair ib_send_bw_srq 'eq $(requests send) 1000 && eq $(stat_sum recv_cqes) 1000' ib_send_bw -n 1000 --use-srq
	pair ib_send_bw_srq_4_queues 'eq $(requests send) 2000 && eq $(stat_sum recv_cqes) 2000' ib_send_bw -n 500 --use-srq -q 4
	pair ib_send_bw_ud 'eq $(requests send) 500 && eq $(bytes send) 512000' ib_send_bw -c UD -n 500 -s 1024
	pair ib_send_lat 'eq $(requests send) 2000' ib_send_lat -n 1000
	pair ib_send_lat_events 'eq $(requests send) 1000' ib_send_lat -n 500 -e
	pair ib_send_lat_ud 'eq $(requests send) 1000' ib_send_lat -c UD -n 500
	pair ib_read_bw 'eq $(requests read) 500 && eq $(bytes read) 32768000' ib_read_bw -n 500
	pair ib_read_lat 'eq $(requests read) 500' ib_read_lat -n 500
	pair ib_atomic_bw 'eq $(requests fetch_add) 500' ib_atomic_bw -n 500
	pair ib_atomic_bw_compare_swap 'eq $(requests compare_swap) 500' ib_atomic_bw -n 500 -A CMP_AND_SWAP
	pair ib_atomic_lat 'eq $(requests fetch_add) 500' ib_atomic_lat -n 500
}

ucx() {
	local tls test name
	export UCX_NET_DEVICES=mlx5_0:1
	for tls in rc_v ud_v; do
		# (UCP makes atomics of messages here: rc_verbs lacks some; so UCT below)
		for test in tag_lat ucp_put_bw ucp_am_bw ucp_get; do
			name=ucx_${tls}_$test
			wanted $name && ucx_ready $name &&
				UCX_TLS=$tls pair $name '[ $(requests send) -gt 0 ]' ucx_perftest -t $test -n 500 -w 50 -s 4096
		done
	done
	# every put is one RDMA write: 500, and as many of the warm-up's 50 as there was time for, with their flushes
	wanted ucx_rc_v_put_counts && ucx_ready ucx_rc_v_put_counts &&
		UCX_TLS=rc_v pair ucx_rc_v_put_counts '[ $(bytes write) -ge $((500 * 65536)) ] && [ $(bytes write) -le $((570 * 65536)) ]' ucx_perftest -t ucp_put_bw -n 500 -w 50 -s 65536
	wanted ucx_rc_v_fadd && ucx_ready ucx_rc_v_fadd &&
		pair ucx_rc_v_fadd '[ $(requests fetch_add) -ge 500 ]' ucx_perftest -t fadd -d mlx5_0:1 -x rc_verbs -n 500 -w 50 -s 8
	name=ucx_without_device_node
	if wanted $name; then
		if ! unshare -m true 2>/dev/null; then
			echo "SKIP $name: needs a mount namespace (root)"
		elif have ucx_info $name; then
			mkdir -p "$work/empty"
			unshare -m sh -c 'mkdir -p /dev/infiniband && mount --bind "$1" /dev/infiniband && exec env LD_PRELOAD="$2" ucx_info -d' - "$work/empty" "$build/softhca-node.so" >"$work/client" 2>&1
			grep -q 'Transport: rc_verbs' "$work/client"
			result $name $? "$work/client"
		fi
	fi
}

mpi() {
	local n tls name rc
	for n in 2 4 16; do
		for tls in rc_v ud_v; do
			name=openmpi_${n}_ranks_$tls
			wanted $name && ucx_ready $name && have mpirun $name || continue
			[ -x "$build/mpi_check" ] || { echo "SKIP $name: mpi_check is not built (make needs mpicc)"; continue; }
			rm -f "$work/stats"
			timeout -k 5 120 mpirun -np $n --allow-run-as-root --oversubscribe --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any \
				-x LD_LIBRARY_PATH -x SOFTHCA_SHM -x SOFTHCA_STATS="$work/stats" -x UCX_TLS=$tls -x UCX_NET_DEVICES=mlx5_0:1 "$build/mpi_check" >"$work/client" 2>&1 &&
				grep -q "mpi_check: $n ranks, 0 errors" "$work/client" && [ "$(wc -l <"$work/stats")" -eq $n ] && [ "$(requests send)" -gt 0 ]
			rc=$?
			result $name $rc "$work/client"
		done
	done
}

faults() {
	local name=devx_check_faults
	wanted $name || return 0
	SOFTHCA_DEVX=1 SOFTHCA_FAULT=error_every=5,lost_doorbell_every=3,reuse_numbers=1 timeout -k 5 60 "$build/devx_check" faults >"$work/client" 2>&1
	result $name $? "$work/client"
	name=rnr_fault
	wanted $name || return 0
	# a receive that is not found is found later, and every message comes
	SOFTHCA_FAULT=rnr_every=10,delay_us=1 pair $name 'eq $(requests send) 2000' ibv_rc_pingpong
}

# What the queues' own counters say of a run of one client with its own queues.
counted_by_device() {
	local name=devx_counted
	wanted $name || return 0
	rm -f "$work/stats"
	SOFTHCA_DEVX=1 SOFTHCA_STATS=$work/stats timeout -k 5 60 "$build/devx_check" batches waits >"$work/client" 2>&1
	# 2,000 rounds of 200 inline writes of 4 bytes; 2,000 of a wait, an addition and a write of 8 bytes
	eq "$(requests write)" 402000 && eq "$(bytes write)" 1616000 && eq "$(requests wait)" 2000 && eq "$(requests fetch_add)" 2000
	result $name $? "$work/client" "$work/stats"
}

killed_client() {
	local name=perftest_peer_killed server client rc
	wanted $name || return 0
	have ib_send_bw $name || return 0
	port=$((port + 1))
	SOFTHCA_LOG=1 timeout -k 5 90 ib_send_bw -F -D 30 -p $port >"$work/server" 2>&1 &
	server=$!
	wait_port $port
	SOFTHCA_LOG=1 ib_send_bw -F -D 30 -p $port 127.0.0.1 >"$work/client" 2>&1 &
	client=$!
	for _ in $(seq 600); do # until one is ready to receive and the other to send, and some time of sending
		grep -q 'from 1 to 2' "$work/server" && grep -q 'from 2 to 3' "$work/client" && break
		sleep 0.1
	done
	sleep 2
	kill -9 $client
	wait $client 2>/dev/null
	# the survivor ends by itself, well before its 30 s, with an error
	SECONDS=0
	wait $server
	rc=$?
	[ $rc -ne 0 ] && [ $rc -ne 124 ] && [ $SECONDS -lt 15 ]
	result $name $? "$work/server"
	# and what the dead one left does not disturb the next
	name=after_a_kill
	pair $name 'eq $(requests send) 2000' ibv_rc_pingpong
}

segment_gone() {
	local name=segment_removed_by_the_last
	wanted $name || return 0
	[ ! -e "$SOFTHCA_SHM" ]
	result $name $? /dev/null
}

full_file_system() {
	local name=full_file_system
	wanted $name || return 0
	unshare -m true 2>/dev/null || { echo "SKIP $name: needs a mount namespace (root)"; return; }
	mkdir -p "$work/small"
	unshare -m sh -c 'mount -t tmpfs -o size=16m none "$1" && SOFTHCA_SHM=$1/segment exec timeout -k 5 30 "$2"' - "$work/small" "$build/fill_segment" >"$work/client" 2>&1
	result $name $? "$work/client"
}

symbols() {
	local name=symbols lib
	wanted $name || return 0
	for lib in ibverbs mlx5; do
		objdump -T "$build/lib$lib.so.1" | awk '!/UND/ && !/\*ABS\*/ && NF >= 7 { v = $(NF - 1); gsub(/[()]/, "", v); print $NF, v }' | LC_ALL=C sort >"$work/have"
		awk '{ print $1, $2 }' "$here/symbols/$lib.list" | LC_ALL=C sort >"$work/want"
		diff "$work/want" "$work/have" >"$work/client" || break
	done
	result $name $? "$work/client"
}

symbols
dlopened
devices
own verbs_check 20
SOFTHCA_DEVX=1 own devx_check 18
SOFTHCA_DEVX=1 LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$build/../standin own gpu_check 6
counted_by_device
faults
pingpongs
perftests
killed_client
ucx
mpi
full_file_system
segment_gone
exit $failed
