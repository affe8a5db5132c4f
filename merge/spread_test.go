package merge_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// workerChild has the run directory and the folder of a merge that a child of the test is to help with, the number of its cores behind them.
const workerChild = "SIGMATRACE_TEST_WORKER"

func help(what string) {
	words := strings.Split(what, "\n")
	dir, err := rundir.Open(words[0])
	cores := 1
	if err == nil {
		_, err = fmt.Sscan(words[2], &cores)
	}
	if err == nil {
		err = merge.Work(context.Background(), dir, words[1], merge.Options{Workers: cores})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// crew are workers in processes of their own.
type crew struct {
	t      testing.TB
	run    string
	size   int
	cores  int
	change func(i int, c *exec.Cmd)
	began  func(folder string, c []*exec.Cmd)

	folder string
	units  int
	failed []error
	said   bytes.Buffer
}

func (c *crew) spread(folder string, ended func()) func() {
	c.folder = folder
	var list []*exec.Cmd
	var group sync.WaitGroup
	var mu sync.Mutex
	for i := range c.size {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s\n%s\n%d", workerChild, c.run, folder, c.cores))
		var said bytes.Buffer
		cmd.Stderr = &said
		if c.change != nil {
			c.change(i, cmd)
		}
		if err := cmd.Start(); err != nil {
			c.t.Error(err)
			continue
		}
		list = append(list, cmd)
		group.Go(func() {
			err := cmd.Wait()
			mu.Lock()
			defer mu.Unlock()
			c.said.Write(said.Bytes())
			if err != nil {
				c.failed = append(c.failed, err)
			}
		})
	}
	done := make(chan struct{})
	go func() {
		group.Wait()
		ended()
		close(done)
	}()
	if c.began != nil {
		go c.began(folder, list)
	}
	return func() { <-done }
}

// helped counts the units that the workers did.
func (c *crew) helped(units map[string]int) {
	for _, n := range units {
		c.units += n
	}
}

// everything is all that a merge with every export leaves in a run directory, but the captures.
func everything(t *testing.T, r *rig, o merge.Options) map[string][]byte {
	t.Helper()
	o.Exports = []string{"perfetto", "matrix", "json", "parquet"}
	if _, err := merge.Run(context.Background(), r.dir, o); err != nil {
		t.Fatal(err)
	}
	found := map[string][]byte{}
	err := filepath.WalkDir(r.dir.Path(), func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(r.dir.Path(), path)
		if err != nil || d.IsDir() && name != "capture" {
			return err
		}
		if d.IsDir() {
			return fs.SkipDir
		}
		found[name], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func alike(t *testing.T, got, want map[string][]byte) {
	t.Helper()
	for name := range want {
		if !bytes.Equal(got[name], want[name]) {
			t.Errorf("%s differs: %d bytes, alone %d", name, len(got[name]), len(want[name]))
		}
	}
	for name := range got {
		if want[name] == nil {
			t.Errorf("%s is left behind", name)
		}
	}
}

// manyUnits is a run with a manifest.
func manyUnits(t *testing.T) *rig {
	r := manyOperations(t, 240_000)
	manifest := &rundir.Manifest{}
	manifest.Run.Name = r.dir.Name()
	if err := r.dir.WriteManifest(manifest); err != nil {
		t.Fatal(err)
	}
	damage(t, r)
	return r
}

// damage spoils records in the middle of one capture, which shows when they are decoded.
func damage(t *testing.T, r *rig) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(r.dir.Capture(), "*", "*.capture"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no captures: %v", err)
	}
	f, err := os.OpenFile(paths[len(paths)-1], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err == nil {
		_, err = f.WriteAt(bytes.Repeat([]byte{0xff}, 200), st.Size()/2)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A merge that other processes help with gives the same bytes of everything, whatever their number: the traces, the tables, the account.
func TestMergeWithWorkersIsTheSame(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	r := manyUnits(t)
	alone := everything(t, r, merge.Options{Workers: 2})
	if len(alone["trace.pftrace"]) == 0 || len(alone["events/index.json"]) == 0 || !json.Valid(alone["manifest.json"]) {
		t.Fatalf("the plain merge left %d files", len(alone))
	}
	if !strings.Contains(string(alone["manifest.json"]), `"offset": `) {
		t.Error("the account tells of no damage")
	}
	left := filepath.Join(r.dir.Path(), ".merge-killed") // of a coordinator that was killed
	if err := os.Mkdir(left, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(left, "spill"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for n, cores := range map[int]int{0: 1, 1: 3, 2: 1, 8: 1} {
		if raceDetector && (n == 1 || n == 2) { // which makes each take a minute: between none and many there are no other races
			continue
		}
		c := &crew{t: t, run: r.dir.Path(), size: n, cores: cores}
		alike(t, everything(t, r, merge.Options{Workers: 2, Spread: c.spread, Helped: c.helped}), alone)
		if len(c.failed) > 0 {
			t.Errorf("%d workers: %v: %s", n, c.failed, c.said.String())
		}
		// Two units of pairing, one of counting, and each partition and each table of two to four partitions.
		if all := c.units; n == 0 && all != 0 || n > 0 && all < 2+1+4+4+1 {
			t.Errorf("%d workers did %d units", n, all)
		}
	}
}

// Workers that are killed in the middle of their work cost time only, all of them or one.
func TestWorkersThatAreKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	r := manyUnits(t)
	alone := everything(t, r, merge.Options{Workers: 2})
	for name, all := range map[string]bool{"pair-*": false, "perfetto-*": true, "json-*": false, "parquet-*": true} {
		if raceDetector && strings.Contains("perfetto-* json-*", name) { // a minute each
			continue
		}
		t.Run(fmt.Sprint(name, " all ", all), func(t *testing.T) {
			killed := make(chan bool, 1)
			c := &crew{t: t, run: r.dir.Path(), size: 2, cores: 1}
			c.began = func(folder string, list []*exec.Cmd) {
				for range 300_000 { // minutes, under the race detector on a busy machine
					if found, _ := filepath.Glob(filepath.Join(folder, name)); len(found) > 0 {
						for i := range list {
							if i == 0 || all {
								list[i].Process.Kill()
							}
						}
						killed <- true
						return
					}
					time.Sleep(time.Millisecond)
				}
				killed <- false
			}
			alike(t, everything(t, r, merge.Options{Workers: 2, Spread: c.spread}), alone)
			if !<-killed || len(c.failed) == 0 {
				t.Errorf("no worker was killed: %v", c.failed)
			}
		})
	}
}

// A worker that does not see the run as its coordinator does, or is of another version, does nothing.
func TestWorkerThatSeesAnotherRun(t *testing.T) {
	r := manyUnits(t)
	alone := everything(t, r, merge.Options{Workers: 2})
	other := manyOperations(t, 10_000)
	c := &crew{t: t, run: other.dir.Path(), size: 1, cores: 1}
	alike(t, everything(t, r, merge.Options{Workers: 2, Spread: c.spread}), alone)
	if len(c.failed) != 1 || !strings.Contains(c.said.String(), "this host does not see the run as the coordinator does") {
		t.Errorf("the worker ended with %v: %s", c.failed, c.said.String())
	}
}
