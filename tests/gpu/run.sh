#!/bin/bash
# Real libraries on a machine with NVIDIA GPUs, over the software HCA: run.sh LIBRARIES RESULTS [CASE...]
# LIBRARIES: where libibverbs.so.1 and libmlx5.so.1 of the software HCA are, RESULTS: an empty folder for logs. As root, with CUDA's compiler, and
# PyTorch's packages of NVSHMEM and NCCL; RECORDER: a build of ours to record with. Prints `ok CASE` or `FAIL CASE: why`; exit 1 when one failed. README.md has what each case is.
set -u
here=$(cd "$(dirname "$0")" && pwd)
libraries=$(cd "$1" && pwd) results=$(cd "$2" && pwd)
shift 2
words=("$@")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
packages=$(python3 -c 'import nvidia, os; print(list(nvidia.__path__)[0])')
export NVSHMEM=$packages/nvshmem NCCL=$packages/nccl
# Multicast over NVLink is off: it can put GPUs that others share out of service.
export NCCL_NVLS_ENABLE=0 NVSHMEM_DISABLE_NVLS=1 TORCH_SYMM_MEM_DISABLE_MULTICAST=1

wanted() {
	[ ${#words[@]} -eq 0 ] && return 0
	for w in "${words[@]}"; do [[ $1 == "$w"* ]] && return 0; done
	return 1
}

build() {
	local target=(-O2 -std=c++17 -gencode=arch=compute_90,code=sm_90)
	mkdir -p "$work/lib"
	ln -s "$NVSHMEM"/lib/libnvshmem_host.so.3 "$work/lib/libnvshmem_host.so"
	ln -s "$NVSHMEM"/lib/libnvshmem_device.a "$work/lib/"
	ln -s "$NCCL"/lib/libnccl.so.2 "$work/lib/libnccl.so"
	nvcc "${target[@]}" -rdc=true -I"$NVSHMEM/include" -o "$work/nvshmem" "$here/nvshmem.cu" -L"$work/lib" -lnvshmem_device -lnvshmem_host &
	nvcc "${target[@]}" -I"$NCCL/include" -o "$work/gin" "$here/gin.cu" -L"$work/lib" -lnccl &
	wait
	export LD_LIBRARY_PATH=$NVSHMEM/lib:$NCCL/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
	[ -x "$work/nvshmem" ] && [ -x "$work/gin" ]
}

# over NAME RANKS SECONDS [VARIABLE=VALUE...] -- COMMAND...: a job over the software HCA
over() {
	local name=$1 ranks=$2 seconds=$3 status
	shift 3
	local environment=()
	while [ "$1" != -- ]; do environment+=("$1") && shift; done
	shift
	wanted "$name" || return 0
	SECONDS=0
	env "${environment[@]}" SOFTHCA_SHM="$work/segment-$name" SOFTHCA_STATS="$results/$name.stats" \
		"$here/with-hca.sh" "$libraries" ${prefix[@]+"${prefix[@]}"} "$here/ranks.sh" "$ranks" "$seconds" "$results/$name" "$@"
	status=$?
	if [ $status -eq 0 ] && ! grep -h '^FAIL' "$results/$name".[0-9]* >/dev/null; then
		echo "ok $name ($(cat "$results/$name".[0-9]* | grep -c '^ok') checks, $SECONDS s${CUDA_MPS_PIPE_DIRECTORY:+, MPS})"
	else
		echo "FAIL $name: status $status: $(grep -h '^FAIL' "$results/$name".[0-9]* | head -3 | tr '\n' ';') $(tail -qn 2 "$results/$name".[0-9]* | tr '\n' ';')"
		failed=1
	fi
	grep -h '^{' "$results/$name".[0-9]* | sed "s/^{/{\"case\":\"$name\",/"
}

# The same collectives, by turns without and with the recorder in each mode; what was recorded is what the adapter counted.
recorded() {
	local round mode name prefix
	wanted recorded && [ -n "${RECORDER:-}" ] || return 0
	for round in 1 2 3; do
		for mode in none aggregate simple full; do
			name=recorded-$mode-$round
			prefix=("$RECORDER/bin/sigmatrace" launch -p "$mode" --set providers=ibverbs -o "$work/run-$name" --)
			[ $mode != none ] || prefix=()
			over "$name" 2 60 "${network[@]}" -- python3 "$here/collectives.py"
			[ $mode != none ] || continue
			if "$RECORDER/bin/sigmatrace" info --json "$work/run-$name" >"$work/info" 2>"$results/$name.info" && python3 "$here/compare.py" "$results/$name.stats" "$work/info" >"$results/$name.counts"; then
				echo "ok $name-counts ($(tail -1 "$results/$name.counts"))"
			else
				echo "FAIL $name-counts: $(cat "$results/$name.counts" "$results/$name.info" | head -5 | tr '\n' ';')"
				failed=1
			fi
		done
	done
}

nvshmem() { # NAME [VARIABLE=VALUE...]
	local name=$1
	shift
	over "$name" 2 90 NVSHMEM_DISABLE_P2P=1 NVSHMEM_IB_ENABLE_IBGDA=1 NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=lo "$@" -- "$work/nvshmem" "$work/$name.id"
}

network=(NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_SOCKET_IFNAME=lo)

# Ranks that share a GPU take turns of milliseconds, unless their kernels run side by side, as under MPS.
share_gpu() {
	[ "$(nvidia-smi -L | wc -l)" -lt 2 ] && [ "${SIGMATRACE_MPS:-1}" = 1 ] || return 0
	export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps
	mkdir "$work/mps"
	nvidia-cuda-mps-control -d || { echo "FAIL mps: the control daemon does not start"; exit 1; }
	trap 'echo quit | nvidia-cuda-mps-control; rm -rf "$work"' EXIT
}

share_gpu
build || { echo "FAIL build"; exit 1; }
nvshmem nvshmem-default
nvshmem nvshmem-hostmem NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE=hostmem
nvshmem nvshmem-dc NVSHMEM_IBGDA_NUM_RC_PER_PE=0
nvshmem nvshmem-roce SOFTHCA_LINK=ethernet
over collectives 2 90 "${network[@]}" -- python3 "$here/collectives.py"
over gin 2 90 "${network[@]}" -- "$work/gin" "$work/gin.id"
recorded
over collectives-gdr 2 90 "${network[@]}" NCCL_NET_GDR_LEVEL=SYS -- python3 "$here/collectives.py"
exit $failed
