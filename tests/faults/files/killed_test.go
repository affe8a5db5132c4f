package files

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/tests/faults/rig"
	"github.com/sigmatrace/sigmatrace/tests/needs"
)

// F41: a program that stands still can be merged, at once, with all that it has recorded; and again when it has gone on.
func TestF41StoppedProgram(t *testing.T) {
	needs.Time(t)
	r := rig.New(t, rig.Spec{Layer: "verbs"}, "").Start()
	r.Do("post 20000")
	pid := r.Pid()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if errs, status := r.Merge(); status != 3 || !strings.Contains(errs, "still running") {
		t.Errorf("merge ended with %d: %s", status, errs)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the merge took %v", took)
	}
	r.Exact(r.Info())
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	r.Do("post 1000")
	if status := r.End(); status != 0 {
		t.Errorf("ended with %d: %s", status, r.Errors())
	}
	r.Alike(rig.Do("post 20000"), rig.Do("post 1000"))
	r.MustMerge(0)
	r.Exact(r.Info())
}

// group makes a memory cgroup of so many bytes and returns the file that takes processes.
func group(t *testing.T, limit string) string {
	t.Helper()
	for _, c := range []struct{ root, limit string }{{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"}} {
		if _, err := os.Stat(filepath.Join(c.root, "cgroup.procs")); err != nil {
			continue
		}
		dir, err := os.MkdirTemp(c.root, "sigmatrace-test-")
		if err != nil {
			continue
		}
		t.Cleanup(func() {
			for end := time.Now().Add(30 * time.Second); os.Remove(dir) != nil && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond) // its last process may just be going
			}
		})
		if err := os.WriteFile(filepath.Join(dir, c.limit), []byte(limit), 0); err == nil {
			return filepath.Join(dir, "cgroup.procs")
		}
	}
	t.Skip("no memory cgroup can be made here")
	return ""
}

// F41, F64: the kernel kills the program for the memory that it uses. All that it did is there, and how it ended is said.
func TestF41OutOfMemory(t *testing.T) {
	needs.Time(t)
	procs := group(t, "100M")
	for _, backEnd := range []string{"mapped", "written"} {
		t.Run(backEnd, func(t *testing.T) {
			r := rig.New(t, rig.Spec{Layer: "verbs", Sets: []string{rig.BackEnds[backEnd]}, Shell: `echo $$ >` + procs + `; exec "$@"`}, "").Start()
			r.Do("post 100000")
			time.Sleep(1100 * time.Millisecond) // tables are written once a second
			r.Do("post 2000")
			r.Send("eat 1000")
			if status := r.End(); status != 128+int(syscall.SIGKILL) {
				t.Fatalf("ended with %d: %s", status, r.Errors())
			}
			if errs, status := r.Merge(); status != 3 || !strings.Contains(errs, "no end mark (the command ended by SIGKILL)") {
				t.Errorf("merge ended with %d: %s", status, errs)
			}
			i := r.Info()
			if backEnd == "mapped" {
				r.Exact(i)
				return
			}
			if n := r.Writes(i).Count; i.Exact || n > 102000 || n < 100000 {
				t.Errorf("%d of 102000 writes, exact %v", n, i.Exact)
			}
		})
	}
}
