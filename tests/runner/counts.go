package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
)

// sumCounts adds up what counting preloads and clients wrote, {"put":{"count":1,"bytes":8}} a file, and prints
// "OPERATION COUNT BYTES" lines in the order of the names. No file at all is an error: nothing was counted.
func sumCounts(out io.Writer, files []string) error {
	if len(files) == 0 {
		return fmt.Errorf("no file of counts given")
	}
	type counts struct{ Count, Bytes uint64 }
	sums := map[string]counts{}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("read counts: %w", err)
		}
		var ops map[string]counts
		if err := json.Unmarshal(data, &ops); err != nil {
			return fmt.Errorf("counts in %s: %w", name, err)
		}
		for op, c := range ops {
			sums[op] = counts{sums[op].Count + c.Count, sums[op].Bytes + c.Bytes}
		}
	}
	for _, op := range slices.Sorted(maps.Keys(sums)) {
		fmt.Fprintf(out, "%s %d %d\n", op, sums[op].Count, sums[op].Bytes)
	}
	return nil
}
