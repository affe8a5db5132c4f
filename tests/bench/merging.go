package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

var benchLine = regexp.MustCompile(`(?m)^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+([\d.]+) ns/op(.*)$`)

// merging runs the Go benchmarks of reader and merger and puts their figures into lines.
func merging(b *bench) error {
	command := []string{"scripts/go.sh", "test", "-run", "^$", "-bench", "Decode|Merge", "-benchmem", "-count", "3", "./merge/capture", "./merge/order"}
	out, err := b.command(nil, command...)
	if err != nil {
		return err
	}
	rates, allocs := map[string][]float64{}, map[string][]float64{}
	for _, m := range benchLine.FindAllStringSubmatch(out, -1) {
		fields := strings.Fields(m[3])
		for i := 1; i < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i-1], 64)
			if err != nil {
				continue
			}
			switch fields[i] {
			case "Mev/s", "Mrecords/s":
				rates[m[1]] = append(rates[m[1]], v)
			case "allocs/op":
				allocs[m[1]] = append(allocs[m[1]], v)
			}
		}
	}
	shown := strings.Join(command, " ")
	for _, name := range []string{"DecodeVerbs", "DecodeUcp"} {
		if len(rates[name]) == 0 || len(allocs[name]) == 0 {
			return fmt.Errorf("no figure for Benchmark%s in:\n%s", name, out)
		}
		b.print("reader_rate_"+name, median(rates[name]), "Mevents/s", -1, "", shown)
		b.print("reader_allocations_"+name, median(allocs[name]), "allocations/run", -1, "", shown)
	}
	heap, window := rates["MergeHeap"], rates["Merge"]
	if len(heap) == 0 || len(window) == 0 {
		return fmt.Errorf("no figures for BenchmarkMerge in:\n%s", out)
	}
	b.print("merge_rate_64_captures", median(window), "Mevents/s", median(heap), "container/heap", shown)
	return nil
}
