#!/bin/bash
# UCX and Open MPI over soft-RoCE with both counters: every message is seen at the UCP layer, and moves at the verbs layer.
# rig: tests=4 limit=420
. "$(dirname "$0")/lib.sh" || exit 1
both=$(counting verbs ucp)
sum() { awk '{ print $2; exit }' <<<"$1"; }

args="-t tag_lat -s 1024 -n 200 -w 20"
serve_and_call ucx 13337 60 "ucx_perftest $args" "COUNT_OUT=/tmp/ucx LD_PRELOAD=$both ucx_perftest $args 127.0.0.1" ||
	echo "ucx_perftest failed"
sends=$(counts /tmp/ucx ucp | grep '^tag_send')
wire=$(counts /tmp/ucx verbs | grep '^send')
echo "ucx: $sends; $wire"
check ucx-messages 5 test "$(sum "$sends")" -ge 200
check ucx-on-the-wire 5 test "$(sum "$wire")" -ge "$(sum "$sends")"

export UCX_TLS=rc_v,self
run_mpi 2 -x COUNT_OUT=/tmp/mpi -x SENT_OUT=/tmp/mpi-sent -x LD_PRELOAD="$both" "$B/tests/mpi-app" -n 2 >/tmp/out.mpi 2>&1 ||
	tail -n 15 /tmp/out.mpi
equal mpi-sends-are-received "$(counts /tmp/mpi ucp | awk '$1 == "tag_send" { print $2 }')" \
	"$(counts /tmp/mpi ucp | awk '$1 == "tag_recv" { print $2 }')"
check mpi-verified 5 grep -q '^mpi-app ok 2 2' /tmp/out.mpi
finish
