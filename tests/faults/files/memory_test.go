package files

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/tests/faults/rig"
	"github.com/sigmatrace/sigmatrace/tests/needs"
	"github.com/sigmatrace/sigmatrace/tests/ondisk"
)

// memoryOf is the folder of a run's captures in memory, which it must have.
func memoryOf(t *testing.T, r *rig.Run) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(r.Path, "profile.resolved"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if folder, is := strings.CutPrefix(strings.TrimSpace(line), "capture.memory="); is && folder != "" {
			return folder
		}
	}
	t.Fatal("the run has no memory for its captures")
	return ""
}

func nothingLeft(t *testing.T, folder string) {
	t.Helper()
	if left, err := filepath.Glob(folder + "*"); len(left) > 0 || err != nil {
		t.Errorf("left in memory: %v, %v", left, err)
	}
}

func inMemory(layer string, more ...string) rig.Spec {
	return rig.Spec{Layer: layer, Sets: append([]string{"record.place=memory", "record.chunk=16KiB"}, more...)}
}

// Records that pass through memory are those of the program, and nothing is left there.
func TestRunThroughMemory(t *testing.T) {
	needs.Time(t)
	for _, layer := range layers {
		t.Run(layer, func(t *testing.T) {
			r := rig.New(t, inMemory(layer), "")
			var folder string
			r.Both(rig.Do("post 1000"), rig.Fault(func(r *rig.Run) { folder = memoryOf(t, r) }), rig.Do("post 300000"), rig.Do("threads 4 1000"))
			nothingLeft(t, folder)
			r.MustMerge(0)
			r.Exact(r.Info())
		})
	}
}

// F41: the program is killed; or the launcher is, and then the program; or the program goes on without the launcher and ends by itself.
// The next merge on this host has everything.
func TestF41KillsWithCapturesInMemory(t *testing.T) {
	needs.Time(t)
	for _, c := range []string{"program", "both", "launcher"} {
		t.Run(c, func(t *testing.T) {
			r := rig.New(t, inMemory("verbs"), "").Start()
			r.Do("post 200000")
			folder, pid := memoryOf(t, r), r.Pid()
			if c != "program" {
				r.KillLauncher()
				r.Do("post 300000") // nobody makes room in memory now
				if errs, status := r.Merge(); status != 3 || !strings.Contains(errs, "still running") || !strings.Contains(errs, "go on") {
					t.Errorf("merge of what goes on ended with %d: %s", status, errs)
				}
				r.Exact(r.Info())
				r.Do("post 1000")
			}
			if c == "launcher" {
				r.End()
				gone(t, pid)
			} else {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				gone(t, pid)
				r.End()
			}
			errs, status := r.Merge()
			if c == "launcher" && status != 0 || c != "launcher" && (status != 3 || !strings.Contains(errs, "no end mark")) {
				t.Errorf("merge ended with %d: %s", status, errs)
			}
			r.Exact(r.Info())
			nothingLeft(t, folder)
		})
	}
}

func gone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)) // threads may outlive main
		if err != nil || strings.Contains(string(stat), ") Z ") && len(tasks) <= 1 {
			return
		}
	}
	t.Fatalf("process %d does not end", pid)
}

// onDisk is how many writes the capture has counted, as far as they are on the disk.
func onDisk(r *rig.Run) (n uint64) {
	for _, of := range ondisk.Counted(filepath.Join(r.Path, "capture"), catalogue.EventVerbsWrite) {
		n += of
	}
	return n
}

// What was in memory and is there no more, after a kill of everything and a cleared memory file system, is said to be missing, and the rest
// is there.
func TestMemoryThatIsGoneIsMissed(t *testing.T) {
	needs.Time(t)
	r := rig.New(t, inMemory("verbs"), "").Start()
	r.Do("post 200000")
	for end := time.Now().Add(time.Minute); onDisk(r) < 200000; time.Sleep(20 * time.Millisecond) { // all of it is then, if not said to be
		if time.Now().After(end) {
			t.Fatalf("%d of 200000 writes are on the disk after a minute", onDisk(r))
		}
	}
	folder, pid := memoryOf(t, r), r.Pid()
	r.KillLauncher()
	r.Do("post 1000")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	gone(t, pid)
	r.End()
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	if errs, status := r.Merge(); status != 3 || !strings.Contains(errs, "in memory of its host") {
		t.Errorf("merge ended with %d: %s", status, errs)
	}
	i := r.Info()
	if n := r.Writes(i).Count; i.Exact || n < 200000 || n > 201000 {
		t.Errorf("%d writes counted of 200000 that were copied and 1000 that were not; exact %v", n, i.Exact)
	}
}

// F63: the run directory, or the captures in it, is removed under the program: what is in memory goes too.
func TestF63RunDirectoryOfMemoryRemoved(t *testing.T) {
	needs.Time(t)
	for _, what := range []string{"", "capture"} {
		r := rig.New(t, inMemory("verbs"), "")
		var folder string
		r.Both(rig.Do("post 1000"), rig.Fault(func(r *rig.Run) { folder = memoryOf(t, r) }),
			remove(t, func(r *rig.Run) string { return filepath.Join(r.Path, what) }), rig.Do("post 200000"), rig.Do("threads 4 1000"), rig.Do("fork 100"))
		nothingLeft(t, folder)
		if !strings.Contains(r.Errors(), "was removed while the command ran") {
			t.Errorf("said: %s", r.Errors())
		}
	}
}

