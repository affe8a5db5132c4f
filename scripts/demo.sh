#!/bin/bash
# What `make demo` does: installs what it needs and builds.
set -eu
cd "$(dirname "$0")/.."
scripts/deps.sh build demo
make all
