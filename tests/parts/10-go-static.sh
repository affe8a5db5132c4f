#!/bin/bash
# What tools can see in the Go code without running it: gofmt, go vet, staticcheck.
# runner: limit=10m
. "$(dirname "$0")/../lib.sh"
go=scripts/go.sh

gofmt="$($go env GOROOT)/bin/gofmt"
mapfile -t files < <(find . -path ./build -prune -o -name '*.go' -print)
equal gofmt "$("$gofmt" -l "${files[@]}")" ""
check vet $go vet ./...
check staticcheck $go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...
finish
