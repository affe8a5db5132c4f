#!/bin/bash
# Real programs over the kernel's soft-RoCE in virtual machines: one, two connected ones, one each with the libraries of Debian 13 and Debian 11;
# what they recorded is merged and checked here.
# runner: alone limit=30m
. "$(dirname "$0")/../lib.sh"
# Each prints result lines of its own.
tests/vm/run.sh one tests/vm/guest/one.sh || failed=1
tests/vm/run.sh two tests/vm/guest/two.sh || failed=1
tests/vm/run.sh two tests/vm/guest/clock.sh || failed=1
tests/vm/run.sh one tests/vm/guest/debian13.sh || failed=1
tests/vm/run.sh one tests/vm/guest/debian11.sh || failed=1
there=yes
for name in one two clock debian13 debian11; do [ -d "$B/vm/out/$name" ] || there=; done
if [ -n "$there" ]; then # else they were skipped, aloud
	check vet scripts/go.sh vet -tags vm ./tests/vm/check
	set -o pipefail
	scripts/go.sh test -count=1 -tags vm -json ./tests/vm/check | "$B/tests/runner" gotest || failed=1
fi
finish
