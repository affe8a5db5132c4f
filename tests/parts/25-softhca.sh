#!/bin/bash
# The software RDMA device by itself: Debian's own verbs programs, UCX and Open MPI on it give right results and exact counts.
# runner: limit=15m
. "$(dirname "$0")/../lib.sh"
tests/softhca/setup.sh >&2
tests/softhca/test.sh || failed=1
tests/softhca/test-mlx5.sh || failed=1
tests/softhca/test-hosts.sh || failed=1
check sanitizers make -s softhca-asan
finish
