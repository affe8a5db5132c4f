package recorder

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/capture"
)

const tmpfs = "/dev/shm"

// onTmpfs returns a directory whose files are memory.
func onTmpfs(t *testing.T) string {
	t.Helper()
	var fs syscall.Statfs_t
	if err := syscall.Statfs(tmpfs, &fs); err != nil || fs.Type != 0x01021994 {
		t.Skipf("%s is no tmpfs", tmpfs)
	}
	dir, err := os.MkdirTemp(tmpfs, "sigmatrace-test")
	if err != nil {
		t.Skipf("tmpfs: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// peak runs the client and returns the most memory that it had resident, in bytes.
func peak(t *testing.T, env []string, args ...string) int64 {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(env, "PEAK=1")
	b, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, b)
	}
	var kib int64
	if _, err := fmt.Sscanf(string(b), "%d kB", &kib); err != nil {
		t.Fatalf("%q: %v", b, err)
	}
	return kib << 10
}

// Many threads, many objects, and a long run: what a traced process has resident beyond an untraced one stays within record.memory.
func TestResidentMemoryStaysWithinItsBound(t *testing.T) {
	client := build(t)
	const bound = 8 << 20
	for _, c := range []struct {
		name string
		with settings
		args []string
	}{
		{"mapped", settings{"record.back_end": "mapped"}, []string{"burst", "3000000"}},
		{"written", settings{"record.back_end": "written"}, []string{"burst", "3000000"}},
		{"chunks of 1 MiB", settings{"record.chunk": "1048576"}, []string{"threads", "64"}},
		{"threads", nil, []string{"threads", "64"}},
		{"objects", nil, []string{"objects", "60000"}},
		{"objects written", settings{"record.back_end": "written"}, []string{"objects", "60000"}},
		{"definitions written", settings{"record.back_end": "written"}, []string{"ended_objects", "300000"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			with := settings{"record.memory": fmt.Sprint(bound), "record.budget": "1073741824"}
			for k, v := range c.with {
				with[k] = v
			}
			env, captures := configure(t, t.TempDir(), with)
			args := append([]string{client}, c.args...)
			plain := peak(t, append(env, "SIGMATRACE=off"), args...)
			traced := peak(t, env, args...)
			if traced-plain > bound+bound/4 { // the libraries' own pages, and page tables, are on top
				t.Errorf("%d KiB resident, %d without us: more than record.memory (%d KiB) on top", traced>>10, plain>>10, bound>>10)
			}
			if f := files(t, captures)[0]; c.args[0] == "burst" && (f.Live().LostEvents > 0 || len(events(t, f, 1)) != 3000000) {
				t.Errorf("lost %d events: one thread needs no more than a chunk and its tables", f.Live().LostEvents)
			}
		})
	}
}

// A file on tmpfs is memory, whatever the byte budget; events stop at the bound, the tables go on.
func TestCaptureInMemoryStaysWithinTheBound(t *testing.T) {
	client := build(t)
	env, captures := configure(t, onTmpfs(t), settings{"record.memory": "4194304", "record.budget": "1073741824"})
	run(t, env, client, "burst", "3000000")
	f := files(t, captures)[0]
	checkBound(t, f, 4194304, 3000000)
}

func checkBound(t *testing.T, f *capture.File, bound int64, events uint64) {
	t.Helper()
	st, err := os.Stat(f.Path())
	if err != nil || st.Size() > bound {
		t.Errorf("capture of %d bytes, %v; want at most %d", st.Size(), err, bound)
	}
	if l := f.Live(); l.LostEvents == 0 || l.LostCause != capture.LostBudget {
		t.Errorf("lost %d events, cause %v", l.LostEvents, l.LostCause)
	}
	var count uint64
	if err := f.Aggregates(func(a *capture.Aggregate) error { count += a.Count; return nil }); err != nil || count != events {
		t.Errorf("tables counted %d, %v; want %d", count, err, events)
	}
}

// memoryGroup makes a control group below that of the test, with a memory limit, and returns what makes a shell join it.
func memoryGroup(t *testing.T, limit int64) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(text)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		mount, file := "/sys/fs/cgroup", "memory.max"
		if part[1] == "memory" {
			mount, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if part[1] != "" {
			continue
		}
		dir, err := os.MkdirTemp(filepath.Join(mount, part[2]), "sigmatrace-test-")
		if err != nil {
			continue
		}
		t.Cleanup(func() {
			for end := time.Now().Add(30 * time.Second); os.Remove(dir) != nil && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond) // its last process may just be going
			}
		})
		if err := os.WriteFile(filepath.Join(dir, file), fmt.Append(nil, limit), 0o600); err == nil {
			return "echo $$ > " + dir + "/cgroup.procs && "
		}
	}
	t.Skip("no control group with a memory limit can be made here")
	return ""
}

// A twentieth of the control group's limit, where that is less. On a disk, a capture that is larger than the whole limit does not
// bring the group to it: the kernel takes the file's pages back.
func TestMemoryIsATwentiethOfTheGroupsLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	client := build(t)
	const limit = 64 << 20
	join := memoryGroup(t, limit)
	env, captures := configure(t, onTmpfs(t), settings{"record.budget": "1073741824"})
	run(t, env, "sh", "-c", join+`exec "$0" burst 3000000`, client)
	checkBound(t, files(t, captures)[0], limit/20, 3000000)

	env, captures = configure(t, t.TempDir(), settings{"record.budget": "1073741824"})
	run(t, env, "sh", "-c", join+`exec "$0" burst 24000000`, client)
	f := files(t, captures)[0]
	if st, err := os.Stat(f.Path()); err != nil || st.Size() < limit+limit/4 || f.Live().LostEvents > 0 {
		t.Errorf("capture of %d bytes, %v, %d events lost; want all of a run longer than the group's limit", st.Size(), err, f.Live().LostEvents)
	}
}

// The files of cgroup version 2, and of a container that sees only its own part of the tree, stood in for by a mount.
func TestLimitOfVersionTwo(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	client := build(t)
	for _, c := range []struct {
		name  string
		files map[string]string // below /sys/fs/cgroup
		bound int64
	}{
		{"of the group itself", map[string]string{"a/b/memory.max": "83886080\n", "a/memory.max": "max\n"}, 4 << 20},
		{"of one above it", map[string]string{"a/b/memory.max": "max\n", "a/memory.max": "83886080\n", "memory.max": "104857600"}, 4 << 20},
		{"of the root, where the group is out of sight", map[string]string{"memory.max": "83886080\n"}, 4 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			fake := t.TempDir()
			for name, text := range c.files {
				path := filepath.Join(fake, "fs", name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			group := filepath.Join(fake, "cgroup")
			if err := os.WriteFile(group, []byte("0::/a/b\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			env, captures := configure(t, onTmpfs(t), settings{"record.budget": "1073741824"})
			// /proc/self is another one in each process: the file is put over that of the shell, which becomes the client
			cmd := exec.Command("unshare", "-m", "sh", "-c", `mount --bind "$1/fs" /sys/fs/cgroup && mount --bind "$1/cgroup" /proc/$$/cgroup && exec "$0" burst 3000000`, client, fake)
			cmd.Env = env
			if b, err := cmd.CombinedOutput(); err != nil {
				if strings.Contains(string(b), "mount") || strings.Contains(string(b), "unshare") {
					t.Skipf("no mounts can be made here: %s", b)
				}
				t.Fatalf("%v\n%s", err, b)
			}
			checkBound(t, files(t, captures)[0], c.bound, 3000000)
		})
	}
}
