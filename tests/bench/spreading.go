package main

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// spreading measures what workers take off a merge, in processor time, which other work on the machine changes little.
func spreading(b *bench) error {
	program := filepath.Join(b.dir, "merge.test")
	if _, err := b.command(nil, "scripts/go.sh", "test", "-c", "-o", program, "./merge"); err != nil {
		return err
	}
	out, err := b.command(nil, program, "-test.run", "^$", "-test.bench", "^BenchmarkSpread$", "-test.benchtime", "3x")
	if err != nil {
		return err
	}
	seconds := map[string]float64{}
	for _, m := range benchLine.FindAllStringSubmatch(out, -1) {
		fields := strings.Fields(m[3])
		for i := 1; i < len(fields); i += 2 {
			if seconds[fields[i]], err = strconv.ParseFloat(fields[i-1], 64); err != nil {
				return fmt.Errorf("reading %q: %w", m[0], err)
			}
		}
	}
	alone, coordinator, workers := seconds["alone-cpu-s"], seconds["coordinator-cpu-s"], seconds["workers-cpu-s"]
	if alone == 0 || coordinator == 0 || workers == 0 {
		return fmt.Errorf("no figures in %q", out)
	}
	const command = "go test -bench Spread -benchtime 3x ./merge"
	b.print("merge_spread_coordinator", coordinator, "cpu-s", alone, "the merge alone: what the coordinator keeps bounds the gain from more nodes", command)
	b.print("merge_spread_all", coordinator+workers, "cpu-s", alone, "the merge alone", command)
	return nil
}
