# shellcheck shell=bash
# Sourced by the parts: . "$(dirname "$0")/../lib.sh". The runner sets B (absolute build folder) and TMP (a scratch
# folder of the part's own, empty at its start and kept after it).
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
: "${B:=$PWD/build}"
: "${TMP:=$B/test-tmp/by-hand}"
mkdir -p "$TMP"
export B TMP
failed=0

ok() { echo "ok $1"; }
fail() { echo "FAIL $1: $2"; failed=1; }
skip() { echo "SKIP $1: $2"; }

# check NAME COMMAND...: ok when COMMAND succeeds, else a failure that names the command. Its output goes to the log.
check() {
	local name=$1 rc=0
	shift
	"$@" >"$TMP/out.$name" 2>&1 || rc=$?
	sed 's/^/    /' "$TMP/out.$name" >&2
	if [ $rc = 0 ]; then ok "$name"; else fail "$name" "exit status $rc of: $*"; fi
}

# equal NAME GOT WANT
equal() { if [ "$2" = "$3" ]; then ok "$1"; else fail "$1" "got $2, want $3"; fi; }

# listening PORT: waits until a server listens there, 60 s at most.
listening() {
	local i
	for i in $(seq 600); do
		[ -z "$(ss -Hltn "sport = :$1")" ] || return 0
		sleep 0.1
	done
	echo "nothing listens on port $1" >&2
	return 1
}

# run_mpi RANKS ARGS...: Open MPI over UCX on this machine. UCX_TLS chooses the transport, shared memory and tcp without it.
run_mpi() {
	local ranks=$1
	shift
	OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 120 mpirun --oversubscribe -np "$ranks" \
		--mca plm isolated --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any --mca btl ^openib \
		--mca osc ucx -x UCX_TLS="${UCX_TLS:-posix,sysv,self,tcp}" "$@"
}

# The last line of a part: finish. It makes the exit status agree with what was reported.
finish() { exit $failed; }