// F63: a file size limit ends neither program nor launcher; what the captures had no room for stays in memory for a merge without the limit.
func TestF63FileSizeLimitOfTheLauncher(t *testing.T) {
	needs.Time(t)
	for limited, command := range map[string]string{"launcher": `ulimit -S -f unlimited; exec "$@"`, "both": `exec "$@"`} {
		t.Run(limited, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "run")
			cmd := exec.Command("sh", "-c", `ulimit -S -f 6000; exec "$@"`, "sh", needs.Built(t, "bin/sigmatrace"), "launch", "-p", "full", "--providers", "ucx", "--set", "ucx.level=ucp", "--no-merge",
				"--set", "record.place=memory", "-o", path, "--", "sh", "-c", command, "sh", needs.Built(t, "tests/fault-client"), "ucp")
			cmd.Env = append(os.Environ(), "UCX_TLS=self")
			cmd.Stdin = strings.NewReader("post 3000000\n")
			b, err := cmd.CombinedOutput()
			out := string(b)
			if err != nil || !strings.Contains(out, "3000000 writes") {
				t.Fatalf("%v\n%s", err, out)
			}
			// With both limited, it may be the program that comes to the end of its file first: then there is nothing left to copy.
			told := strings.Contains(out, "still in memory") && strings.Contains(out, "file too large")
			if !told && limited == "launcher" {
				t.Errorf("the launcher said: %s", out)
			}
			_, errs, status := rig.Sigmatrace(t, "merge", path)
			lost := strings.Contains(errs, "no space (File too large)")
			if strings.Contains(errs, "in memory") || limited == "launcher" && (status != 0 || lost) || limited == "both" && (status != 3 || !lost && !strings.Contains(errs, "file too large")) {
				t.Errorf("merge ended with %d: %s", status, errs)
			}
		})
	}
}

// Two runs at once have each its own memory.
func TestTwoRunsHaveEachTheirMemory(t *testing.T) {
	needs.Time(t)
	a, b := rig.New(t, inMemory("verbs"), "").Start(), rig.New(t, inMemory("verbs"), "").Start()
	a.Do("post 1000")
	b.Do("post 1000")
	folders := []string{memoryOf(t, a), memoryOf(t, b)}
	if folders[0] == folders[1] {
		t.Fatal("both have one folder")
	}
	a.Do("post 100000")
	a.End()
	nothingLeft(t, folders[0])
	b.Do("post 200000")
	b.End()
	nothingLeft(t, folders[1])
	for _, r := range []*rig.Run{a, b} {
		r.MustMerge(0)
		r.Exact(r.Info())
	}
}

// After chroot(2) or setuid(2) the memory is mapped all the same, and the launcher makes room in it; more of it cannot be had.
func TestF63CaptureInMemoryOutOfReach(t *testing.T) {
	needs.Time(t)
	if os.Getuid() != 0 {
		t.Skip("only root can change its root directory and user")
	}
	for _, how := range []string{"chroot " + t.TempDir(), "setuid 65534"} {
		t.Run(strings.Fields(how)[0], func(t *testing.T) {
			var folder string
			r := rig.New(t, inMemory("verbs"), "")
			r.Both(rig.Do("post 1000"), rig.Fault(func(r *rig.Run) { folder = memoryOf(t, r) }), rig.Do("%s", how), rig.Do("post 300000"))
			nothingLeft(t, folder)
			r.Merge()
			r.Exact(r.Info())
		})
	}
}

// Shared memory that others need, that is not there, or that cannot be written to: the disk serves, and why is said. Who insists on memory is
// refused before anything runs.
func TestSharedMemoryWithoutRoom(t *testing.T) {
	needs.Time(t)
	for name, c := range map[string]struct{ mount, reason string }{
		"small":     {"mount -t tmpfs -o size=64m tmpfs /dev/shm", "/dev/shm has 64MiB free, less than 1GiB"},
		"full":      {"mount -t tmpfs -o size=64k tmpfs /dev/shm && ! head -c 100k /dev/zero 2>/dev/null >/dev/shm/filler", "/dev/shm has 0 free, less than 1GiB"},
		"read-only": {"mount -t tmpfs -o ro,size=2g tmpfs /dev/shm", "/dev/shm cannot be written to"},
		"a disk":    {"mount --bind " + t.TempDir() + " /dev/shm", "/dev/shm is no memory file system"},
		"missing":   {"mkdir -p $0/dev && mount --bind $0/dev /dev && cp -a /proc/self/root/dev/null /dev/ 2>/dev/null; true", "/dev/shm: no such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			program := filepath.Join(dir, "program")
			if err := os.WriteFile(program, []byte("#!/bin/sh\nexit 7\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			launch := func(place string) (string, int) {
				line := c.mount + ` || exit 99; exec "$@"`
				cmd := exec.Command("unshare", "-m", "sh", "-c", line, dir, needs.Built(t, "bin/sigmatrace"), "launch", "--no-merge", "--set", "record.place="+place,
					"-o", filepath.Join(dir, "run-"+place), "--", "/bin/sh", program)
				out, _ := cmd.CombinedOutput()
				if cmd.ProcessState.ExitCode() == 99 || strings.Contains(string(out), "unshare:") {
					t.Skipf("no mounts can be made here: %s", out)
				}
				return string(out), cmd.ProcessState.ExitCode()
			}
			if out, status := launch("auto"); status != 7 || !strings.Contains(out, "at once, since "+c.reason) {
				t.Errorf("auto: %d: %s", status, out)
			}
			if out, status := launch("memory"); status != 1 || !strings.Contains(out, "record.place is memory, but "+c.reason) {
				t.Errorf("memory: %d: %s", status, out)
			}
			if out, status := launch("disk"); status != 7 || strings.Contains(out, "/dev/shm") {
				t.Errorf("disk: %d: %s", status, out)
			}
		})
	}
}
