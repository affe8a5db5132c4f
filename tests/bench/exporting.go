package main

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// exporting runs the Go benchmarks of the exports, in turn, and puts their medians into lines. Rates are by processor time: exports
// use as many cores as there are.
func exporting(b *bench) error {
	benchmarks := []struct{ program, pattern string }{
		{"parquet", "^BenchmarkWrite$"}, {"parquet", "^BenchmarkWriterAlone$"}, {"perfetto", "^BenchmarkWrite$/^j1$"}, {"chromejson", "^BenchmarkWrite$"},
	}
	for _, p := range []string{"parquet", "perfetto", "chromejson"} {
		if _, err := b.command(nil, "scripts/go.sh", "test", "-c", "-o", filepath.Join(b.dir, p+".test"), "./merge/"+p); err != nil {
			return err
		}
	}
	rates, sizes := map[string][]float64{}, map[string][]float64{}
	for range 3 {
		for _, c := range benchmarks {
			out, err := b.command(nil, filepath.Join(b.dir, c.program+".test"), "-test.run", "^$", "-test.bench", c.pattern)
			if err != nil {
				return err
			}
			for _, m := range benchLine.FindAllStringSubmatch(out, -1) {
				name := c.program + " " + m[1]
				fields := strings.Fields(m[3])
				for i := 1; i < len(fields); i += 2 {
					v, err := strconv.ParseFloat(fields[i-1], 64)
					if err != nil {
						return fmt.Errorf("reading %q: %w", m[0], err)
					}
					switch fields[i] {
					case "Mrow/cpu-s", "Mop/cpu-s":
						rates[name] = append(rates[name], v)
					case "B/row", "B/slice":
						sizes[name] = append(sizes[name], v)
					}
				}
			}
		}
	}
	for _, name := range []string{"parquet Write", "parquet WriterAlone", "perfetto Write/j1", "chromejson Write"} {
		if len(rates[name]) == 0 {
			return fmt.Errorf("no figure for the benchmark %s", name)
		}
	}
	command := "go test -bench Write ./merge/"
	b.print("parquet_rate", median(rates["parquet Write"]), "Mrows/cpu-s", median(rates["parquet WriterAlone"]), "parquet-go alone, on rows that are there", command+"parquet")
	b.print("parquet_size", median(sizes["parquet Write"]), "B/row", -1, "", command+"parquet")
	b.print("perfetto_rate", median(rates["perfetto Write/j1"]), "Moperations/cpu-s", median(rates["chromejson Write"]), "the same as JSON, which is not compressed", command+"perfetto")
	b.print("perfetto_size", median(sizes["perfetto Write/j1"]), "B/slice", -1, "", command+"perfetto")
	return nil
}
