#!/bin/bash
# rdma-core 33, of Debian 11, over soft-RoCE; its rxe has no ibv_wr_*.
# rig: root=debian11 tests=5 limit=600
. "$(dirname "$0")/lib.sh" || exit 1

for l in /usr/lib/x86_64-linux-gnu/lib{ibverbs,rdmacm}.so.[0-9]*.*; do basename "$l"; done >"$OUT/libraries"

args="-F -d $DEV -x $GID -s 4096 -n 500"
pair write_bw full 18515 verbs "ib_write_bw $args" "ib_write_bw $args 127.0.0.1"
args="-d $DEV -g $GID -n 500"
watch_qps rc_pingpong 2
pair rc_pingpong full 18515 verbs "ibv_rc_pingpong $args" "ibv_rc_pingpong $args 127.0.0.1"
args="-d $DEV -g $GID -n 20"
pair peers full 18600 verbs "$B/tests/peer-client $args" "$B/tests/peer-client $args 127.0.0.1"
client=("$B/tests/verbs-client" -d $DEV -g $GID -n 5)
alone client-full full verbs "${client[@]}" -m post,chain,srq,ud,event,rejected
alone dlvsym full verbs bash -c "LD_PRELOAD=$B/tests/count-verbs.so:\$LD_PRELOAD exec $B/tests/dlv-client -d $DEV -g $GID"
finish
