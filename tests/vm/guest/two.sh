#!/bin/bash
# Two machines, soft-RoCE between them: unmodified programs on both record to one run, which is merged and checked on the host.
# rig: tests=19 limit=900
. "$(dirname "$0")/lib.sh" || exit 1

# both NAME LAYERS PORT SERVER CLIENT: a launches the server; b's recorder is told of the same run, as a launcher of jobs would do it.
# The run is in OUT, by 9p, and so recorded by write(2); with SCRATCH set in memory on both, and brought to the run afterwards.
both() {
	ran "$1" serve_and_call "$1" "$3" 120 "launch $1 full '$2' ${SCRATCH:+--set record.scratch=$SCRATCH} -- $4" "joined $1 '$2' $5"
	[ -z "${SCRATCH:-}" ] || [ $ROLE = a ] || cp -r "$SCRATCH"/run-*/* "$OUT/$1/run/capture/"
	meet "$1.collected"
}
# joined NAME LAYERS COMMAND...: COMMAND records into the run NAME.
joined() {
	local name=$1 layers=$2 lib=$B/lib/sigmatrace l list
	shift 2
	list=$lib/libsigmatrace.so
	for l in $(providers "$layers" | tr , ' '); do list=$list:$lib/provider-$l.so; done
	SENT_OUT=$OUT/$name/sent.$RIG_host COUNT_OUT=$OUT/$name/count.$RIG_host SIGMATRACE_CONFIG=$OUT/$name/run/profile.resolved \
		LD_PRELOAD=$list:$(preloads $layers) "$@"
}
export -f joined launch preloads providers
# b_clock NAME SECONDS: b's clock is set to a's and so many seconds more.
b_clock() {
	[ $ROLE = b ] || date +%s >"$OUT/clock.$1"
	meet "clock.$1"
	[ $ROLE = a ] || date -s "@$(($(cat "$OUT/clock.$1") + $2))" >/dev/null
}
# both_pingpong NAME [ROUNDS]
both_pingpong() {
	local args="-d $DEV -g $GID -n ${2:-100}"
	both "$1" verbs 18515 "ibv_rc_pingpong $args" "ibv_rc_pingpong $args $PEER"
}

args="-F -d $DEV -x $GID -s 65536 -n 200"
watch_qps write_bw 1
both write_bw verbs 18515 "ib_write_bw $args" "ib_write_bw $args $PEER"
args="-F -d $DEV -x $GID -s 4096 -n 200"
both send_bw-cm verbs 18515 "ib_send_bw -R $args" "ib_send_bw -R $args $PEER"
args="-d $DEV -g $GID -n 20"
both peers verbs 18600 "$B/tests/peer-client $args" "$B/tests/peer-client $args $PEER"
both datagrams-cm verbs 7174 "udaddy" "udaddy -s $PEER"
args="-t tag_lat -s 1024 -n 100 -w 10"
both ucx "ucp uct verbs" 13337 "ucx_perftest $args" "ucx_perftest $args $PEER"
watch_qps collected 1
SCRATCH=/tmp/scratch both_pingpong collected 1000 # long enough for the watch

# Open MPI reaches the other machine by a remote shell, for which remote.sh stands.
export UCX_TLS=rc_v,self
if [ $ROLE = a ]; then
	mpi_command
	# Each machine's counters have names of their own, whatever mpirun passes on.
	rank="COUNT_OUT=$OUT/mpi/count.\$(hostname) SENT_OUT=$OUT/mpi/sent.\$(hostname) exec $B/tests/mpi-app -n 2"
	ran mpi launch mpi full "ucp uct verbs" -- "${mpi[@]}" --mca plm rsh --mca plm_rsh_agent "$RIG_repo/tests/vm/guest/remote.sh" \
		--mca oob_tcp_if_include 10.9.0.0/24 --host vma:1,vmb:1 bash -c "$rank"
	check mpi-verified 5 grep -q '^mpi-app ok 2 2' "$OUT/mpi/log.$RIG_host"
	: >"$OUT/remote.end"
else
	until [ -e "$OUT/remote.end" ]; do
		if [ -e "$OUT/remote.command" ]; then
			command=$(cat "$OUT/remote.command")
			rm "$OUT/remote.command"
			bash -c "$command" >"$OUT/remote.log" 2>&1
			echo $? >"$OUT/remote.status.new"
			mv "$OUT/remote.status.new" "$OUT/remote.status"
		fi
		sleep 0.1
	done
	test_ok run-mpi
fi

# Far more apart than the machines' clocks are by themselves: either way, all messages of one direction arrive before they are sent.
b_clock ahead 30
both_pingpong ahead
b_clock behind -30
both_pingpong behind
finish
