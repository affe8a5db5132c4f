#!/bin/bash
# Every Go test: with the race detector, or short and without it for the quick run.
# runner: quick limit=30m
. "$(dirname "$0")/../lib.sh"
if [ -n "${SIGMATRACE_TEST_QUICK:-}" ]; then flags=(-short); else flags=(-race); fi
set -o pipefail
scripts/go.sh test -json "${flags[@]}" ./... | "$B/tests/runner" gotest
rc=$?
# One failed test fails `go test`; the runner has already printed which.
exit $rc
