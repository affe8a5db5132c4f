#!/bin/bash
# The Go tests of the packages: with the race detector, or short and without it (and those of tests/ as well) for the quick run.
# runner: quick limit=30m
. "$(dirname "$0")/../lib.sh"
if [ -n "${SIGMATRACE_TEST_QUICK:-}" ]; then
	tests/softhca/setup.sh >&2 # some of tests/ run UCX over the software HCA
	flags=(-short)
	mapfile -t packages < <(scripts/go.sh list ./...)
else
	flags=(-race -timeout 25m)
	mapfile -t packages < <(scripts/go.sh list ./... | grep -v /sigmatrace/tests/)
fi
set -o pipefail
scripts/go.sh test -json "${flags[@]}" "${packages[@]}" | "$B/tests/runner" gotest
rc=$?
# One failed test fails `go test`; the runner has already printed which.
exit $rc
