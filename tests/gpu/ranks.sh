#!/bin/bash
# Runs a command as so many ranks of one job on this machine, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT: ranks.sh N SECONDS LOG COMMAND...
# What rank R prints goes to LOG.R; the status is the first rank's that is not 0. CRASH: a preload that shows where a rank is when it dies or its time is over.
set -u
n=$1 seconds=$2 log=$3
shift 3
export WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 10000))
pids=() status=0
for ((r = 0; r < n; r++)); do
	RANK=$r timeout -k 20 "$seconds" env LD_PRELOAD="${CRASH:-}${LD_PRELOAD:+:$LD_PRELOAD}" "$@" >"$log.$r" 2>&1 &
	pids+=($!)
done
for p in "${pids[@]}"; do
	wait "$p" || { s=$?; [ $status -ne 0 ] || status=$s; }
done
exit $status
