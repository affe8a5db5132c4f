#!/bin/bash
# Ordered merge of 64 captures, by windows of time and radix, against container/heap over the same captures, in turns. Best rounds.
set -eu
cd "$(dirname "$0")/../.."
binary=$(mktemp)
trap 'rm -f "$binary"' EXIT
"${GO:-scripts/go.sh}" test -c -o "$binary" ./merge/order
best() { # BENCHMARK BEST-SO-FAR: the higher of that and of one round, in records/s
	GOMAXPROCS=1 "$binary" -test.run '^$' -test.bench "^$1\$" -test.benchtime 3x |
		awk -v best="$2" '/Mrecords/ { for (i = 2; i <= NF; i++) if ($i == "Mrecords/s" && $(i-1) * 1e6 > best) best = $(i-1) * 1e6 } END { printf "%.0f", best }'
}
merge=0 heap=0
for _ in 1 2 3 4 5; do
	merge=$(best BenchmarkMerge "$merge")
	heap=$(best BenchmarkMergeHeap "$heap")
done
awk -v a="$merge" -v b="$heap" 'BEGIN {
	printf "{\"name\":\"ordered merge of 64 captures\",\"value\":%d,\"unit\":\"records/s\",\"baseline\":%d,\"ratio\":%.2f,\"command\":\"tests/bench/merge.sh\"}\n", a, b, a / b
}'
