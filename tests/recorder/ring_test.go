package recorder

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/launcher/mover"
	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// inMemory configures a run whose captures have limit bytes of memory. It returns the memory's folder too.
func inMemory(t *testing.T, limit int64, s settings) (env []string, captures, folder string) {
	t.Helper()
	folder = filepath.Join(onTmpfs(t), "memory")
	if err := mover.Create(folder, limit); err != nil {
		t.Fatal(err)
	}
	with := settings{"capture.memory": folder}
	for k, v := range s {
		with[k] = v
	}
	env, captures = configure(t, t.TempDir(), with)
	return env, captures, folder
}

// moving copies while the test goes on; end does the rest, as the launcher does, and returns how many captures stayed in memory.
func moving(t *testing.T, folder, captures string) (end func() (int, error)) {
	t.Helper()
	m, err := mover.Open(folder, captures)
	if err != nil {
		t.Fatal(err)
	}
	if !m.Owner() {
		t.Fatal("somebody else owns the memory")
	}
	ctx, stop := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	wait.Add(1)
	go func() {
		defer wait.Done()
		m.Run(ctx)
	}()
	return func() (int, error) {
		stop()
		wait.Wait()
		return m.End(time.Second)
	}
}

// fetch copies everything out of memory once and holds that nothing is left there.
func fetch(t *testing.T, folder, captures string) {
	t.Helper()
	if left, err := moving(t, folder, captures)(); left != 0 || err != nil {
		t.Fatalf("%d captures are left in memory: %v", left, err)
	}
	if _, err := os.Stat(folder); err == nil {
		t.Error("the memory's folder is left")
	}
}

func count(t *testing.T, f *capture.File) (n uint64) {
	t.Helper()
	if err := f.Aggregates(func(a *capture.Aggregate) error { n += a.Count; return nil }); err != nil {
		t.Fatal(err)
	}
	return n
}

// recorded is how many events there are, of all threads.
func recorded(t *testing.T, f *capture.File) (n uint64) {
	t.Helper()
	var d capture.Decoder
	chunks := f.Chunks()
	for i := range chunks {
		d.Reset(f, &chunks[i], catalogue.Default)
		var ev capture.Event
		for {
			ok, err := d.Next(&ev)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			if ev.ID != 0 {
				n++
			}
		}
	}
	return n
}

// used is how many bytes the run's memory has given out, and largest the size of its largest file.
func used(t *testing.T, folder string) (given uint64, largest int64) {
	t.Helper()
	pool, err := os.ReadFile(filepath.Join(folder, "pool"))
	if err != nil {
		t.Fatal(err)
	}
	names, _ := filepath.Glob(filepath.Join(folder, "*", "*"))
	for _, n := range names {
		if st, err := os.Stat(n); err == nil {
			largest = max(largest, st.Size())
		}
	}
	return binary.LittleEndian.Uint64(pool[24:]), largest
}

func TestSeriesComesBackThroughMemory(t *testing.T) {
	client := build(t)
	for _, chunk := range []string{"16384", "65536", "1048576"} {
		for _, meanwhile := range []bool{true, false} {
			t.Run(fmt.Sprint(chunk, meanwhile), func(t *testing.T) {
				env, captures, folder := inMemory(t, 64<<20, settings{"record.chunk": chunk})
				end := func() (int, error) { fetch(t, folder, captures); return 0, nil }
				if meanwhile {
					end = moving(t, folder, captures)
				}
				run(t, env, client, "series", "42", "20000")
				if left, err := end(); left != 0 || err != nil {
					t.Fatalf("%d captures left: %v", left, err)
				}
				f := files(t, captures)[0]
				compare(t, events(t, f, 1), series(42, 20000, 1))
				if l := f.Live(); l.EndMark != capture.EndExit || l.LostEvents != 0 || l.Behind {
					t.Errorf("%+v", l)
				}
			})
		}
	}
}

// Memory is used again: a run of many times its size passes through it, from several threads, and none of it is lost or told twice.
func TestLongRunPassesThroughLittleMemory(t *testing.T) {
	client := build(t)
	env, captures, folder := inMemory(t, 64<<20, settings{"record.chunk": "16384", "record.budget": "1073741824"})
	end := moving(t, folder, captures)
	run(t, env, client, "burst", "6000000")
	_, largest := used(t, folder)
	if left, err := end(); left != 0 || err != nil {
		t.Fatalf("%d captures left: %v", left, err)
	}
	f := files(t, captures)[0]
	st, err := os.Stat(f.Path())
	if err != nil || largest > 17<<20 || st.Size() < 2*largest {
		t.Errorf("capture of %d bytes in %d of memory, %v", st.Size(), largest, err)
	}
	if n := recorded(t, f); n != 6000000 || f.Live().LostEvents != 0 || count(t, f) != 6000000 {
		t.Errorf("%d events, %d lost, %d counted; want 6000000", n, f.Live().LostEvents, count(t, f))
	}
}

