package files

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/sigmatrace/sigmatrace/tests/faults/rig"
	"github.com/sigmatrace/sigmatrace/tests/needs"
)

// remove takes a folder away in which files may be made meanwhile.
func remove(t *testing.T, what func(*rig.Run) string) rig.Step {
	return rig.Fault(func(r *rig.Run) {
		err := os.RemoveAll(what(r))
		for range 1000 {
			if !errors.Is(err, syscall.ENOTEMPTY) {
				break
			}
			err = os.RemoveAll(what(r))
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// F63: the capture directory, or the whole run directory, is removed under the program. What is recorded has no name any more; the
// program does not notice, and a child that communicates makes no mess.
func TestF63CaptureDirectoryRemoved(t *testing.T) {
	needs.Time(t)
	for backEnd, set := range rig.BackEnds {
		for name, what := range map[string]func(*rig.Run) string{
			"capture": func(r *rig.Run) string { return filepath.Join(r.Path, "capture") },
			"run":     func(r *rig.Run) string { return r.Path },
		} {
			t.Run(backEnd+"/"+name, func(t *testing.T) {
				r := rig.New(t, rig.Spec{Layer: "verbs", Sets: []string{set, "record.chunk=16KiB"}}, "")
				r.Both(rig.Do("post 1000"), remove(t, what), rig.Do("post 200000"), rig.Do("threads 4 1000"), rig.Do("fork 100"))
				if name == "run" {
					if _, err := os.Stat(r.Path); err == nil {
						t.Error("the run directory came back")
					}
					return
				}
				if errs, status := r.Merge(); status != 1 || !strings.Contains(errs, "the run has no captures") {
					t.Errorf("merge ended with %d: %s", status, errs)
				}
			})
		}
	}
}

// F63: the captures' directory may not be written: before the first traced call, and while the program runs.
func TestF63CaptureDirectoryUnwritable(t *testing.T) {
	needs.Time(t)
	if os.Getuid() != 0 {
		t.Skip("another user is needed, and this one cannot become one")
	}
	for backEnd, set := range rig.BackEnds {
		for _, first := range []bool{true, false} {
			name := map[bool]string{true: "/from the start", false: "/later"}[first]
			t.Run(backEnd+name, func(t *testing.T) {
				dir := rig.Tmpfs(t, "size=64m,mode=1777")
				r := rig.New(t, rig.Spec{Layer: "ucp", Sets: []string{set, "record.chunk=16KiB"}, As: 65534}, dir)
				for up := filepath.Dir(dir); up != "/tmp" && up != "/"; up = filepath.Dir(up) {
					if err := os.Chmod(up, 0o755); err != nil {
						t.Fatal(err)
					}
				}
				locked := rig.Fault(func(r *rig.Run) {
					r.Pid()
					if err := os.Chmod(filepath.Join(r.Path, "capture"), 0o000); err != nil {
						t.Error(err)
					}
				})
				again := rig.Fault(func(r *rig.Run) {
					if err := os.Chmod(filepath.Join(r.Path, "capture"), 0o700); err != nil {
						t.Error(err)
					}
				})
				if first {
					r.Both(locked, rig.Do("post 100"), rig.Do("post 300000"), again)
					if c := r.Captures(); len(c) > 0 {
						t.Errorf("captures: %v", c)
					}
					return
				}
				r.Both(rig.Do("post 100"), locked, rig.Do("post 300000"), again)
				if errs, status := r.Merge(); status != 3 || !strings.Contains(errs, "permission denied") {
					t.Errorf("merge ended with %d: %s", status, errs)
				}
				i := r.Info()
				if i.Lost.Events == 0 || len(i.Damaged) != 0 {
					t.Errorf("lost %+v, damaged %+v", i.Lost, i.Damaged)
				}
				r.Exact(i)
			})
		}
	}
}

// F63: the file system is mounted read-only while the program runs. As long as a capture is mapped the kernel refuses that; what is
// written goes on being counted in memory, and comes to the file when it can be written again.
func TestF63FileSystemBecomesReadOnly(t *testing.T) {
	needs.Time(t)
	remount := func(dir string, flags uintptr) error { return syscall.Mount("", dir, "", syscall.MS_REMOUNT|flags, "") }
	for backEnd, set := range rig.BackEnds {
		t.Run(backEnd, func(t *testing.T) {
			dir := rig.Ext4(t, 64, nil, "")
			r := rig.New(t, rig.Spec{Layer: "verbs", Sets: []string{set}}, dir)
			r.Both(rig.Do("post 1000"), rig.Fault(func(*rig.Run) {
				err := remount(dir, syscall.MS_RDONLY)
				if backEnd == "mapped" && err != syscall.EBUSY || backEnd == "written" && err != nil {
					t.Errorf("remounting: %v", err)
				}
			}), rig.Do("post 300000"), rig.Do("threads 4 100"), rig.Fault(func(*rig.Run) {
				if err := remount(dir, 0); err != nil {
					t.Error(err)
				}
			}), rig.Do("post 1000"))
			errs, status := r.Merge()
			i := r.Info()
			if backEnd == "mapped" {
				if status != 0 || i.Lost.Events != 0 {
					t.Errorf("merge ended with %d: %s", status, errs)
				}
			} else if status != 3 || i.Lost.Events == 0 || !strings.Contains(errs, "read-only file system") {
				t.Errorf("merge ended with %d, lost %d: %s", status, i.Lost.Events, errs)
			}
			r.Exact(i)
		})
	}
}

// ext4Shutdown is the EXT4_IOC_SHUTDOWN of ext4.h with EXT4_GOING_FLAGS_NOLOGFLUSH: as if the disk were pulled out.
func ext4Shutdown(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := uint32(2)
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), 0x8004587d, uintptr(unsafe.Pointer(&flags))); e != 0 {
		return e
	}
	return nil
}

// F63: the disk itself goes away. Nothing of the run can be read then; a program whose captures are written does not notice.
func TestF63DiskGone(t *testing.T) {
	needs.Time(t)
	dir := rig.Ext4(t, 64, nil, "")
	r := rig.New(t, rig.Spec{Layer: "verbs", Sets: []string{rig.BackEnds["written"]}}, dir)
	r.Both(rig.Do("post 1000"), rig.Fault(func(*rig.Run) {
		if err := ext4Shutdown(dir); err != nil {
			t.Error(err)
		}
	}), rig.Do("post 300000"), rig.Do("threads 4 100"))
}

// F63: somebody cuts the capture short. A program whose captures are written does not notice, and the merge says what is missing.
// A file that is mapped must not be cut short by anybody: the kernel's answer is SIGBUS, as for a program whose executable or shared
// library is, and the recorder installs no handler (F40). preload/README.md says so; this test holds that it is true.
func TestF63CaptureTruncatedBySomebody(t *testing.T) {
	needs.Time(t)
	cut := rig.Fault(func(r *rig.Run) {
		for _, c := range r.Captures() {
			if err := os.Truncate(c, 0); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("written", func(t *testing.T) {
		r := rig.New(t, rig.Spec{Layer: "verbs", Sets: []string{rig.BackEnds["written"]}}, "")
		r.Both(rig.Do("post 1000"), cut, rig.Do("post 300000"), rig.Do("threads 4 100"))
		if _, status := r.Merge(); status != 0 && status != 3 {
			t.Errorf("merge ended with %d", status)
		}
		writes, bytes, _, _ := r.Tally()
		if got := r.Writes(r.Info()); got != (rig.Count{Count: writes, Bytes: bytes}) {
			t.Errorf("%+v counted of %d writes: the tables are written whole at the end", got, writes)
		}
	})
	t.Run("mapped", func(t *testing.T) {
		r := rig.New(t, rig.Spec{Layer: "verbs", Sets: []string{rig.BackEnds["mapped"]}}, "").Start()
		r.Do("post 1000")
		cut.Fault(r)
		r.Send("post 300000")
		if status := r.End(); status != 128+int(syscall.SIGBUS) {
			t.Errorf("ended with %d", status)
		}
		if errs, status := r.Merge(); status != 3 || !strings.Contains(errs, "empty") {
			t.Errorf("merge ended with %d: %s", status, errs)
		}
	})
}

// F63: after chroot(2) or setuid(2) the program reaches its own capture no more. What is mapped already stays; what is written is lost
// from there on, which the merge says.
func TestF63CaptureOutOfReach(t *testing.T) {
	needs.Time(t)
	if os.Getuid() != 0 {
		t.Skip("only root can change its root directory and user")
	}
	for backEnd, set := range rig.BackEnds {
		for _, how := range []string{"chroot " + t.TempDir(), "setuid 65534"} {
			t.Run(backEnd+"/"+strings.Fields(how)[0], func(t *testing.T) {
				r := rig.New(t, rig.Spec{Layer: "verbs", Sets: []string{set, "record.chunk=16KiB"}}, "")
				r.Both(rig.Do("post 1000"), rig.Do("%s", how), rig.Do("post 300000"))
				errs, status := r.Merge()
				i := r.Info()
				if status != 3 || len(i.Ranks.Incomplete) != 1 {
					t.Errorf("merge ended with %d: %s", status, errs)
				}
				if backEnd == "mapped" {
					if i.Lost.Events == 0 {
						t.Error("nothing lost")
					}
					r.Exact(i)
					return
				}
				writes, _, _, _ := r.Tally()
				if i.Exact || r.Writes(i).Count >= writes || !strings.Contains(i.Ranks.Incomplete[0].Reason, "what it recorded after its last write is missing") {
					t.Errorf("exact %v, %d of %d writes, incomplete %+v", i.Exact, r.Writes(i).Count, writes, i.Ranks.Incomplete)
				}
			})
		}
	}
}
