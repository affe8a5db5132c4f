#!/bin/bash
# Real verbs programs over the kernel's soft-RoCE, in virtual machines: one, then two connected ones.
# runner: alone limit=25m
. "$(dirname "$0")/../lib.sh"
# Each prints result lines of its own.
tests/vm/run.sh one tests/vm/guest/verbs.sh || failed=1
tests/vm/run.sh one tests/vm/guest/layers.sh || failed=1
tests/vm/run.sh two tests/vm/guest/two.sh || failed=1
finish
