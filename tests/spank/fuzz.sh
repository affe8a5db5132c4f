#!/bin/bash
# Builds one of the fuzz targets of the Slurm plugin, site, options, step, job or node, in a folder, and runs it there over its committed inputs:
#   tests/spank/fuzz.sh TARGET FOLDER [OPTION OF LIBFUZZER...]
# What it finds on the way stays in FOLDER/corpus-TARGET, an input at which something breaks becomes FOLDER/TARGET-*.
set -eu
cd "$(dirname "$0")/fuzz"
target=$1 folder=$2
shift 2
sources=(../../../spank/*.c)
case $target in
options) wrap=,--wrap=sm_resolve,--wrap=sm_command_line ;;
job) wrap=,--wrap=sm_run ;;
node)
	wrap=,--wrap=sm_run,--wrap=sm_as_user,--wrap=_exit
	sources=("${sources[@]/#*\/remote.c/}") # a part of node.c
	;;
*) wrap= ;;
esac
mkdir -p "$folder/corpus-$target"
# shellcheck disable=SC2068 # without the place of remote.c
clang -std=gnu11 -Wall -Wextra -Werror -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I../../../spank \
	-o "$folder/fuzz-$target" "$target.c" slurm.c ${sources[@]} "-Wl,--wrap=sm_say$wrap"
TMPDIR=$folder exec "$folder/fuzz-$target" -artifact_prefix="$folder/$target-" -max_len=40000 -len_control=0 -timeout=20 "$@" "$folder/corpus-$target" "corpus/$target"
