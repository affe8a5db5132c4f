#!/bin/bash
# The Slurm plugin on a cluster of four nodes that is brought up for it, and taken down: scripts/cluster.
# runner: limit=28m
. "$(dirname "$0")/../lib.sh"
export SIGMATRACE_CLUSTER=$B/cluster-test
trap 'scripts/cluster down >&2' EXIT

# What the cluster's namespaces might leave in this one; other parts mount and make links of their own meanwhile.
left_over() { ip -o link | awk '$2 ~ /^(br0|v[0-9]+)[:@]/ { print $2 }'; findmnt -rno TARGET | grep -F "$SIGMATRACE_CLUSTER"; }
before=$(left_over)
check up scripts/cluster up
check status scripts/cluster status
if scripts/cluster up 2>"$TMP/second" || ! grep -q "^sigmatrace: error: a cluster is up in $SIGMATRACE_CLUSTER\$" "$TMP/second"; then
	fail second-is-refused "$(cat "$TMP/second")"
else
	ok second-is-refused
fi
equal nodes "$(scripts/cluster run srun -N4 hostname | sort | xargs)" "n1 n2 n3 n4"
check vet scripts/go.sh vet -tags slurm ./tests/slurm
set -o pipefail
scripts/go.sh test -count=1 -timeout 24m -parallel 6 -tags slurm -json ./tests/slurm | "$B/tests/runner" gotest || failed=1
ours=$(pgrep -f "$SIGMATRACE_CLUSTER" || true)
check down scripts/cluster down
for i in $(seq 300); do # the kernel ends processes a moment after their first
	left=$(for p in $ours; do [ ! -d "/proc/$p" ] || ! tr '\0' ' ' <"/proc/$p/cmdline" | grep -c "$SIGMATRACE_CLUSTER" >/dev/null || echo "$p"; done)
	[ -n "$left" ] || break
	sleep 0.1
done
equal nothing-left "$(left_over)$left" "$before"
finish
