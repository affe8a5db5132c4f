package life

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// lifeClient builds the program of the scenarios.
func lifeClient(t *testing.T) string {
	t.Helper()
	return compile(t, "life", "testdata/life.c", "testdata/work.c", "-libverbs", "-lpthread")
}

// F34, F39: the forked workers of a data loader, which communicate themselves and are ended in every way that process pools have:
// in order, by os._exit, by terminate(), by kill(). All they did is recorded, each in a capture of its own, and the parent's goes on.
func TestF34F39ForkedDataLoaderWorkers(t *testing.T) {
	client := lifeClient(t)
	for _, how := range []string{"exit", "_exit", "term", "kill"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t)
			r.same(0, client, "workers", "4", "100", how)
			for _, p := range r.expect(5, "verbs.write", 900) {
				want := uint64(100)
				if int(p.header.ParentPid) == os.Getpid() {
					want = 500
				}
				if p.tables["verbs.write"] != want {
					t.Errorf("process %d: %d writes, want %d", p.header.Pid, p.tables["verbs.write"], want)
				}
			}
		})
	}
}

// F34: a fork in one thread while others record. The children do not inherit what those hold.
func TestF34ForkInAThreadWhileOthersRecord(t *testing.T) {
	r := newRig(t)
	n := 20000
	if testing.Short() {
		n = 2000
	}
	r.same(0, lifeClient(t), "fork_thread", "30", fmt.Sprint(n))
	r.expect(31, "verbs.write", uint64(3*n+300+1))
}

// F35: a child that becomes another program waits for nothing of its parent's, and leaves no capture.
func TestF35ExecInForkedChild(t *testing.T) {
	r := newRig(t)
	r.same(0, lifeClient(t), "exec_children", "60", "5000")
	r.expect(1, "verbs.write", 15000)
}

// A process that becomes another program, again and again, has a capture for each, told apart by the image counter.
func TestF33ExecChain(t *testing.T) {
	r := newRig(t)
	r.same(4, lifeClient(t), "execs", "3", "50")
	all := r.expect(4, "verbs.write", 200)
	for i, p := range all {
		if p.header.Pid != all[0].header.Pid || int(p.header.Image) != i || p.tables["verbs.write"] != 50 {
			t.Errorf("capture %d: pid %d, image %d, %d writes", i, p.header.Pid, p.header.Image, p.tables["verbs.write"])
		}
	}
}

// F36: no second preload is needed for programs that fork: children that end in order run the exit handlers that they inherited, and those
// communicate, in children that had communicated before and in such that had not.
func TestF36ExitHandlersOfForkedChildren(t *testing.T) {
	r := newRig(t)
	r.same(0, lifeClient(t), "fork_end", "4", "20")
	for _, p := range r.expect(5, "verbs.write", 20+2*20+5*5) {
		if !p.ended {
			t.Errorf("process %d: no end mark", p.header.Pid)
		}
	}
}

// F37: pthread_exit in main. What threads do afterwards is recorded, and the end is in order.
func TestF37PthreadExitInMain(t *testing.T) {
	r := newRig(t)
	r.same(0, lifeClient(t), "main_ends", "100")
	if all := r.expect(1, "verbs.write", 200); len(all) == 1 && !all[0].ended {
		t.Error("no end mark")
	}
}

// F37: destructors of thread-specific data and of thread-local objects that run before and after ours, and communicate.
func TestF37ThreadDestructorsInAnyOrder(t *testing.T) {
	r := newRig(t)
	o := r.same(0, lifeClient(t), "destructors", "20")
	var n uint64
	if _, err := fmt.Sscanf(o.stdout, "%d posted", &n); err != nil || n < 1+20*(1+2+4) {
		t.Fatalf("%v: %+v", err, o)
	}
	r.expect(1, "verbs.write", n)
}

// F37: a thread, or a fiber, with little stack.
func TestF37SmallStack(t *testing.T) {
	r := newRig(t)
	r.same(0, lifeClient(t), "small_stack", "100")
	r.expect(1, "verbs.write", 100)
}

// Threads that go on while the process ends: all that they had posted is there, but the one that each was at.
func TestF43ThreadsRunningAtExit(t *testing.T) {
	r := newRig(t)
	file := filepath.Join(r.dir, "posted")
	r.same(7, lifeClient(t), "running_at_exit", file)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var posted uint64
	for i := range 4 {
		posted += binary.LittleEndian.Uint64(text[8*i:])
	}
	all := r.recorded()
	tables, events := total(all, "verbs.write")
	if len(all) != 1 || tables < posted || tables > posted+4 || events < posted || events > posted+4 {
		t.Errorf("%d captures; %d writes in the tables, %d events, the threads had posted %d", len(all), tables, events, posted)
	}
}

// F39, F43: however a process ends, all that it did is recorded, also what it does in its exit handlers.
func TestF39EveryWayToEnd(t *testing.T) {
	client := lifeClient(t)
	for _, c := range []struct {
		how    string
		status int
		extra  uint64 // writes of exit handlers
		ended  bool
	}{
		{"return", 5, 16, true}, {"exit", 5, 16, true}, {"quick_exit", 5, 7, false}, {"_exit", 5, 0, false}, {"exit_group", 5, 0, false},
		{"abort", 134, 0, false}, {"segv", 139, 0, false}, {"xcpu", 152, 0, false},
	} {
		t.Run(c.how, func(t *testing.T) {
			r := newRig(t)
			r.same(c.status, client, "end", c.how, "100")
			if all := r.expect(1, "verbs.write", 100+c.extra); len(all) == 1 && all[0].ended != c.ended {
				t.Errorf("end mark: %t", all[0].ended)
			}
		})
	}
}

// A handler that ends the process where it interrupts the recorder: it ends, and its capture is whole.
func TestF39EndedByHandlers(t *testing.T) {
	const n = 40
	r := newRig(t)
	r.lossy = true
	r.same(0, lifeClient(t), "ended_by_handlers", fmt.Sprint(n))
	all := r.recorded()
	if len(all) < n/2 || len(all) > n {
		t.Errorf("%d captures, want %d to %d", len(all), n/2, n)
	}
	for _, p := range all {
		if !p.ended {
			t.Errorf("process %d has no end mark", p.header.Pid)
		}
	}
}

// F40, F42: no signal handler, no thread, no descriptor, no child, nothing in /dev/shm, which is the process's own here: others use this machine's.
func TestF40F42NothingOfOursInTheProcess(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, for a /dev/shm that nobody else uses")
	}
	r := newRig(t)
	r.same(0, "unshare", "--mount", "sh", "-c", `mount -t tmpfs tmpfs /dev/shm && exec "$@"`, "sh", lifeClient(t), "state", "100")
	r.expect(1, "verbs.write", 100)
}

// F51: the code of no library is written to.
func TestF51CodeIsNotPatched(t *testing.T) {
	r := newRig(t)
	if o := r.same(0, lifeClient(t), "code", "100"); strings.Contains(o.stdout, "ibverbs") || !strings.Contains(o.stdout, "looked") {
		t.Errorf("%s", o.stdout)
	}
	r.expect(1, "verbs.write", 100)
}

// F24: off is off, for the process and all it starts: no capture, no folder, no proof of life.
func TestF24OffSwitch(t *testing.T) {
	r := newRig(t)
	r.env = []string{"SIGMATRACE=off", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1"}
	r.same(0, lifeClient(t), "workers", "2", "10", "_exit")
	if left, err := filepath.Glob(r.captures() + "/*"); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}
