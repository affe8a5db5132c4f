package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
)

// The estimate comes before anything is written, pieces go into a folder, and the status says that the run is incomplete.
func TestF71ExportSaysItsSizeAndSplits(t *testing.T) {
	path := recorded(t, true)
	status, stdout, stderr := sigmatrace("export", path)
	if status != 3 || stdout != "" || !strings.Contains(stderr, "sigmatrace: 5 operations: about ") || !strings.Contains(stderr, "incomplete: rank 0") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	status, _, stderr = sigmatrace("export", "--to", "1ns", "-o", filepath.Join(t.TempDir(), "nothing"), path)
	if status != 3 || !strings.Contains(stderr, "sigmatrace: 0 operations: ") || !strings.Contains(stderr, "; operations from ") {
		t.Errorf("status %d\n%s", status, stderr)
	}
	status, _, stderr = sigmatrace("export", "--split", "2", path)
	if status != 3 || !strings.Contains(stderr, "in 2 pieces of up to ") || !strings.HasSuffix(stderr, "written: "+filepath.Join(path, "trace")+"\n") {
		t.Errorf("status %d\n%s", status, stderr)
	}
	estimate, writing := strings.Index(stderr, "in 2 pieces"), strings.Index(stderr, "writing trace")
	if estimate < 0 || writing >= 0 && writing < estimate {
		t.Errorf("the estimate is not the first\n%s", stderr)
	}
	text, err := os.ReadFile(filepath.Join(path, "trace", "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var index merge.PiecesIndex
	if err := json.Unmarshal(text, &index); err != nil || len(index.Pieces) != 2 || index.Operations != 5 {
		t.Errorf("%v\n%s", err, text)
	}
	for _, name := range []string{"trace.000.pftrace", "trace.001.pftrace"} {
		if _, err := os.Stat(filepath.Join(path, "trace", name)); err != nil {
			t.Error(err)
		}
	}
	if status, _, stderr = sigmatrace("export", "--format", "parquet", "-o", filepath.Join(path, "tables"), path); status != 3 {
		t.Errorf("status %d\n%s", status, stderr)
	}
	if _, err := os.Stat(filepath.Join(path, "tables", "run.parquet")); err != nil {
		t.Error(err)
	}
}

// Times count from the first thing recorded, a clock pair here, or are dates. The five puts are 100 ns apart, from 900 ns on, for 10 ns.
func TestExportFromTo(t *testing.T) {
	path := recorded(t, false)
	out := filepath.Join(t.TempDir(), "x")
	for _, x := range []struct {
		args string
		want int64
	}{
		{"", 5}, {"--from 0s", 5}, {"--from 1us", 4}, {"--to 1us", 1}, {"--to 2562047h47m16s", 5}, {"--from 0.95us --to 1.1us", 1}, {"--ranks 0-3,7", 5},
		{"--from 2001-09-09T01:46:40.000001100Z", 3}, {"--from 1990-01-01T00:00:00+01:00 --to 2001-09-09T01:46:40.000001Z", 1},
	} {
		for _, split := range []string{"1", "auto", "1MiB"} {
			args := append([]string{"export", "--split", split, "-o", out}, strings.Fields(x.args)...)
			status, _, stderr := sigmatrace(append(args, path)...)
			if status != 0 {
				t.Errorf("%s: status %d\n%s", x.args, status, stderr)
				continue
			}
			text, err := os.ReadFile(filepath.Join(out, "index.json"))
			if err != nil {
				t.Fatal(err)
			}
			var index merge.PiecesIndex
			if err := json.Unmarshal(text, &index); err != nil || index.Operations != x.want {
				t.Errorf("%s: %v, %d operations, not %d", x.args, err, index.Operations, x.want)
			}
		}
	}
}

// What cannot be is said before anything is written, with what could be.
func TestExportRefuses(t *testing.T) {
	path := recorded(t, false)
	for args, want := range map[string]string{
		"--from soon":                     "is not a time",
		"--from -1s":                      "is not a time",
		"--to 2026-13-01T00:00:00Z":       "is not a time",
		"--from 5h":                       "the run ended before",
		"--from 2562047h47m16s":           "the run ended before",
		"--to 0s":                         "the run began only at",
		"--from 1us --to 1us":             "--to is not after --from",
		"--ranks 3-1":                     "is no range of ranks",
		"--ranks 0,":                      "is no range of ranks",
		"--ranks 1-99":                    "the run has none of them",
		"--split 0":                       "neither auto nor a number",
		"--split 5MB":                     "neither auto nor a number",
		"--split 100KiB":                  "neither auto nor a number",
		"--split 2 --format json":         "only the perfetto export",
		"--format matrix --from 1us":      "cannot be cut by time or rank",
		"--format parquet --layer tcp":    "no layer",
		"--format arrow":                  "there are perfetto, matrix, json, parquet",
		"--format parquet -o /proc/self/": "/proc/self",
	} {
		status, _, stderr := sigmatrace(append(append([]string{"export"}, strings.Fields(args)...), path)...)
		if status != 2 && !strings.Contains(args, "/proc") || status == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d\n%s", args, status, stderr)
		}
	}
	entries, err := os.ReadDir(path)
	if err != nil || len(entries) != 1 {
		t.Errorf("something was written: %v, %v", entries, err)
	}
}
