#!/bin/bash
# The Slurm plugin on other releases of Slurm than this system's: clusters in roots of Debian 13 and of Debian's unstable, with the plugin and the MPI
# clients built there. The sigmatrace command and the recorder are those built here.
# runner: limit=35m
. "$(dirname "$0")/../lib.sh"
trap 'scripts/cluster down >&2' EXIT
set -o pipefail

# on NAME TESTS: brings a cluster up in the root and runs those tests on it.
on() {
	local name=$1 status=0
	export SIGMATRACE_CLUSTER=$B/roots/$name.cluster SIGMATRACE_CLUSTER_ROOT=$B/roots/slurm-$name SIGMATRACE_CLUSTER_BUILT=$B/roots/slurm-$name.built
	tests/roots/slurm.sh "$name" >"$TMP/$name" 2>&1 || status=$?
	sed 's/^/    /' "$TMP/$name" >&2
	if [ $status = 3 ] && [ "$name" = unstable ]; then
		skip "$name/root" "its packages cannot be installed together at present: $(grep -E '^(E: |.*Depends:)' "$TMP/$name" | sed -n '1,2p' | xargs)"
		return
	fi
	equal "$name/root" "status $status" "status 0"
	[ $status = 0 ] || return
	cat "$SIGMATRACE_CLUSTER_ROOT/versions" >&2
	check "$name-up" scripts/cluster up
	scripts/go.sh test -count=1 -timeout 10m -tags slurm,release -run "$2" -json ./tests/slurm | "$B/tests/runner" gotest | sed -E "s!^(ok|FAIL|SKIP) !\1 $name/!" || failed=1
	check "$name-down" scripts/cluster down
}

check vet scripts/go.sh vet -tags slurm,release ./tests/slurm
core='^Test(Release.*|MpirunInABatchScript|Export|FormsOfAsking|PrecedenceOfAStepInAJob|Refusal|NothingHappensUnasked|F17PreloadIsPrepended|F16.*|KillSwitch'
core="$core|JobOfSlurmrestd.*|InteractiveStep|ProfileTravels|ScriptThatIsCancelled|PluginThatCannotBeLoaded|NodesTrustNothing|OtherStepsAreLeftAlone|StatusOfAStep"
on debian13 "$core|HeterogeneousStep|Array|Salloc|WhatEndsAStep)\$"
on unstable "$core)\$" # Debian's own has no PMIx
finish
