#!/bin/bash
# Two machines, soft-RoCE between them: the counters are exact on both ends.
# rig: tests=4 limit=420
. "$(dirname "$0")/lib.sh" || exit 1
count="COUNT_OUT=/tmp/c LD_PRELOAD=$(counting verbs)"

args="-d $DEV -x $GID -s 65536 -n 200"
serve_and_call write_bw 18515 60 "$count ib_write_bw $args" "$count ib_write_bw $args $PEER" || echo "ib_write_bw failed"
[ $ROLE = a ] || equal write_bw "$(counts /tmp/c verbs | grep write)" "write 200 13107200"
rm -f /tmp/c.*

args="-d $DEV -g $GID -n 100"
serve_and_call rc_pingpong 18515 60 "$count ibv_rc_pingpong $args" "$count ibv_rc_pingpong $args $PEER" || echo "ibv_rc_pingpong failed"
equal rc_pingpong-$ROLE "$(counts /tmp/c verbs | grep send)" "send 100 409600"

args="-t tag_lat -n 100 -w 10"
serve_and_call ucx 13337 60 "ucx_perftest $args" "COUNT_OUT=/tmp/u LD_PRELOAD=$(counting ucp) ucx_perftest $args $PEER" ||
	echo "ucx_perftest failed"
[ $ROLE = a ] || check ucx 5 grep -q '"tag_send":{"count":1[0-9][0-9],' /tmp/u.ucp.*
finish
