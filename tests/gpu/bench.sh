#!/bin/bash
# What recording costs on a machine with NVIDIA GPUs, over the software HCA: RECORDER=BUILD bench.sh LIBRARIES [GROUP...] (tests/bench/README.md has the groups; bench.py). One JSON
# object a line; exit 1 when a program failed, 2 when nothing can run here.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/machine.sh"
[ $# -ge 1 ] || cannot "usage: RECORDER=BUILD bench.sh LIBRARIES [GROUP...]"
machine "$1"
shift
[ -n "${RECORDER:-}" ] || cannot "RECORDER has to name a build of ours"
[ -e "$RECORDER/gpu/choose.so" ] || cannot "there is no gpu/choose.so in $RECORDER: make tests"
for program in put bfs; do compile $program -rdc=true -I"$NVSHMEM/include" -lnvshmem_device -lnvshmem_host; done
compile allreduce -I"$NCCL/include" -lnccl
compiled || { cat "$work"/*.nvcc >&2; exit 1; }
export LIBRARIES=$libraries WORK=$work RECORDER PROVIDERS=$providers RANKS_SHARE=$(share 2)
python3 "$here/bench.py" --machine
[ $# -gt 0 ] || set -- put bfs nccl
failed=0
for group in "$@"; do
	begin_mps # anew: a rank that had to be killed keeps others from the GPU for as long
	python3 "$here/bench.py" "$group" || failed=$?
	end_mps
done
exit $failed
