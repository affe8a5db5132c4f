package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

var benchLine = regexp.MustCompile(`(?m)^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+([\d.]+) ns/op(.*)$`)

// merging runs the Go benchmarks of reader and ordered merge, in turn, and puts their medians into lines.
func merging(b *bench) error {
	rates, allocs := map[string][]float64{}, map[string][]float64{}
	for _, p := range []string{"capture", "order"} {
		if _, err := b.command(nil, "scripts/go.sh", "test", "-c", "-o", filepath.Join(b.dir, p+".test"), "./merge/"+p); err != nil {
			return err
		}
	}
	for range 5 {
		for _, c := range []struct{ program, pattern string }{{"capture", "^BenchmarkDecode(Verbs|Ucp)$"}, {"order", "^BenchmarkMerge(Heap)?$"}} {
			out, err := b.command(nil, filepath.Join(b.dir, c.program+".test"), "-test.run", "^$", "-test.bench", c.pattern, "-test.benchmem")
			if err != nil {
				return err
			}
			if err := figures(out, rates, allocs); err != nil {
				return err
			}
		}
	}
	for _, name := range []string{"DecodeVerbs", "DecodeUcp", "Merge", "MergeHeap"} {
		if len(rates[name]) == 0 {
			return fmt.Errorf("no figure for Benchmark%s", name)
		}
	}
	for _, name := range []string{"DecodeVerbs", "DecodeUcp"} {
		command := "go test -bench " + name + " ./merge/capture"
		b.print("reader_rate_"+name, median(rates[name]), "Mevents/s", -1, "", command)
		b.print("reader_allocations_"+name, median(allocs[name]), "allocations/run", -1, "", command)
	}
	b.print("merge_rate_64_captures", median(rates["Merge"]), "Mevents/s", median(rates["MergeHeap"]), "container/heap", "go test -bench Merge ./merge/order")
	return nil
}

// figures adds what a run of Go benchmarks printed.
func figures(out string, rates, allocs map[string][]float64) error {
	for _, m := range benchLine.FindAllStringSubmatch(out, -1) {
		fields := strings.Fields(m[3])
		for i := 1; i < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i-1], 64)
			if err != nil {
				return fmt.Errorf("reading %q: %w", m[0], err)
			}
			switch fields[i] {
			case "Mev/s", "Mrecords/s":
				rates[m[1]] = append(rates[m[1]], v)
			case "allocs/op":
				allocs[m[1]] = append(allocs[m[1]], v)
			}
		}
	}
	return nil
}
