#!/bin/bash
# Doorbells of kernels, as many as there may be in a long job: millions, on the stand-in CUDA driver and the software RDMA device.
# runner: alone limit=30m
. "$(dirname "$0")/../lib.sh"
check vet scripts/go.sh vet -tags full ./tests/doorbell
set -o pipefail
scripts/go.sh test -count=1 -timeout 28m -tags full -run '^TestFullCounts$' -json ./tests/doorbell | "$B/tests/runner" gotest || failed=1
finish
