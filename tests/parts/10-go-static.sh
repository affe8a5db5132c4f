#!/bin/bash
# What tools can see without running the code: gofmt, go vet, staticcheck; and a trap of shell scripts.
# runner: limit=10m
. "$(dirname "$0")/../lib.sh"
go=scripts/go.sh

gofmt="$($go env GOROOT)/bin/gofmt"
mapfile -t files < <(find . -path ./build -prune -o -name '*.go' -print)
equal gofmt "$("$gofmt" -l "${files[@]}")" ""
check vet $go vet ./...
check staticcheck $go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...
# With pipefail a command whose reader has seen enough fails now and then, of SIGPIPE: `a | grep -q b` is then false though b is there.
mapfile -t scripts < <(grep -rlIE --exclude-dir=build --exclude-dir=.git '^set -[a-z]*o pipefail' .)
check scripts [ ${#scripts[@]} -gt 5 ]
equal pipefail "$(grep -nE '\| *(grep +(-[a-zA-Z]+ +)*-[a-zA-Z]*q|head )' -- "${scripts[@]}")" ""
finish
