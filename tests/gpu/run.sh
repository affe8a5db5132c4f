#!/bin/bash
# Real libraries on a machine with NVIDIA GPUs, over the software HCA: run.sh LIBRARIES RESULTS [CASE...]
# LIBRARIES: where libibverbs.so.1 and libmlx5.so.1 of the software HCA are, RESULTS: an empty folder for logs. As root, with CUDA's compiler, and PyTorch's packages of
# NVSHMEM and NCCL; RECORDER: a build of ours to record with. Prints `ok CASE` or `FAIL CASE: why`; exit 1 when one failed, 2 when nothing can run here. A CASE
# names all that begin with it. README.md has what each case is.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/machine.sh"
[ $# -ge 2 ] || cannot "usage: run.sh LIBRARIES RESULTS [CASE...]"
machine "$1"
results=$(cd "$2" && pwd) || cannot "there is no folder $2"
shift 2
words=("$@")
started=()
jobs=${JOBS:-1} # more than one slow each other down: a rank has two or three threads that spin, and ranks that share a GPU wait for each other's kernels
network=(NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_SOCKET_IFNAME=lo)
ibgda=(NVSHMEM_DISABLE_P2P=1 NVSHMEM_IB_ENABLE_IBGDA=1 NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=lo)

wanted() {
	[ ${#words[@]} -eq 0 ] && return 0
	for w in "${words[@]}"; do [[ $1 == "$w"* ]] && return 0; done
	return 1
}

# one NAME MODE RANKS SECONDS CHECK [VARIABLE=VALUE...] -- COMMAND...: a job over the software HCA; MODE `none` is without the recorder, FILE the file that its ranks share
one() {
	local name=$1 mode=$2 ranks=$3 seconds=$4 check=$5 status prefix=() environment=() command=()
	shift 5
	while [ "$1" != -- ]; do environment+=("$1") && shift; done
	shift
	for word in "$@"; do
		[ "$word" != FILE ] || word=$work/$name.id
		command+=("$word")
	done
	[ "$mode" = none ] || prefix=("$RECORDER/bin/sigmatrace" launch -p "$mode" --set "providers=$providers" -o "$work/run-$name" --)
	SECONDS=0
	env "${environment[@]}" SOFTHCA_SHM="$work/segment-$name" SOFTHCA_STATS="$results/$name.stats" ISSUED="$results/$name.issued" \
		"$here/with-hca.sh" "$libraries" ${prefix[@]+"${prefix[@]}"} "$here/ranks.sh" "$ranks" "$seconds" "$results/$name" "${command[@]}" >"$results/$name.launch" 2>&1
	status=$?
	if [ $status -eq 0 ] && ! cat "$results/$name".[0-9]* | grep -q '^FAIL'; then
		echo "ok $name ($(cat "$results/$name".[0-9]* | grep -c '^ok') checks, $SECONDS s)"
	else
		echo "FAIL $name: status $status: $(cat "$results/$name".[0-9]* 2>&1 | grep '^FAIL\|^crash: ' | head -3 | tr '\n' ';') $(tail -qn 2 "$results/$name".[0-9]* "$results/$name.launch" 2>&1 | tr '\n' ';')"
	fi
	[ "$mode" != none ] && [ $status -eq 0 ] || return 0
	if $check "$name" >"$results/$name.seen" 2>&1; then
		echo "ok $name-seen ($(tail -n 1 "$results/$name.seen"))"
	else
		echo "FAIL $name-seen: $(head -n 5 "$results/$name.seen" | tr '\n' ';')"
		cp -r "$work/run-$name/capture" "$results/$name.capture"
	fi
	"$RECORDER/bin/sigmatrace" info --json "$work/run-$name" >"$results/$name.info"
	[[ $name != bfs*-full ]] || cp "$work/run-$name/trace.pftrace" "$results/$name.pftrace"
}

# What checks a run: layer verbs with the adapter's counts, all of it with them, and with the kernels' own counts as well.
calls() { "$RECORDER/bin/sigmatrace" info --json "$work/run-$1" >"$work/$1.info" && python3 "$here/compare.py" "$results/$1.stats" "$work/$1.info"; }
elements() { python3 "$here/issued.py" "$RECORDER/bin/sigmatrace" "$work/run-$1" "$results/$1.stats"; }
kernels() { python3 "$here/issued.py" "$RECORDER/bin/sigmatrace" "$work/run-$1" "$results/$1.stats" "$results/$1.issued"; }

# A job beside others, as many at once as there are processors for.
start() {
	wanted "$1" || return 0
	while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
	started+=("$1")
	one "$@" >"$work/$1.result" &
}

# all NAME RANKS SECONDS CHECK ...: without the recorder, and with it in each mode
all() {
	local name=$1
	shift
	start "$name" none "$@"
	[ -n "${RECORDER:-}" ] || return 0
	for mode in aggregate simple full; do start "$name-$mode" $mode "$@"; done
}

# What the jobs printed; a recorded one's checks are those of the one that was not recorded.
finished() {
	local name plain
	wait
	for name in "${started[@]}"; do
		cat "$work/$name.result"
		plain=${name%-*}
		[ -e "$work/run-$name" ] && [ -e "$work/$plain.result" ] || continue
		for log in "$results/$plain".[0-9]*; do
			diff <(grep '^ok' "$log") <(grep '^ok' "$results/$name.${log##*.}") >/dev/null || echo "FAIL $name: other results than $plain: rank ${log##*.}"
		done
	done >"$work/all"
	cat "$work/all"
	! grep -q '^FAIL' "$work/all"
}

begin_mps
compile nvshmem -rdc=true -I"$NVSHMEM/include" -lnvshmem_device -lnvshmem_host
compile bfs -rdc=true -I"$NVSHMEM/include" -lnvshmem_device -lnvshmem_host
compile gin -I"$NCCL/include" -lnccl
compiled || { echo "FAIL build: $(cat "$work"/*.nvcc | head -5 | tr '\n' ';')"; exit 1; }

nvshmem=("${ibgda[@]}" -- "$work/nvshmem" FILE)
all nvshmem-default 2 90 kernels "${nvshmem[@]}"
all nvshmem-hostmem 2 90 kernels NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE=hostmem "${nvshmem[@]}"
all nvshmem-dc 2 90 kernels NVSHMEM_IBGDA_NUM_RC_PER_PE=0 "${nvshmem[@]}"
all nvshmem-roce 2 90 kernels SOFTHCA_LINK=ethernet "${nvshmem[@]}"
all bfs 2 90 kernels "$(share 2)" "${ibgda[@]}" -- "$work/bfs" FILE 16 8
all bfs-dc 2 90 kernels "$(share 2)" NVSHMEM_IBGDA_NUM_RC_PER_PE=0 "${ibgda[@]}" -- "$work/bfs" FILE 16 8
all bfs-of-4 4 90 kernels "$(share 4)" "${ibgda[@]}" -- "$work/bfs" FILE 16 8
all gin 2 90 elements "${network[@]}" -- "$work/gin" FILE
all collectives 2 90 calls "${network[@]}" -- python3 "$here/collectives.py"
all collectives-gdr 2 90 calls "${network[@]}" NCCL_NET_GDR_LEVEL=SYS -- python3 "$here/collectives.py"
finished
failed=$?
end_mps # times of kernels are not to be had under it, and nccl.sh starts its own where it takes one
if [ -n "${RECORDER:-}" ]; then
	wanted kernels && { "$here/kernels.sh" "$RECORDER" || failed=1; }
	wanted nccl && { "$here/nccl.sh" "$libraries" "$results" 1 || failed=1; }
fi
exit $failed
