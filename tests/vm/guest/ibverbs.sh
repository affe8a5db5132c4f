#!/bin/bash
# Provider ibverbs over the kernel's soft-RoCE and Debian's own libibverbs: totals of every mode equal what the counting preload saw.
# rig: tests=15 limit=360
. "$(dirname "$0")/lib.sh" || exit 1
lib=$B/lib/sigmatrace
preload=$(counting verbs):$lib/libsigmatrace.so:$lib/provider-ibverbs.so

# prepare NAME MODE: an empty run, and what the programs of it need in their environment.
prepare() {
	run=/tmp/run.$1
	rm -rf "$run"
	mkdir -p "$run/capture"
	printf 'sigmatrace.profile=1\nname=vm\nmode=%s\nproviders=ibverbs\ncapture.directory=%s\n' "$2" "$run/capture" >"$run/profile"
	traced="SIGMATRACE_CONFIG=$run/profile COUNT_OUT=$run/count LD_PRELOAD=$preload"
}
# Sums of the counter, and of the captures' tables, by operation: "OPERATION COUNT BYTES" lines (completions without bytes).
sums() { awk '{ c[$1] += $2; b[$1] += $3 } END { for (n in c) if (c[n]) print n, c[n], n == "completion" ? 0 : b[n] }' | sort; }
truth() {
	counts "$run/count" verbs | sed 's/^send_[a-z]* /send /; s/^srq_recv /recv /; s/^cqe_error /completion /; s/^cqe /completion /; s/^other /control /' | sums
}
recorded() {
	"$B/bin/sigmatrace" dump --aggregates "$run"/capture/*/*.capture | sed -n 's/^ *[0-9]* *aggregate .* verbs_\([a-z_]*\) .* count=\([0-9]*\) bytes=\([0-9]*\) .*/\1 \2 \3/p' |
		sed 's/^datagram /send /' | sums
}

# compared NAME MODE PORT SERVER CLIENT
compared() {
	prepare "$1" "$2"
	serve_and_call "$1" "$3" 60 "$traced $4" "$traced $5" || { test_fail "$1" "it did not run"; return; }
	equal "$1" "$(recorded)" "$(truth)"
}
# alone NAME MODE COMMAND
alone() {
	prepare "$1" "$2"
	timeout 60 env $traced $3 >"/tmp/out.$1" 2>&1 || { tail -n 5 "/tmp/out.$1"; test_fail "$1" "it did not run"; return; }
	equal "$1" "$(recorded)" "$(truth)"
}

# -u 18: a retransmission timeout of 1 s; emulated, on a busy host, the usual 67 ms run out.
args="-u 18 -d $DEV -x $GID -s 4096 -n 500"
compared write_bw full 18515 "ib_write_bw $args" "ib_write_bw $args 127.0.0.1"
equal write_bw-exact "$(recorded | grep -E '^(write|completion) ')" $'completion 5 0\nwrite 500 2048000'
# The GIDs, the port and the peers are in the definitions as the kernel tells them.
definitions=$("$B/bin/sigmatrace" dump --definitions "$run"/capture/*/*.capture)
sysfs=/sys/class/infiniband/$DEV/ports/1
equal gids "$(grep -o 'verbs_gid .* type=1 gid=[0-9a-f]*' <<<"$definitions" | sed 's/.*gid=//' | sort -u)" \
	"$(cat $sysfs/gids/* | tr -d : | grep -v '^0*$' | sort -u)"
equal port "$(grep -o 'verbs_port .*' <<<"$definitions" | sed 's/.* state=\([0-9]*\) .* mtu=\([0-9]*\) .* link_layer=\([a-z]*\)/\1 \2 \3/' | sort -u)" "4 4096 ethernet"
equal connected "$(grep -c 'verbs_qp_modify .* state=rtr dest_qpn=[1-9]' <<<"$definitions")" 2
args="-u 18 -d $DEV -x $GID -s 4096 -n 200"
compared read_bw simple 18515 "ib_read_bw $args" "ib_read_bw $args 127.0.0.1"
compared send_bw-cm full 18515 "ib_send_bw -R $args" "ib_send_bw -R $args $ME"
args="-d $DEV -g $GID -n 100"
compared rc_pingpong-wr full 18515 "ibv_rc_pingpong -N $args" "ibv_rc_pingpong -N $args 127.0.0.1"
args="-t tag_lat -s 1024 -n 100 -w 10"
compared ucx full 13337 "ucx_perftest $args" "ucx_perftest $args 127.0.0.1"
for mode in aggregate simple full; do
	alone client-$mode $mode "$B/tests/verbs-client -d $DEV -g $GID -n 10"
done
alone dlvsym full "$B/tests/dlv-client -d $DEV -g $GID"
# ibv_reg_mr registers by ibv_reg_mr_iova2, through another of our hooks.
equal region-once "$("$B/bin/sigmatrace" dump --definitions "$run"/capture/*/*.capture | grep -c ' verbs_mr ')" 1

# The kernel's list of queue pairs while a program is at work: the same numbers as the definitions.
prepare burst full
env $traced timeout 30 "$B/tests/burst-client" -l verbs -d $DEV -g $GID -t 20 -f /tmp/published >/dev/null 2>&1 &
burst=$!
rts() { rdma_qps | grep -q "RTS [0-9]* burst-client"; }
wait_until 15 rts
kernel=$(rdma_qps | awk '$5 == "burst-client" { print $1, $2 }')
sleep 1
equal kernel-queue-pairs "$("$B/bin/sigmatrace" dump --definitions "$run"/capture/*/*.capture | sed -n 's/.* verbs_qp .* qpn=\([0-9]*\) .*/\1/p; s/.* state=rtr dest_qpn=\([0-9]*\) .*/\1/p' | xargs)" "$kernel"
pkill -9 -P $burst 2>/dev/null
kill -9 $burst 2>/dev/null
wait $burst 2>/dev/null
finish
