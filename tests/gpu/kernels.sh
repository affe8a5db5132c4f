#!/bin/bash
# Times of kernels by the real CUPTI on a machine with an NVIDIA GPU: kernels.sh BUILD [CUPTI]
# BUILD: a build of ours (build/), CUPTI: the folder of libcupti.so.13 (the compiler's). Needs nvcc and python3; no root. Prints ok and FAIL lines, and what a launch costs
# without the recorder, and with gpu.kernels off, launches and times; exit 1 when something failed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
toolkit=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
cupti=${2:-$toolkit/targets/$(uname -m)-linux/lib}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
export LD_LIBRARY_PATH=$cupti${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

for runtime in static shared; do
	nvcc -O2 -std=c++17 -gencode=arch=compute_90,code=sm_90 -cudart $runtime -rdc=true -o "$work/$runtime" "$here/kernels.cu" || exit 1
done
"$work/static" | grep '^{' | sed 's/^{/{"recorder":"none",/'
for kernels in off launches times; do
	for runtime in static shared; do
		[ $runtime = shared ] && [ $kernels != times ] && continue
		run=$work/run-$kernels-$runtime
		if ! "$build/bin/sigmatrace" launch -p full --set providers=cuda --set gpu.kernels=$kernels --set merge.exports=json -o "$run" -- "$work/$runtime" >"$work/out" 2>"$work/log"; then
			echo "FAIL $kernels-$runtime: $(tail -n 3 "$work/log" | tr '\n' ';')"
			failed=1
			continue
		fi
		grep '^{' "$work/out" | sed "s/^{/{\"recorder\":\"$kernels\",\"runtime\":\"$runtime\",/"
		# 60 kernels by themselves, 5 launches of a graph of two, 20,000 of nothing
		[ $kernels = times ] && { python3 "$here/kernels.py" "$run" "$work/out" 20060 5 20070 | sed "s/^\(ok\|FAIL\)/\1 $runtime:/"; [ "${PIPESTATUS[0]}" -eq 0 ] || failed=1; }
	done
done
exit $failed
