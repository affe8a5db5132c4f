// Package recorder tests the recorder (preload/) by what a client program records through it.
package recorder

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

func TestSeriesComesBack(t *testing.T) {
	client := build(t)
	for _, backEnd := range []string{"mapped", "written"} {
		for _, chunk := range []string{"16384", "65536"} {
			t.Run(backEnd+chunk, func(t *testing.T) {
				env, captures := configure(t, t.TempDir(), settings{"record.back_end": backEnd, "record.chunk": chunk})
				run(t, env, client, "series", "42", "20000")
				fs := files(t, captures)
				if len(fs) != 1 {
					t.Fatalf("%d captures, want 1", len(fs))
				}
				compare(t, events(t, fs[0], 1), series(42, 20000, 1))
				if fs[0].Live().EndMark != capture.EndExit {
					t.Error("no end mark after an orderly exit")
				}
				if l := fs[0].Live(); l.LostEvents != 0 {
					t.Errorf("lost %d events", l.LostEvents)
				}
				st, err := os.Stat(fs[0].Path())
				if err != nil || st.Mode().Perm() != 0o600 {
					t.Errorf("mode %v, %v; want 0600", st.Mode(), err)
				}
			})
		}
	}
}

func TestAggregatesEqualEvents(t *testing.T) {
	client := build(t)
	env, captures := configure(t, t.TempDir(), nil)
	run(t, env, client, "threads", "8")
	f := files(t, captures)[0]
	type key struct {
		object uint32
		event  uint16
	}
	want, got := map[key][2]uint64{}, map[key][2]uint64{}
	total := 0
	for thread := uint32(1); thread <= f.Live().Threads; thread++ { // fewer than 8 when one ended before another began
		evs := events(t, f, thread)
		total += len(evs)
		for _, e := range evs {
			i := 1
			switch {
			case e.ID == catalogue.EventUcpCompletion:
				i = 2
			case e.ID > catalogue.EventUcpCompletion:
				continue
			}
			k := key{uint32(e.Fields[0]), e.ID}
			w := want[k]
			want[k] = [2]uint64{w[0] + 1, w[1] + e.Fields[i]}
		}
	}
	if total != 8*2000 {
		t.Fatalf("%d events, want %d", total, 8*2000)
	}
	err := f.Aggregates(func(a *capture.Aggregate) error {
		k := key{a.Object, a.Event}
		g := got[k]
		got[k] = [2]uint64{g[0] + a.Count, g[1] + a.Bytes}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Fatalf("%d aggregates, want %d", len(got), len(want))
	}
	for k, w := range want {
		if got[k] != w {
			t.Errorf("%v: %v, want %v", k, got[k], w)
		}
	}
}

func TestEndedThreadsGiveTheirStateOn(t *testing.T) {
	client := build(t)
	env, captures := configure(t, t.TempDir(), nil)
	run(t, env, client, "one_by_one", "50")
	f := files(t, captures)[0]
	if n := f.Live().Threads; n != 1 {
		t.Errorf("%d thread states for 50 threads one after the other, want 1", n)
	}
	if n := len(events(t, f, 1)); n != 50*2000 {
		t.Errorf("%d events, want %d", n, 50*2000)
	}
}

func TestForkedChildHasItsOwnCapture(t *testing.T) {
	client := build(t)
	for _, how := range []string{"fork", "clone"} { // clone: made by the raw system call, no fork handler runs
		t.Run(how, func(t *testing.T) {
			env, captures := configure(t, t.TempDir(), nil)
			run(t, env, client, how)
			fs := files(t, captures)
			if len(fs) != 2 {
				t.Fatalf("%d captures, want 2", len(fs))
			}
			if fs[0].Header().ParentPid == fs[1].Header().Pid { // numbers come round
				fs[0], fs[1] = fs[1], fs[0]
			}
			parent, child := events(t, fs[0], 1), events(t, fs[1], 1)
			if len(parent) != 700 {
				t.Fatalf("parent: %d events, want 700", len(parent))
			}
			compare(t, parent[:500], series(1, 500, 1))
			compare(t, parent[500:], series(3, 200, 21))
			compare(t, child, series(2, 300, 1))
			if fs[1].Header().ParentPid != fs[0].Header().Pid {
				t.Error("the child's capture does not name its parent")
			}
		})
	}
}

// F34: the loader has a lock that a child never gets where another thread of its parent had it (dl_iterate_phdr(3), as C++ exceptions call it).
func TestF34ChildWithTheLoadersLockTaken(t *testing.T) {
	env, captures := configure(t, t.TempDir(), nil)
	run(t, env, build(t), "fork_in_walk", "300")
	all := files(t, captures)
	if len(all) != 1 {
		t.Fatalf("%d captures, want the child's alone", len(all))
	}
	compare(t, events(t, all[0], 1), series(42, 300, 1))
}

// F33: shells and helpers that inherit the preload.
func TestSilentProcessesLeaveNoCapture(t *testing.T) {
	client := build(t)
	env, captures := configure(t, t.TempDir(), nil)
	run(t, env, client, "silent_fork")
	if n := len(files(t, captures)); n != 1 {
		t.Errorf("%d captures, want the parent's alone", n)
	}
	env, captures = configure(t, t.TempDir(), nil)
	run(t, env, client, "idle")
	if m, _ := filepath.Glob(captures + "/*"); len(m) > 0 {
		t.Errorf("an idle program left %v", m)
	}
	run(t, append(env, "SIGMATRACE=off"), client, "burst", "100")
	if m, _ := filepath.Glob(captures + "/*"); len(m) > 0 {
		t.Errorf("SIGMATRACE=off left %v", m)
	}
}

// Where a file is to be read there may be a pipe, which nobody writes to.
func TestPipesAreNotWaitedFor(t *testing.T) {
	client := build(t)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, set := range map[string]map[string]string{"configuration": nil, "control": {"run.control": pipe}} {
		t.Run(name, func(t *testing.T) {
			env, _ := configure(t, t.TempDir(), set)
			if set == nil {
				env = append(env, "SIGMATRACE_CONFIG="+pipe)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, client, "burst", "100")
			cmd.Env = env
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// F27: a loader that cannot load us says nothing that a job would notice; this record is what is missing then.
func TestAliveRecordOfRanks(t *testing.T) {
	client := build(t)
	env, captures := configure(t, t.TempDir(), nil)
	run(t, append(env, "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4", "SLURM_PROCID=0"), client, "idle")
	names, _ := filepath.Glob(captures + "/*/*")
	if len(names) != 1 || filepath.Base(names[0]) != "alive" {
		t.Fatalf("files %v, want alive alone", names)
	}
	a, err := capture.ReadAlive(names[0])
	if err != nil || len(a) != 1 {
		t.Fatalf("%v, %v", a, err)
	}
	if a[0].Rank != 3 || a[0].World != 4 || a[0].RankSource != 1 || filepath.Base(a[0].Executable) != "client" {
		t.Errorf("alive record %+v", a[0])
	}
}

// With record.scratch the capture directory exists on the launcher's host alone.
func TestCaptureDirectoryIsMade(t *testing.T) {
	client := build(t)
	env, captures := configure(t, t.TempDir(), nil)
	for _, c := range []struct {
		rank string // of a rank, the proof of life is the first
		args []string
		want string
	}{{"", []string{client, "series", "42", "100"}, "*.capture"}, {"OMPI_COMM_WORLD_RANK=3", []string{client, "idle"}, "alive"}} {
		if err := os.RemoveAll(captures); err != nil {
			t.Fatal(err)
		}
		run(t, append(env, c.rank), c.args...)
		if m, _ := filepath.Glob(filepath.Join(captures, "*", c.want)); len(m) != 1 {
			t.Errorf("%v left %v", c.args[1:], m)
		}
		if st, err := os.Stat(captures); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("capture directory: %v, %v", st, err)
		}
	}
}

// killed starts the client, kills it when reached says so of the count that it publishes, and returns that count and the capture.
func killed(t *testing.T, what string, with settings, reached func(published uint64) bool) (uint64, *capture.File) {
	t.Helper()
	client, dir := build(t), t.TempDir()
	env, captures := configure(t, dir, with)
	shared := filepath.Join(dir, "count")
	if err := os.WriteFile(shared, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(client, what, "100000000000", shared)
	cmd.Env = env
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	published := func() uint64 {
		b, err := os.ReadFile(shared)
		if err != nil {
			t.Fatal(err)
		}
		return binary.LittleEndian.Uint64(b)
	}
	for !reached(published()) {
		time.Sleep(time.Millisecond)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	f := files(t, captures)[0]
	if f.Live().EndMark != capture.EndNone {
		t.Error("an end mark after SIGKILL")
	}
	return published(), f
}

// F39, F41.
func TestKilledInTheMiddleLosesAtMostOne(t *testing.T) {
	n, f := killed(t, "burst", nil, func(n uint64) bool { return n >= 20000 })
	if kept := uint64(len(events(t, f, 1))) + f.Live().LostEvents; kept+1 < n || kept > n+1 {
		t.Errorf("kept %d, published %d", kept, n)
	}
}

// The written back end brings the tables up to date once a second, also where no event ever fills a chunk.
func TestKilledWriterLosesASecondOfItsTables(t *testing.T) {
	var began time.Time
	var first, later uint64
	n, f := killed(t, "tables", settings{"record.back_end": "written"}, func(n uint64) bool {
		if n > 0 && first == 0 {
			began, first = time.Now(), n
		}
		if time.Since(began) < time.Second/4 {
			first = n
		}
		if first > 0 && later == 0 && time.Since(began) > 3*time.Second {
			later = n
		}
		return later > 0 && n > later+100_000 // it has not stood still since: it looks now and then whether tables are due
	})
	var count uint64
	if err := f.Aggregates(func(a *capture.Aggregate) error { count += a.Count; return nil }); err != nil || count < first || count > n+1 {
		t.Errorf("tables counted %d, %v; %d were published when it was killed, %d nearly three seconds earlier", count, err, n, first)
	}
}

// F63.
func TestByteBudgetStopsEventsNotTables(t *testing.T) {
	client := build(t)
	for _, backEnd := range []string{"mapped", "written"} {
		t.Run(backEnd, func(t *testing.T) {
			env, captures := configure(t, t.TempDir(), settings{"record.budget": "1048576", "record.back_end": backEnd})
			run(t, env, client, "burst", "1000000")
			f := files(t, captures)[0]
			kept := uint64(len(events(t, f, 1)))
			l := f.Live()
			if kept+l.LostEvents != 1000000 || l.LostEvents == 0 || l.LostBytes != 8*l.LostEvents || l.LostCause != capture.LostBudget {
				t.Errorf("kept %d, lost %d events, %d bytes, cause %v", kept, l.LostEvents, l.LostBytes, l.LostCause)
			}
			var count uint64
			if err := f.Aggregates(func(a *capture.Aggregate) error { count += a.Count; return nil }); err != nil || count != 1000000 {
				t.Errorf("tables counted %d, %v; want 1000000", count, err)
			}
			if st, _ := os.Stat(f.Path()); st.Size() > 1048576+4096 {
				t.Errorf("file of %d bytes over a budget of 1 MiB", st.Size())
			}
		})
	}
}

// F63.
func TestFileSizeLimitIsNoSignal(t *testing.T) {
	client := build(t)
	for _, backEnd := range []string{"mapped", "written"} {
		t.Run(backEnd, func(t *testing.T) {
			env, captures := configure(t, t.TempDir(), settings{"record.back_end": backEnd})
			run(t, env, client, "fsize", "2000000", "1000000")
			f := files(t, captures)[0]
			if l := f.Live(); l.LostEvents == 0 || l.LostCause != capture.LostSpace || l.LostErrno != uint32(syscall.EFBIG) {
				t.Errorf("lost %d, cause %v, errno %d", l.LostEvents, l.LostCause, l.LostErrno)
			}
			for _, limit := range []string{"0", "100000"} {
				env, _ := configure(t, t.TempDir(), settings{"record.back_end": backEnd})
				run(t, env, client, "fsize_later", limit, "100000")
			}
		})
	}
}

// F63: the proof of life of a rank is written before the program's first line.
func TestFileSizeLimitDoesNotEndRanks(t *testing.T) {
	client := build(t)
	env, captures := configure(t, t.TempDir(), nil)
	for rank := range 4 { // a record has 512 bytes, the limit is 1,024
		cmd := exec.Command("sh", "-c", `ulimit -f "$1"; exec "$0" burst 1`, client, strconv.Itoa(rank%2*2))
		cmd.Env = append(env, fmt.Sprintf("RANK=%d", rank))
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("rank %d: %v\n%s", rank, err, b)
		}
	}
	names, _ := filepath.Glob(captures + "/*/alive")
	if a, err := capture.ReadAlive(names[0]); err != nil || len(a) != 2 {
		t.Errorf("%d records, %v; want those of the two that had room", len(a), err)
	}
}

// Files are 0600 in directories 0700 whatever the program's umask: they are opened again, by this process and by the merge.
func TestModesDoNotDependOnTheUmask(t *testing.T) {
	client := build(t)
	for _, umask := range []string{"0", "0777"} {
		env, captures := configure(t, t.TempDir(), nil)
		run(t, append(env, "RANK=0"), "sh", "-c", "umask "+umask+`; exec "$0" burst 1`, client)
		names, _ := filepath.Glob(captures + "/*/*")
		nodes, _ := filepath.Glob(captures + "/*")
		if len(names) != 2 {
			t.Errorf("umask %s: files %v", umask, names)
		}
		for _, name := range append(names, nodes...) {
			st, err := os.Stat(name)
			want := os.FileMode(0o600)
			if err == nil && st.IsDir() {
				want = 0o700
			}
			if err != nil || st.Mode().Perm() != want {
				t.Errorf("umask %s: %s is %v, want %v, %v", umask, name, st.Mode(), want, err)
			}
		}
	}
}

// F63: where there is no room for a whole window, the tables and definitions get what there is.
func TestNearlyFullDiskKeepsTheTables(t *testing.T) {
	client, dir := build(t), t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=300k"); err != nil {
		t.Fatalf("mounting a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	env, captures := configure(t, dir, nil)
	run(t, env, client, "burst", "1000000")
	f := files(t, captures)[0]
	var count uint64
	if err := f.Aggregates(func(a *capture.Aggregate) error { count += a.Count; return nil }); err != nil || count != 1000000 {
		t.Errorf("tables counted %d, %v; want 1000000", count, err)
	}
	f.Close()
}

// F63.
func TestFullDiskIsHarmless(t *testing.T) {
	client := build(t)
	for _, backEnd := range []string{"mapped", "written"} {
		t.Run(backEnd, func(t *testing.T) {
			dir := t.TempDir()
			if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
				t.Fatalf("mounting a small file system: %v", err)
			}
			t.Cleanup(func() {
				if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
					t.Error(err)
				}
			})
			env, captures := configure(t, dir, settings{"record.back_end": backEnd})
			run(t, env, client, "burst", "1000000")
			names, _ := filepath.Glob(captures + "/*/*.capture")
			f, err := capture.Open(names[0])
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			kept, l := uint64(len(events(t, f, 1))), f.Live()
			if kept == 0 || kept+l.LostEvents != 1000000 || l.LostCause != capture.LostSpace {
				t.Errorf("kept %d, lost %d, cause %v", kept, l.LostEvents, l.LostCause)
			}
		})
	}
}

// A file system that refuses a shared mapping and does not look like one over the network: 9p without a cache does that.
func TestRefusedMappingIsWritten(t *testing.T) {
	client, dir := build(t), t.TempDir()
	refuse := filepath.Join(dir, "refuse.so")
	if b, err := exec.Command("gcc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", refuse, "testdata/refuse.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	env, captures := configure(t, dir, nil)
	run(t, append(env, "LD_PRELOAD="+refuse), client, "series", "42", "2000")
	all := files(t, captures)
	if len(all) != 1 || all[0].Header().BackEnd != capture.Written {
		t.Fatalf("%d captures, not one that was written", len(all))
	}
	compare(t, events(t, all[0], 1), series(42, 2000, 1))
}

func TestProgramsThatCloseDescriptors(t *testing.T) {
	client := build(t)
	env, captures := configure(t, t.TempDir(), nil)
	run(t, env, client, "closefds", "0", "1000000")
	f := files(t, captures)[0]
	if n := uint64(len(events(t, f, 1))) + f.Live().LostEvents; n != 1000100 {
		t.Errorf("%d events, want 1000100", n)
	}
}

func TestErrnoAndLookupsStay(t *testing.T) {
	client := build(t)
	env, _ := configure(t, t.TempDir(), nil)
	run(t, env, client, "errno", "0", "100000")
	run(t, env, client, "lookup")
	run(t, append(env, "SIGMATRACE=off"), client, "lookup")
}

func TestGeneratedFilesAreCurrent(t *testing.T) {
	cmd := exec.Command("go", "run", "./preload/gen", "-check")
	cmd.Dir = root
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, bytes.TrimSpace(b))
	}
}

func TestCountersPrecedeObjects(t *testing.T) {
	client := build(t)
	env, captures := configure(t, t.TempDir(), settings{"record.chunk": "16384"})
	run(t, env, client, "series", "7", "20000")
	f := files(t, captures)[0]
	chunks := f.Chunks()
	slices.SortFunc(chunks, func(a, b capture.Chunk) int { return int(a.Sequence) - int(b.Sequence) })
	if len(chunks) < 3 {
		t.Fatalf("%d chunks, want several", len(chunks))
	}
	posted, completed := map[uint64]uint64{}, map[uint64]uint64{}
	var d capture.Decoder
	for i := range chunks {
		seen := map[uint64]bool{}
		d.Reset(f, &chunks[i], catalogue.Default)
		for {
			var ev capture.Event
			if ok, err := d.Next(&ev); err != nil {
				t.Fatal(err)
			} else if !ok {
				break
			}
			o := ev.Fields[0]
			switch {
			case ev.ID == 0:
				seen[o] = true
				n := ev.Fields[capture.CountersPosted] + ev.Fields[capture.CountersReceived]
				if n != posted[o] || ev.Fields[capture.CountersCompleted] != completed[o] {
					t.Fatalf("chunk %d, object %d: counters %v, counted %d and %d", i, o, ev.Fields[:4], posted[o], completed[o])
				}
			case !seen[o]:
				t.Fatalf("chunk %d: no counters before object %d", i, o)
			case ev.ID == catalogue.EventUcpCompletion:
				completed[o]++
			case ev.ID < catalogue.EventUcpCompletion:
				posted[o]++
			}
		}
	}
}
