# shellcheck shell=bash
# What run.sh and bench.sh share: whether this machine can run them, its libraries, the programs, MPS. Sourced; `here` is this folder.

# cannot WHY: nothing can run on this machine.
cannot() {
	echo "$(basename "$0"): $1" >&2
	exit 2
}

# machine LIBRARIES: sets libraries, work, NVSHMEM, NCCL, providers; ends the script where something is missing.
machine() {
	local packages
	command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU' || cannot "there is no NVIDIA GPU here"
	[ "$(id -u)" = 0 ] || cannot "root is needed: for doorbells that GPUs ring, and a file system of its own over /sys/class/infiniband"
	command -v nvcc >/dev/null || cannot "there is no nvcc (CUDA's compiler)"
	packages=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null) && [ -d "$packages/nvshmem" ] && [ -d "$packages/nccl" ] ||
		cannot "python3 does not find PyTorch's packages nvidia.nvshmem and nvidia.nccl"
	[ -e "$1/libmlx5.so.1" ] || cannot "there is no software HCA in $1: make softhca"
	[ -z "${RECORDER:-}" ] || [ -x "$RECORDER/bin/sigmatrace" ] || cannot "there is no bin/sigmatrace in $RECORDER: make"
	libraries=$(cd "$1" && pwd)
	[ -z "${RECORDER:-}" ] || RECORDER=$(cd "$RECORDER" && pwd)
	[ -z "${RECORDER:-}" ] || [ ! -e "$RECORDER/gpu/crash.so" ] || export CRASH=$RECORDER/gpu/crash.so
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	providers=ibverbs,mlx5dv,cuda
	export NVSHMEM=$packages/nvshmem NCCL=$packages/nccl
	export LD_LIBRARY_PATH=$NVSHMEM/lib:$NCCL/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
	# Multicast over NVLink is off: it can put GPUs that others share out of service.
	export NCCL_NVLS_ENABLE=0 NVSHMEM_DISABLE_NVLS=1 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
	mkdir "$work/lib"
	ln -s "$NVSHMEM"/lib/libnvshmem_host.so.3 "$work/lib/libnvshmem_host.so"
	ln -s "$NVSHMEM"/lib/libnvshmem_device.a "$work/lib/"
	ln -s "$NCCL"/lib/libnccl.so.2 "$work/lib/libnccl.so"
	gpus=$(nvidia-smi -L | grep -c '^GPU')
}

# Ranks that share a GPU take turns of milliseconds, unless their kernels run side by side, as under MPS (SIGMATRACE_MPS=0: without it).
begin_mps() {
	[ "${SIGMATRACE_MPS:-1}" = 1 ] || return 0
	export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps
	mkdir -p "$work/mps"
	nvidia-cuda-mps-control -d || { echo "FAIL mps: the control daemon does not start"; exit 1; }
	trap 'end_mps; rm -rf "$work"' EXIT
}

end_mps() {
	[ -n "${CUDA_MPS_PIPE_DIRECTORY:-}" ] || return 0
	echo quit | nvidia-cuda-mps-control
	unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}

# share RANKS: the variable that gives each of so many ranks its part of a GPU: without it NVSHMEM's barriers go by the processor where ranks share one.
share() { echo "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=$((100 / (($1 + gpus - 1) / gpus)))"; }

# compile NAME OPTION...: starts to compile NAME.cu; compiled waits for all.
compile() {
	local name=$1
	shift
	nvcc -O2 -std=c++17 -gencode=arch=compute_90,code=sm_90 -o "$work/$name" "$here/$name.cu" -L"$work/lib" "$@" >"$work/$name.nvcc" 2>&1 &
	compiling+=("$work/$name")
}

compiled() {
	local program
	wait
	for program in "${compiling[@]}"; do [ -x "$program" ] || return 1; done
}