// Tables and definitions that come late find memory that events had before, and begin empty.
func TestTablesInMemoryThatWasUsed(t *testing.T) {
	client := build(t)
	env, captures, folder := inMemory(t, 64<<20, settings{"record.chunk": "16384", "record.budget": "1073741824"})
	end := moving(t, folder, captures)
	run(t, env, client, "burst_marks", "3000000", "900")
	if left, err := end(); left != 0 || err != nil {
		t.Fatalf("%d captures left: %v", left, err)
	}
	f := files(t, captures)[0]
	blocks := 0
	if err := f.Aggregates(func(a *capture.Aggregate) error { blocks++; return nil }); err != nil || blocks < 800 {
		t.Errorf("%d entries, %v", blocks, err)
	}
	if n := count(t, f); n != 3000000+5*900 || recorded(t, f) != 3000000+900 { // marks are events too
		t.Errorf("%d counted, %d events", n, recorded(t, f))
	}
}

// Nobody copies (the launcher was killed): what finds no memory goes to the disk, and the two make one capture.
func TestWithoutMoverTheDiskTakesTheRest(t *testing.T) {
	client := build(t)
	for _, limit := range []int64{64 << 20, 1 << 20, 200 << 10, 8192, 0} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			env, captures, folder := inMemory(t, limit, settings{"record.budget": "1073741824"})
			run(t, env, client, "burst", "5000000")
			given, largest := used(t, folder)
			if given > uint64(limit) || largest > min(limit, 17<<20) {
				t.Errorf("%d bytes of memory given out, a file of %d; the bound is %d", given, largest, limit)
			}
			fetch(t, folder, captures)
			f := files(t, captures)[0]
			if n := recorded(t, f); n != 5000000 || f.Live().LostEvents != 0 || count(t, f) != 5000000 || f.Live().Behind {
				t.Errorf("%d events, %d counted, %+v", n, count(t, f), f.Live())
			}
		})
	}
}

// F39, F41: a kill of process and mover at once loses at most the record being written.
func TestKilledWithItsMoverLosesAtMostOne(t *testing.T) {
	for _, reach := range []uint64{20000, 5000000} {
		folder := filepath.Join(onTmpfs(t), "memory")
		if err := mover.Create(folder, 64<<20); err != nil {
			t.Fatal(err)
		}
		n, f := killed(t, "burst", settings{"capture.memory": folder, "record.budget": "1073741824"}, func(n uint64) bool { return n >= reach })
		captures := filepath.Dir(filepath.Dir(f.Path()))
		if !f.Live().Behind || len(f.Chunks()) != 0 && reach == 20000 {
			t.Errorf("before the copy: behind %v, %d chunks", f.Live().Behind, len(f.Chunks()))
		}
		fetch(t, folder, captures)
		f = files(t, captures)[0]
		if kept := recorded(t, f) + f.Live().LostEvents; kept+1 < n || kept > n+1 || f.Live().Behind {
			t.Errorf("kept %d, published %d, %+v", kept, n, f.Live())
		}
	}
}

// While the program runs, its capture is never much behind, though no chunk is full: a mover that vanishes with the memory costs a second.
func TestCaptureOnTheDiskIsASecondBehind(t *testing.T) {
	client := build(t)
	env, captures, folder := inMemory(t, 64<<20, nil)
	end := moving(t, folder, captures)
	cmd := exec.Command(client, "paced", "1000", "600000")
	cmd.Env = env
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
		if left, err := end(); left != 0 || err != nil {
			t.Errorf("%d captures left: %v", left, err)
		}
	}()
	before := uint64(0)
	for until, grown := time.Now().Add(30*time.Second), 0; grown < 3; time.Sleep(200 * time.Millisecond) {
		names, _ := filepath.Glob(filepath.Join(captures, "*", "*.capture"))
		for _, name := range names {
			f, err := capture.Open(name)
			if err != nil {
				continue // it is in the making
			}
			if p := f.Problems(); len(p) > 0 {
				t.Fatalf("%s: %v", name, p)
			}
			if n := recorded(t, f); n > before {
				if !f.Live().Behind || count(t, f) < before {
					t.Errorf("%d events, %d counted, behind %v; there were %d", n, count(t, f), f.Live().Behind, before)
				}
				before = n
				grown++
			}
			f.Close()
		}
		if time.Now().After(until) {
			t.Fatalf("%d events on the disk after half a minute", before)
		}
	}
}

