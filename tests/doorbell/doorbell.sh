#!/bin/sh
# Runs a case of bell_check (stream, or the one named) under the recorder: doorbell.sh BELL [CASE [OPTIONS OF LAUNCH...]]. Prints what the run says and what the adapter counted.
set -eu
build=$(cd "$(dirname "$0")/../../build" && pwd)
bell=$1
name=${2:-stream}
shift
[ $# -eq 0 ] || shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
BELL=$bell SOFTHCA_DEVX=1 SOFTHCA_SHM=$dir/hca SOFTHCA_STATS=$dir/stats LD_LIBRARY_PATH=$build/softhca:$build/standin \
    "$build/bin/sigmatrace" launch -p simple --set providers=ibverbs,cuda "$@" -o "$dir/run" -- "$build/softhca/bell_check" "$name" 2>/dev/null
"$build/bin/sigmatrace" info "$dir/run" | grep -E 'doorbell|lost|exact' || true
grep -o '"requests":{[^}]*}' "$dir/stats"
