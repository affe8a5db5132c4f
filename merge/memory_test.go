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

const memoryChild = "SIGMATRACE_TEST_MERGE" // run directory that a child of the test is to merge

func TestMain(m *testing.M) {
	if path := os.Getenv(memoryChild); path != "" {
		mergeAndTell(path)
		return
	}
	os.Exit(m.Run())
}

// mergeAndTell merges with the least memory and prints the highest resident set the process had.
func mergeAndTell(path string) {
	dir, err := rundir.Open(path)
	if err == nil {
		o := merge.Options{Workers: 4, Memory: merge.MinMemory, Exports: []string{"perfetto", "matrix", "parquet"}}
		o.LimitMemory()
		_, err = merge.Run(context.Background(), dir, o)
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
	for s := bufio.NewScanner(f); s.Scan(); {
		if value, ok := strings.CutPrefix(s.Text(), "VmHWM:"); ok {
			fmt.Println(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
		}
	}
}

// F65: however much there is to merge, memory stays within the limit; program and runtime come on top of it.
func TestMemoryStaysWithinTheLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	highest := func(operations int) int64 {
		r := manyOperations(t, operations)
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), memoryChild+"="+r.dir.Path())
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"trace.pftrace", "events"} {
			if _, err := os.Stat(filepath.Join(r.dir.Path(), name)); err != nil {
				t.Fatal(err)
			}
		}
		return kib << 10
	}
	const program = 24 << 20
	if raceDetector {
		highest(50_000) // what the detector itself takes is not bounded: only that it works
		return
	}
	// As operations in memory, this is 580 MB.
	if got := highest(2_500_000); got > merge.MinMemory+program {
		t.Errorf("%d MiB resident, the limit is %d MiB", got>>20, int64(merge.MinMemory)>>20)
	} else {
		t.Logf("%d MiB resident", got>>20)
	}
}