// Forked children, many threads and processes one after the other: each has its capture, whole, and memory is given back.
func TestManyProcessesShareTheMemory(t *testing.T) {
	client := build(t)
	env, captures, folder := inMemory(t, 8<<20, nil)
	end := moving(t, folder, captures)
	var wait sync.WaitGroup
	for range 12 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			cmd := exec.Command(client, "threads", "4")
			cmd.Env = env
			if b, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, b)
			}
		}()
	}
	wait.Wait()
	run(t, env, client, "fork")
	run(t, env, "sh", "-c", `"$0" series 1 100 && exec "$0" series 2 100`, client)
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) { // those that are gone give it back meanwhile
		if given, _ := used(t, folder); given == 0 {
			break
		} else if time.Now().After(until) {
			t.Fatalf("%d bytes of memory are held by processes that are gone", given)
		}
	}
	if left, err := end(); left != 0 || err != nil {
		t.Fatalf("%d captures left: %v", left, err)
	}
	all := files(t, captures)
	if len(all) != 12+2+2 {
		t.Fatalf("%d captures", len(all))
	}
	for _, f := range all {
		if l := f.Live(); l.Behind || l.LostEvents > 0 {
			t.Errorf("%s: %+v", f.Path(), l)
		}
	}
}

// What stands in the memory's place serves nobody: not there, somebody else's, a link, on a disk, foreign, cut off, or full. The capture
// is whole without it.
func TestMemoryThatCannotServe(t *testing.T) {
	client := build(t)
	pool := func(change func(path string) error) func(string) error {
		return func(folder string) error { return change(filepath.Join(folder, "pool")) }
	}
	for name, spoil := range map[string]func(folder string) error{
		"missing":         os.RemoveAll,
		"no pool":         pool(os.Remove),
		"cut pool":        pool(func(p string) error { return os.Truncate(p, 10) }),
		"foreign pool":    pool(func(p string) error { return os.WriteFile(p, []byte(strings.Repeat("x", 4096)), 0o600) }),
		"somebody else's": pool(func(p string) error { return os.Chown(p, 65534, 65534) }),
		"a link": pool(func(p string) error {
			if err := os.Rename(p, p+"2"); err != nil {
				return err
			}
			return os.Symlink(p+"2", p)
		}),
		"a file in the way": func(folder string) error {
			host, err := os.Hostname()
			if err != nil {
				return err
			}
			boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(folder, host+"."+string(boot[:8])), nil, 0o600)
		},
		"on a disk": func(folder string) error {
			disk := folder + "-disk"
			if err := os.Rename(folder, disk); err != nil {
				return err
			}
			return os.Symlink(t.TempDir(), folder)
		},
	} {
		t.Run(name, func(t *testing.T) {
			env, captures, folder := inMemory(t, 64<<20, nil)
			if err := spoil(folder); err != nil {
				t.Fatal(err)
			}
			run(t, env, client, "series", "42", "20000")
			f := files(t, captures)[0]
			compare(t, events(t, f, 1), series(42, 20000, 1))
			if f.Live().Behind {
				t.Error("said to be in memory")
			}
		})
	}
}

// A mover cannot tell when a process of another pid namespace is gone: its capture is on the disk at once.
func TestOtherPidNamespacesDoWithoutMemory(t *testing.T) {
	client := build(t)
	env, captures, folder := inMemory(t, 64<<20, nil)
	cmd := exec.Command("unshare", "-p", "-f", client, "series", "42", "20000")
	cmd.Env = env
	if b, err := cmd.CombinedOutput(); err != nil {
		if strings.Contains(string(b), "unshare") {
			t.Skipf("no pid namespace can be made here: %s", b)
		}
		t.Fatalf("%v\n%s", err, b)
	}
	if given, largest := used(t, folder); given != 0 || largest != 0 {
		t.Errorf("%d bytes of memory given out, a file of %d", given, largest)
	}
	f := files(t, captures)[0]
	compare(t, events(t, f, 1), series(42, 20000, 1))
	if f.Live().Behind {
		t.Error("said to be in memory")
	}
}

