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

# The last line of a part: finish. It makes the exit status agree with what was reported.
finish() { exit $failed; }
