#!/bin/bash
# Unmodified programs over the kernel's soft-RoCE and Debian's own libraries, launched with recording; tests/vm/check holds what was
# recorded against the counters beside it and against the kernel.
# rig: tests=21 limit=900
. "$(dirname "$0")/lib.sh" || exit 1

# What the kernel says of the device.
cat /sys/class/infiniband/$DEV/ports/1/gids/* >"$OUT/gids" 2>/dev/null

# Merged here as well. Without -F perftest fails where the rate of the processor's clock cannot be measured well, as on a busy host.
args="-F -d $DEV -x $GID -s 4096 -n 500"
MERGE= pair write_bw full 18515 verbs "ib_write_bw $args" "ib_write_bw $args 127.0.0.1"
cp "$OUT/write_bw/run/manifest.json" "$OUT/write_bw/manifest.guest"
cp "$OUT/write_bw/run/trace.pftrace" "$OUT/write_bw/trace.guest"
args="-F -d $DEV -x $GID -s 4096 -n 200"
pair read_bw simple 18515 verbs "ib_read_bw $args" "ib_read_bw $args 127.0.0.1"
pair send_bw-cm full 18515 verbs "ib_send_bw -R $args" "ib_send_bw -R $args $ME"
args="-F -c UD -d $DEV -x $GID -s 1024 -n 200"
pair send_bw-ud aggregate 18515 verbs "ib_send_bw $args" "ib_send_bw $args 127.0.0.1"
args="-d $DEV -g $GID -n 1000" # long enough for the watch on a quiet machine as well
watch_qps rc_pingpong 2
pair rc_pingpong full 18515 verbs "ibv_rc_pingpong -N $args" "ibv_rc_pingpong -N $args 127.0.0.1"
args="-d $DEV -g $GID -n 20"
pair peers full 18600 verbs "$B/tests/peer-client $args" "$B/tests/peer-client $args 127.0.0.1"
pair datagrams-cm full 7174 verbs "udaddy" "udaddy -s $ME"
pair sockets full 7471 verbs "rstream -S 4096 -C 50 -I 2" "rstream -S 4096 -C 50 -I 2 -s $ME"
client=("$B/tests/verbs-client" -d $DEV -g $GID -n 5)
alone client-aggregate aggregate verbs "${client[@]}"
alone client-simple simple verbs "${client[@]}"
alone client-full full verbs "${client[@]}" -m post,chain,srq,ud,event,rejected
alone client-wr full verbs "${client[@]}" -m wr,ex
# What it looks up itself comes from the first preload that answers: the counter has to be that, else it would see nothing.
alone dlvsym full verbs bash -c "LD_PRELOAD=$B/tests/count-verbs.so:\$LD_PRELOAD exec $B/tests/dlv-client -d $DEV -g $GID"

args="-t tag_lat -s 1024 -n 2000 -w 20" # as long
watch_qps ucx 2
pair ucx full 13337 "ucp uct verbs" "ucx_perftest $args" "ucx_perftest $args 127.0.0.1"
export UCX_TLS=rc_v,self
mpi_command
ran mpi launch mpi full "ucp uct verbs" -- "${mpi[@]}" "$B/tests/mpi-app" -n 2
check mpi-verified 5 grep -q '^mpi-app ok 2 2' "$OUT/mpi/log.$RIG_host"
libfabric
finish
