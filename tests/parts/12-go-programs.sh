#!/bin/bash
# The Go tests that run programs (tests/...), and what the race detector would distort: these packages hardly run Go code of ours in
# their own process.
# runner: limit=45m
. "$(dirname "$0")/../lib.sh"
set -o pipefail
tests/softhca/setup.sh >&2
{
	scripts/go.sh test -json -timeout 25m ./tests/...
	rc=$?
	scripts/go.sh test -json -run '^TestF65Memory' ./merge || rc=$?
	exit $rc
} | "$B/tests/runner" gotest
exit $?
