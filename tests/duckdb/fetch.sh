#!/bin/bash
# Puts DuckDB (MIT licence) into build/duckdb/ and prints that folder.
exec "$(dirname "$0")/../npm/fetch.sh" duckdb @duckdb/node-bindings-linux-x64@1.4.4-r.1 8ac460b152cd05a95065a414879bb09e40534b1fb7a80a7afe6969b6ce039029 \
	1ef33048e12235115ac0d277a0aaccbb560e33248144f488b5ac005cd9ba81b5 duckdb.node libduckdb.so
