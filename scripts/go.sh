#!/bin/sh
# Runs the Go command that fits go.mod: `scripts/go.sh build ./...`. `scripts/go.sh --find` prints its path only.
# The go on PATH is taken when it is new enough; else any Go of 1.21 or newer, told to fetch through the module
# proxy the toolchain that go.mod names (Debian's Go is configured not to do that by itself).
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
want=$(awk '$1 == "go" { print $2; exit }' "$top/go.mod")

# minor GOCOMMAND: 26 for go1.26.8; nothing when it does not run. Outside a module, so that no go.mod changes the answer.
minor() { (cd / && GOTOOLCHAIN=local "$1" version 2>/dev/null) | sed -n 's/^go version go1\.\([0-9]*\).*/\1/p'; }

need=$(echo "$want" | cut -d. -f2)
found='' fetch=''
for g in "$(command -v go || true)" $(ls -d /usr/lib/go-1.*/bin/go 2>/dev/null | sort -Vr) /usr/local/go/bin/go; do
	[ -n "$g" ] && [ -x "$g" ] || continue
	m=$(minor "$g")
	[ -n "$m" ] || continue
	if [ "$m" -ge "$need" ]; then found=$g; break; fi
	if [ "$m" -ge 21 ] && [ -z "$fetch" ]; then fetch=$g; fi
done
if [ -z "$found" ]; then
	if [ -z "$fetch" ]; then
		echo "sigmatrace: error: no Go of 1.21 or newer was found" >&2
		echo "sigmatrace: hint: run scripts/deps.sh build" >&2
		exit 1
	fi
	found=$fetch
	export GOTOOLCHAIN="go$want"
fi
[ "${1:-}" != --find ] || { echo "$found"; exit 0; }
exec "$found" "$@"
