#!/bin/bash
# Puts DuckDB (MIT licence) into build/duckdb/ and prints that folder. It comes in an npm package, pinned by its checksum. Does nothing
# when it is there.
set -eu
cd "$(dirname "$0")/../.."
out=$(realpath -m "${B:-build}")/duckdb
package=@duckdb/node-bindings-linux-x64 version=1.4.4-r.1
tgz_sum=8ac460b152cd05a95065a414879bb09e40534b1fb7a80a7afe6969b6ce039029
lib_sum=1ef33048e12235115ac0d277a0aaccbb560e33248144f488b5ac005cd9ba81b5

verify() { echo "$1  $2" | sha256sum --check --status; }

mkdir -p "$out"
exec 9>"$out/.lock"
flock 9
if ! verify $lib_sum "$out/libduckdb.so" 2>/dev/null; then
	work=$(mktemp -d "$out/fetch.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	(cd "$work" && npm pack --ignore-scripts --silent "$package@$version" >/dev/null)
	verify $tgz_sum "$work"/*.tgz || { echo "sigmatrace: error: $package@$version: the archive has another checksum" >&2; exit 1; }
	tar -xzf "$work"/*.tgz -C "$work"
	mv "$work/package/duckdb.node" "$out/duckdb.node"
	mv "$work/package/libduckdb.so" "$out/libduckdb.so"
fi
echo "$out"