// The memory file system is full before its time, or becomes so: no SIGBUS, nothing lost.
func TestFullMemoryFileSystem(t *testing.T) {
	client := build(t)
	for _, size := range []string{"8k", "100k", "400k", "2m"} {
		t.Run(size, func(t *testing.T) {
			small := t.TempDir()
			if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size="+size); err != nil {
				t.Skipf("no file system can be mounted: %v", err)
			}
			t.Cleanup(func() { syscall.Unmount(small, syscall.MNT_DETACH) })
			folder := filepath.Join(small, "memory")
			if err := mover.Create(folder, 64<<20); err != nil {
				t.Fatal(err)
			}
			env, captures := configure(t, t.TempDir(), settings{"capture.memory": folder})
			run(t, env, client, "burst", "1000000")
			fetch(t, folder, captures)
			f := files(t, captures)[0]
			if n := recorded(t, f); n != 1000000 || f.Live().LostEvents != 0 || f.Live().Behind {
				t.Errorf("%d events, %+v", n, f.Live())
			}
		})
	}
}

// A twentieth of the process's own control group, whatever the run may take; what goes to the disk needs some of it as well.
func TestMemoryKeepsToTheGroupsLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	client := build(t)
	const limit = 64 << 20
	join := memoryGroup(t, limit)
	env, captures, folder := inMemory(t, 64<<20, settings{"record.budget": "1073741824"})
	run(t, env, "sh", "-c", join+`exec "$0" burst 5000000`, client)
	if _, largest := used(t, folder); largest > limit/40 || largest < 256<<10 {
		t.Errorf("%d bytes of memory; half of a twentieth of the limit is %d", largest, limit/40)
	}
	fetch(t, folder, captures)
	if f := files(t, captures)[0]; f.Live().LostEvents != 0 || count(t, f) != 5000000 {
		t.Errorf("%d counted, %+v", count(t, f), f.Live())
	}
}

// The run directory's disk is full when the memory is to be copied: it stays there, and can be copied when there is room.
func TestDiskFullWhenMemoryIsCopied(t *testing.T) {
	client, disk := build(t), t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=16m"); err != nil {
		t.Skipf("no file system can be mounted: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(disk, syscall.MNT_DETACH) })
	env, captures, folder := inMemory(t, 64<<20, nil)
	run(t, env, client, "series", "42", "200000")
	small := filepath.Join(disk, "capture")
	if b, err := exec.Command("cp", "-a", captures, small).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	filler := filepath.Join(disk, "filler")
	f, err := os.Create(filler)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	f.Close()
	if left, err := moving(t, folder, small)(); left != 1 || err == nil || !strings.Contains(err.Error(), "no space") {
		t.Fatalf("%d captures left on a full disk, %v", left, err)
	}
	if fs := files(t, small); !fs[0].Live().Behind {
		t.Error("the capture is said to be whole")
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	fetch(t, folder, small)
	whole := files(t, small)[0]
	compare(t, events(t, whole, 1), series(42, 200000, 1))
}

// A second mover, a merge of a run that goes on, copies and takes nothing away; somebody who clears the memory file system, as logind does
// when its user leaves, costs nothing.
func TestMoversKeepOutOfEachOthersWay(t *testing.T) {
	client := build(t)
	env, captures, folder := inMemory(t, 64<<20, nil)
	end := moving(t, folder, captures)
	cmd := exec.Command(client, "paced", "100", "120000") // until SIGTERM
	cmd.Env = env
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	onDisk := func() (n uint64) {
		names, _ := filepath.Glob(filepath.Join(captures, "*", "*.capture"))
		for _, name := range names {
			if f, err := capture.Open(name); err == nil { // else it is in the making
				f.Aggregates(func(a *capture.Aggregate) error { n += a.Count; return nil }) //nolint:errcheck // it is being written
				f.Close()
			}
		}
		return n
	}
	for range 20 {
		m, err := mover.Open(folder, captures)
		if err != nil {
			t.Fatal(err)
		}
		if m.Owner() {
			t.Fatal("two own the memory")
		}
		if err := m.Copy(30 * time.Second); err != nil {
			t.Error(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	// The owner has the file open when it alone goes on copying it.
	for before, end := max(onDisk(), 1000), time.Now().Add(time.Minute); onDisk() <= before; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d requests are on the disk after a minute", onDisk())
		}
	}
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if left, err := end(); left != 0 || err != nil {
		t.Fatalf("%d captures left, %v", left, err)
	}
	f := files(t, captures)[0]
	if n := recorded(t, f); n < 1000 || n != count(t, f) || f.Live().Behind {
		t.Errorf("%d events of %d, %+v", n, count(t, f), f.Live())
	}
}
