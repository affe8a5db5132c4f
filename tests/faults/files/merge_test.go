package files

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/tests/faults/rig"
	"github.com/sigmatrace/sigmatrace/tests/needs"
)

var resultNames = []string{"trace.pftrace", "matrix.json", "manifest.json"}

// results are what a merge writes, and everything in the run directory that belongs to nothing.
func results(t *testing.T, r *rig.Run) (all map[string]string, strays []string) {
	t.Helper()
	entries, err := os.ReadDir(r.Path)
	if err != nil {
		t.Fatal(err)
	}
	all = map[string]string{}
	for _, e := range entries {
		switch {
		case slices.Contains(resultNames, e.Name()):
			text, err := os.ReadFile(filepath.Join(r.Path, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			all[e.Name()] = string(text)
		case e.Name() != "capture" && e.Name() != "profile.resolved":
			strays = append(strays, e.Name())
		}
	}
	return all, strays
}

// recorded is a run with captures that have not been merged.
func recorded(t *testing.T, dir string) *rig.Run {
	t.Helper()
	r := rig.New(t, rig.Spec{Layer: "verbs"}, dir).Start()
	r.Do("post 60000")
	r.Do("threads 4 5000")
	if status := r.End(); status != 0 {
		t.Fatalf("ended with %d: %s", status, r.Errors())
	}
	return r
}

// F41: a merge that is killed at any moment leaves no result under its final name that is not whole, and nothing else, on a file system
// that can have files without a name; the next merge gives what the first would have.
func TestF41MergeKilledAtAnyMoment(t *testing.T) {
	needs.Time(t)
	r := recorded(t, "")
	untouched, _ := results(t, r)
	began := time.Now()
	if errs, status := r.Merge(); status != 0 {
		t.Fatalf("merge ended with %d: %s", status, errs)
	}
	took := time.Since(began)
	whole, _ := results(t, r)
	captures := rig.Snapshot(t, filepath.Join(r.Path, "capture"))
	killed, finished, kept := 0, 0, 0
	random := rand.New(rand.NewPCG(5, 7))
	for n := range 20 {
		for _, name := range resultNames[:2] {
			if err := os.Remove(filepath.Join(r.Path, name)); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(r.Path, "manifest.json"), []byte(untouched["manifest.json"]), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(needs.Built(t, "bin/sigmatrace"), "merge", r.Path)
		began := time.Now()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// All over the merge, and densely at its end, where names are given.
		at := time.Duration(random.Int64N(int64(took * 3 / 2)))
		if n%2 == 0 {
			at = took*6/10 + time.Duration(random.Int64N(int64(took*6/10)))
		}
		end := time.AfterFunc(at, func() { cmd.Process.Kill() })
		if err := cmd.Wait(); err == nil {
			finished++
			took = min(took, time.Since(began)) // the machine has other things to do at times
		} else {
			killed++
		}
		end.Stop()
		got, strays := results(t, r)
		// Between a link and the rename a result has a name of its own, with a dot.
		strays = slices.DeleteFunc(strays, func(name string) bool {
			return slices.ContainsFunc(resultNames, func(result string) bool { return strings.HasPrefix(name, "."+result+"-") })
		})
		if len(strays) > 0 {
			t.Fatalf("killed after %v of %v: left behind: %v", at, took, strays)
		}
		for name, text := range got {
			if text != whole[name] && text != untouched[name] {
				t.Fatalf("killed after %v of %v: %s is not whole", at, took, name)
			}
			if name != "manifest.json" {
				kept++
			}
		}
	}
	t.Logf("%d merges killed, %d came to their end before; %d results were complete", killed, finished, kept)
	if killed < 8 {
		t.Errorf("only %d merges were killed", killed)
	}
	if errs, status := r.Merge(); status != 0 {
		t.Fatalf("merge ended with %d: %s", status, errs)
	}
	if again, strays := results(t, r); !maps.Equal(again, whole) || len(strays) > 0 {
		t.Errorf("the merge after them gives something else, or left %v", strays)
	}
	rig.Same(t, "killed merges", captures, rig.Snapshot(t, filepath.Join(r.Path, "capture")))
	r.Exact(r.Info())
}

// F41: several merges of one run at once, by the user and by the job's end: each succeeds, and what they leave is what one leaves.
func TestF41MergesAtOnce(t *testing.T) {
	needs.Time(t)
	r := recorded(t, "")
	if errs, status := r.Merge(); status != 0 {
		t.Fatalf("merge ended with %d: %s", status, errs)
	}
	whole, _ := results(t, r)
	for _, name := range resultNames[:2] {
		if err := os.Remove(filepath.Join(r.Path, name)); err != nil {
			t.Fatal(err)
		}
	}
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			if errs, status := r.Merge("-j", "1"); status != 0 {
				t.Errorf("merge ended with %d: %s", status, errs)
			}
		})
	}
	wait.Wait()
	if got, strays := results(t, r); !maps.Equal(got, whole) || len(strays) > 0 {
		for name := range whole {
			if got[name] != whole[name] {
				t.Errorf("%s is another", name)
			}
		}
		t.Errorf("left behind: %v", strays)
	}
}

