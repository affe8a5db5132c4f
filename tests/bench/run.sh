#!/bin/sh
# The project's numbers as JSON lines; arguments choose groups: recording hooks bytes merge export.
set -eu
cd "$(dirname "$0")/../.."
exec scripts/go.sh run ./tests/bench "$@"
