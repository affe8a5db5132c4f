package merge_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

const (
	memoryChild = "SIGMATRACE_TEST_MERGE" // run directory that a child of the test is to merge
	memorySplit = "SIGMATRACE_TEST_SPLIT" // set: into a trace in pieces only
)

func TestMain(m *testing.M) {
	if path := os.Getenv(memoryChild); path != "" {
		mergeAndTell(path)
		return
	}
	if what := os.Getenv(workerChild); what != "" {
		help(what)
		return
	}
	os.Exit(m.Run())
}

// mergeAndTell merges with the least memory and prints the highest resident set the process had, in KiB, without the program itself.
func mergeAndTell(path string) {
	dir, err := rundir.Open(path)
	if err == nil {
		o := merge.Options{Workers: 4, Memory: merge.MinMemory, Exports: []string{"perfetto", "matrix", "parquet"}}
		o.LimitMemory()
		if os.Getenv(memorySplit) != "" {
			err = splitInto(dir, o, 3)
		} else {
			_, err = merge.Run(context.Background(), dir, o)
		}
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	f, err := os.Open("/proc/self/status")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	defer f.Close()
	kib := map[string]int64{}
	for s := bufio.NewScanner(f); s.Scan(); {
		name, value, _ := strings.Cut(s.Text(), ":")
		kib[name], _ = strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
	}
	fmt.Println(kib["VmHWM"] - kib["RssFile"]) // the program itself, of which there is ever more, is mapped from its file
}

// splitInto merges and writes the trace in pieces.
func splitInto(dir *rundir.Dir, o merge.Options, n int) error {
	m, err := merge.Open(context.Background(), dir, o)
	if err != nil {
		return err
	}
	defer m.Close()
	plan, err := m.PlanSplit(context.Background(), merge.Split{Pieces: n}, merge.ExportOptions{})
	if err != nil {
		return err
	}
	return m.ExportPieces(context.Background(), plan, filepath.Join(dir.Path(), merge.PiecesName))
}

// F65: however much there is to merge, and whatever is made of it, memory stays within the limit; the program, and something for its runtime, come on top of it.
func TestF65MemoryStaysWithinTheLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	operations := 2_500_000 // in memory, these are 580 MB
	if raceDetector {
		operations = 50_000
	}
	r := manyOperations(t, operations)
	for _, c := range []struct {
		what    string
		env     string
		results []string
	}{{"merge", "", []string{"trace.pftrace", "matrix.json", "events"}}, {"pieces", "yes", []string{"trace"}}} {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), memoryChild+"="+r.dir.Path(), memorySplit+"="+c.env)
		out, err := child.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", c.what, err, out)
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range c.results {
			if _, err := os.Stat(filepath.Join(r.dir.Path(), name)); err != nil {
				t.Error(err)
			}
		}
		const runtime = 8 << 20 // stacks, and what the collector is behind by where others have the processors
		t.Logf("%s: %d MiB resident", c.what, kib>>10)
		if kib<<10 > merge.MinMemory+runtime && !raceDetector { // what the detector itself takes is not bounded: only that it works
			t.Errorf("%s: %d MiB resident, the limit is %d MiB", c.what, kib>>10, int64(merge.MinMemory)>>20)
		}
	}
}
