#!/bin/bash
# Provider ibverbs over the kernel's soft-RoCE, in a virtual machine.
# runner: alone limit=8m
. "$(dirname "$0")/../lib.sh"
tests/vm/run.sh one tests/vm/guest/ibverbs.sh || failed=1
finish