// multiply makes n captures of n processes from a whole one: its name and its header say who it is.
func multiply(t *testing.T, from string, n int) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	const headerCRC, pid, startTime, rank, world, source = 1088, 40, 56, 80, 88, 96
	le := binary.LittleEndian
	size, used := int64(len(text)), len(text)
	for used > 4096 && text[used-1] == 0 { // reserved space need not be copied
		used--
	}
	for k := range n {
		le.PutUint32(text[pid:], uint32(100_000+k))
		le.PutUint64(text[startTime:], uint64(7_000_000+k))
		le.PutUint64(text[rank:], uint64(k))
		le.PutUint64(text[world:], uint64(n))
		le.PutUint32(text[source:], 4)
		le.PutUint32(text[headerCRC:], crc32.Checksum(text[:headerCRC], crc32.MakeTable(crc32.Castagnoli)))
		name := filepath.Join(filepath.Dir(from), fmt.Sprintf("%d.%d.0.capture", 100_000+k, 7_000_000+k))
		f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < used; at += 4096 {
			page := text[at:min(at+4096, used)]
			if slices.ContainsFunc(page, func(b byte) bool { return b != 0 }) {
				if _, err := f.WriteAt(page, int64(at)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	if err := os.Remove(from); err != nil {
		t.Fatal(err)
	}
}

// F62: ten thousand processes on a node, each of which said little, and few descriptors for the merge.
func TestF62TenThousandProcesses(t *testing.T) {
	needs.Time(t)
	const processes = 10_000
	r := rig.New(t, rig.Spec{Layer: "ucp", Sets: []string{"record.chunk=16KiB"}}, "").Start()
	r.Do("post 20")
	if status := r.End(); status != 0 {
		t.Fatalf("ended with %d: %s", status, r.Errors())
	}
	multiply(t, r.Captures()[0], processes)
	began := time.Now()
	cmd := exec.Command("sh", "-c", `ulimit -n 256; exec "$@"`, "sh", needs.Built(t, "bin/sigmatrace"), "merge", r.Path)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	memory := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss
	t.Logf("merged in %v with at most %d MiB", time.Since(began).Round(time.Millisecond), memory>>10)
	if memory > 1<<20 {
		t.Errorf("%d KiB of memory, the limit is 1 GiB", memory)
	}
	i := r.Info()
	if i.Processes.Total != processes || i.Processes.Complete != processes || i.Ranks.Complete != processes || len(i.Ranks.Incomplete) != 0 || !i.Exact {
		t.Errorf("processes %+v, ranks %d complete, %d not", i.Processes, i.Ranks.Complete, len(i.Ranks.Incomplete))
	}
	if got, want := r.Writes(i), (rig.Count{Count: 20 * processes, Bytes: 20 * 64 * processes}); got != want || i.Events.ByName["ucp_put"] != want.Count {
		t.Errorf("%+v writes, %d events, want %+v", got, i.Events.ByName["ucp_put"], want)
	}
}

// F72: one rank of a million that were promised: what is missing is said, in an account that can still be read.
func TestF72WorldOfAMillion(t *testing.T) {
	needs.Time(t)
	r := rig.New(t, rig.Spec{Layer: "ucp", Env: []string{"RANK=3", "WORLD_SIZE=1000000"}}, "")
	r.Both(rig.Do("post 10"))
	errs, status := r.Merge()
	if status != 3 || !strings.Contains(errs, "1 of 1000000 complete") || !strings.Contains(errs, "ranks 4 to 999999: not injected") {
		t.Errorf("merge ended with %d: %s", status, errs)
	}
	i := r.Info()
	if len(i.Ranks.Incomplete) != 2 || i.Ranks.Incomplete[0].LastRank == nil || *i.Ranks.Incomplete[0].LastRank != 2 || *i.Ranks.Expected != 1_000_000 {
		t.Errorf("ranks: %+v", i.Ranks)
	}
	if st, err := os.Stat(filepath.Join(r.Path, "manifest.json")); err != nil || st.Size() > 64<<10 {
		t.Errorf("a manifest of %d bytes, %v", st.Size(), err)
	}
	r.LowerBound(i)
}
