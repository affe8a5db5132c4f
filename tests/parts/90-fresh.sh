#!/bin/bash
# A stranger's machine: in a newly made Debian 12 root, `make demo` and then `make test-quick` work with nothing prepared.
# runner: alone limit=30m
. "$(dirname "$0")/../lib.sh"
if [ -n "${SIGMATRACE_FRESH:-}" ]; then
	skip fresh "this is a newly made root already"
	finish
fi
check fresh tests/fresh.sh demo test-quick
finish
