#!/bin/bash
# The rig itself: real verbs programs over the kernel's soft-RoCE, and the tests' counters exact on them.
# rig: tests=17 limit=420
. "$(dirname "$0")/lib.sh" || exit 1
verbs=$(counting verbs)

# counted NAME PORT SERVER CLIENT OPERATIONS WANT: what the client posted of these operations.
counted() {
	serve_and_call "$1" "$2" 90 "$3" "COUNT_OUT=/tmp/$1 LD_PRELOAD=$verbs $4" || { test_fail "$1" "it did not run"; return; }
	equal "$1" "$(counts "/tmp/$1" verbs | grep -E "^($5) ")" "$6"
}

args="-d $DEV -x $GID -s 4096 -n 500"
counted write_bw 18515 "ib_write_bw $args" "ib_write_bw $args 127.0.0.1" write "write 500 2048000"
equal write_bw-completions "$(counts /tmp/write_bw verbs | grep cqe)" "cqe 5 0" # one of 100 asks for one
# Connected by rdma_cm, perftest exchanges its parameters by sends.
counted write_bw-cm 18515 "ib_write_bw -R $args" "ib_write_bw -R $args $ME" write "write 500 2048000"
args="-d $DEV -x $GID -s 4096 -n 200"
counted read_bw 18515 "ib_read_bw $args" "ib_read_bw $args 127.0.0.1" read "read 200 819200"
args="-d $DEV -g $GID -n 100"
pingpong=$'recv 500 2048000\nsend 100 409600'
counted rc_pingpong 18515 "ibv_rc_pingpong $args" "ibv_rc_pingpong $args 127.0.0.1" "send|recv" "$pingpong"
counted rc_pingpong-wr 18515 "ibv_rc_pingpong -N $args" "ibv_rc_pingpong -N $args 127.0.0.1" "send|recv" "$pingpong"

# Our own client knows exactly what it did, in every mode.
for mode in post chain wr ex srq ud event rejected; do
	if COUNT_OUT=/tmp/own-$mode SENT_OUT=/tmp/sent-$mode LD_PRELOAD=$verbs timeout 60 \
		"$B/tests/verbs-client" -d $DEV -g $GID -n 20 -m $mode >/tmp/out.$mode 2>&1; then
		same_counts "client-$mode" "/tmp/own-$mode.verbs.*" "/tmp/sent-$mode.*"
	else
		tail -n 5 /tmp/out.$mode
		test_fail "client-$mode" "it did not run"
	fi
done
COUNT_OUT=/tmp/dlv LD_PRELOAD=$verbs timeout 30 "$B/tests/dlv-client" -d $DEV -g $GID >/tmp/out.dlv 2>&1 || tail -n 5 /tmp/out.dlv
equal client-dlvsym "$(counts /tmp/dlv verbs)" $'cqe 200 0\nwrite 200 409600'

# The kernel's list of queue pairs, while a program is at work.
timeout 30 "$B/tests/burst-client" -l verbs -d $DEV -g $GID -t 20 -f /tmp/published &
burst=$!
rts() { rdma_qps | grep -q "RTS [0-9]* burst-client"; }
wait_until 15 rts
equal kernel-queue-pairs "$(rdma_qps | awk '$5 == "burst-client" { print $1 == $2, $3 }')" "1 RTS"
kill -9 $burst
wait $burst 2>/dev/null
n=$(od -An -td8 /tmp/published)
check burst-published 5 test "$n" -gt 100
finish
