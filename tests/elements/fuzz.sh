#!/bin/bash
# Builds the fuzz target of the work queue elements in a folder, and runs it there over its committed inputs:
#   tests/elements/fuzz.sh FOLDER [OPTION OF LIBFUZZER...]
# What it finds on the way stays in FOLDER/corpus-element, an input at which something breaks becomes FOLDER/element-*.
set -eu
cd "$(dirname "$0")"
folder=$1
shift
mkdir -p "$folder/corpus-element"
clang -std=gnu11 -Wall -Wextra -Werror -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I../../preload \
	-o "$folder/fuzz-element" fuzz/element.c ../../preload/decode.c ../../preload/decode_mlx5.c ../../preload/decode_efa.c
exec "$folder/fuzz-element" -artifact_prefix="$folder/element-" -max_len=8196 -len_control=0 -timeout=20 "$@" "$folder/corpus-element" fuzz/corpus
