#!/bin/bash
# What calibrate says of clocks beside Debian's ptp4l, chronyd and ntpd, in network namespaces and without the right to set this machine's clock.
# runner: limit=10m
. "$(dirname "$0")/../lib.sh"
if ! tests/clock/build.sh >/dev/null; then
	skip daemons "ptp4l, chronyd and ntpd cannot be fetched here, see the log"
	finish
fi
check vet scripts/go.sh vet -tags clock ./tests/clock
set -o pipefail
scripts/go.sh test -count=1 -timeout 9m -tags clock -json ./tests/clock | "$B/tests/runner" gotest || failed=1
finish
