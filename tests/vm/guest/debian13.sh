#!/bin/bash
# The libraries of Debian 13 over soft-RoCE: rdma-core 56, UCX 1.18, libfabric 2.1, Open MPI 5.
# rig: root=debian13 tests=15 limit=600
. "$(dirname "$0")/lib.sh" || exit 1

for l in /usr/lib/x86_64-linux-gnu/lib{ibverbs,rdmacm,ucp,fabric,mpi}.so.[0-9]*.*; do basename "$l"; done >"$OUT/libraries"

args="-F -d $DEV -x $GID -s 4096 -n 500"
pair write_bw full 18515 verbs "ib_write_bw $args" "ib_write_bw $args 127.0.0.1"
args="-F -d $DEV -x $GID -s 4096 -n 200"
pair send_bw-cm full 18515 verbs "ib_send_bw -R $args" "ib_send_bw -R $args $ME"
args="-d $DEV -g $GID -n 500"
watch_qps rc_pingpong 2
pair rc_pingpong full 18515 verbs "ibv_rc_pingpong -N $args" "ibv_rc_pingpong -N $args 127.0.0.1"
args="-d $DEV -g $GID -n 20"
pair peers full 18600 verbs "$B/tests/peer-client $args" "$B/tests/peer-client $args 127.0.0.1"
client=("$B/tests/verbs-client" -d $DEV -g $GID -n 5)
alone client-full full verbs "${client[@]}" -m post,chain,srq,ud,event,rejected
alone client-wr full verbs "${client[@]}" -m wr,ex
alone dlvsym full verbs bash -c "LD_PRELOAD=$B/tests/count-verbs.so:\$LD_PRELOAD exec $B/tests/dlv-client -d $DEV -g $GID"

export UCX_TLS=rc_v,self
ran ucp-client launch ucp-client full "ucp uct verbs" -- "$B/tests/ucp-client" -n 10
mpi_command
ran mpi launch mpi full "ucp uct verbs" -- "${mpi[@]}" "$B/tests/mpi-app" -n 2
libfabric
# Debian 13 builds ucx_perftest as an MPI program: its processes meet by libfabric and measure by UCX.
mpi_over_ofi
ran three launch three full "ucp uct verbs ofi" -- "${mpi[@]}" ucx_perftest -t tag_lat -s 1024 -n 200 -w 20
finish
