#!/bin/bash
# Other generations of the libraries and of glibc: programs of Debian 11 and Debian 13 in roots of theirs, under the recorder built here.
# runner: limit=20m
. "$(dirname "$0")/../lib.sh"
set -o pipefail
check vet scripts/go.sh vet -tags roots ./tests/roots
scripts/go.sh test -count=1 -tags roots -json ./tests/roots | "$B/tests/runner" gotest || failed=1
finish
