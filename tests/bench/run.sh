#!/bin/sh
# The project's numbers as JSON lines; arguments choose groups (README.md).
set -eu
cd "$(dirname "$0")/../.."
exec scripts/go.sh run ./tests/bench "$@"
