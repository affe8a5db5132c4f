#!/bin/bash
# What provider nccl records of PyTorch's NCCL over the software HCA, and what it costs: nccl.sh LIBRARIES RESULTS [ROUNDS]
# RECORDER: a build of ours. As root. By turns without the recorder, with provider ibverbs alone, with nccl beside it, and with the events of its steps too; nccl.py looks at what was recorded.
# Prints `ok NAME` or `FAIL NAME: why`, and the times of collectives.py as JSON lines; exit 1 when one failed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
libraries=$(cd "$1" && pwd) results=$(cd "$2" && pwd) rounds=${3:-3}
work=$(mktemp -d) failed=0
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 # as in run.sh
export NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_SOCKET_IFNAME=lo
finish() { rm -rf "$work"; }
if [ "$(nvidia-smi -L | wc -l)" -lt 2 ]; then
	export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps
	mkdir "$work/mps"
	nvidia-cuda-mps-control -d || exit 1
	finish() { echo quit | nvidia-cuda-mps-control; rm -rf "$work"; }
fi
trap finish EXIT

for ((round = 1; round <= rounds; round++)); do
	for what in none ibverbs nccl steps; do
		name=nccl-$what-$round run=$work/run
		providers=ibverbs,nccl events=coll,p2p,proxy
		[ $what != ibverbs ] || providers=ibverbs
		[ $what != steps ] || events=coll,p2p,steps
		launch=("$RECORDER/bin/sigmatrace" launch -p full --set "providers=$providers" --set "nccl.events=$events" --set merge.exports=json -o "$run" --)
		[ $what != none ] || launch=()
		SOFTHCA_SHM=$work/segment SOFTHCA_STATS=$results/$name.stats "$here/with-hca.sh" "$libraries" ${launch[@]+"${launch[@]}"} \
			"$here/ranks.sh" 2 100 "$results/$name" python3 "$here/collectives.py" >"$results/$name.log" 2>&1
		status=$?
		if [ $status -eq 0 ] && ! grep -qh '^FAIL' "$results/$name".[01]; then
			echo "ok $name"
		else
			echo "FAIL $name: status $status: $(grep -h '^FAIL' "$results/$name".[01] | head -3 | tr '\n' ';') $(tail -qn 2 "$results/$name".* | tr '\n' ';')"
			failed=1
		fi
		grep -h '^{' "$results/$name.0" | sed "s/^{/{\"case\":\"$name\",/"
		if [ $what = nccl ] || [ $what = steps ]; then
			"$RECORDER/bin/sigmatrace" info --json "$run" >"$results/$name.info" 2>>"$results/$name.log"
			python3 "$here/nccl.py" "$name" "$run/trace.json" "$results/$name.info" "$results/$name.stats" || failed=1
		fi
		rm -rf "$run" "$work/segment"
	done
done
exit $failed
