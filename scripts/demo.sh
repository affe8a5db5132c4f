#!/bin/bash
# What `make demo` does: installs what it needs, builds, traces a real parallel program (Open MPI over UCX over verbs, on the
# software HCA), merges, and says what was seen and where to look. Arguments: the run directory to make, and the number of ranks.
set -eu
cd "$(dirname "$0")/.."
scripts/deps.sh build demo
make all "${B:=build}/tests/mpi-app"
hca=$PWD/$B/softhca
run=${1:-$B/demo-$(date +%Y%m%d-%H%M%S)}
ranks=${2:-4}
tests/softhca/setup.sh

# The software HCA stands in for libibverbs and libmlx5 through LD_LIBRARY_PATH; everything else is Debian's own.
export LD_LIBRARY_PATH=$hca SOFTHCA_SHM=/dev/shm/sigmatrace-demo-$$
trap 'rm -f "$SOFTHCA_SHM"' EXIT
"$B/bin/sigmatrace" launch -p full --providers ucx,ibverbs -o "$run" -- \
	mpirun --allow-run-as-root --oversubscribe -np "$ranks" --mca plm isolated --mca pml ucx --mca pml_ucx_tls any \
	--mca pml_ucx_devices any --mca btl ^openib -x LD_LIBRARY_PATH -x SOFTHCA_SHM -x UCX_TLS=rc_v,self -x UCX_NET_DEVICES=mlx5_0:1 \
	"$B/tests/mpi-app" -n 20

"$B/bin/sigmatrace" info "$run"
cat <<END

The run is in $run:
  trace.pftrace   every operation of every rank, in the layers UCP, UCT and verbs, on one clock: open it in https://ui.perfetto.dev
  matrix.json     who sent how much to whom, per layer, at endpoint, rank and node
  manifest.json   how complete and how exact it is
  capture/        what the ranks recorded: $B/bin/sigmatrace dump $run
END
