package life

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/tests/needs"
)

// fakeUCP puts a libucp.so.0 of its own before UCX's, which unlike that can be unloaded.
func (r *rig) fakeUCP() {
	r.t.Helper()
	lib := compile(r.t, "libucp.so.0", "-shared", "-fPIC", "-Wl,-soname,libucp.so.0", "testdata/fakeucp.c")
	r.withoutHCA = true
	r.env = append(r.env, "LD_LIBRARY_PATH="+filepath.Dir(lib))
}

// callers builds the program that calls it, one that looks it up and one that is linked with it.
func callers(t *testing.T) (looking, linked string) {
	t.Helper()
	lib := compile(t, "libucp.so", "-shared", "-fPIC", "-Wl,-soname,libucp.so.0", "testdata/fakeucp.c")
	return compile(t, "looking", "testdata/calls.c", "-ldl"), compile(t, "linked", "-DLINKED", "testdata/calls.c", lib, "-ldl")
}

// F45, F46, F56: a second tool that hooks the same functions, and dlsym itself, before ours and behind it. It sees what it sees without
// us, and so do we, however the program finds the function.
func TestF45F46F56SecondToolBeforeAndBehind(t *testing.T) {
	tool := compile(t, "tool.so", "-shared", "-fPIC", "testdata/tool.c", "-ldl")
	looking, linked := callers(t)
	for _, where := range []string{"before", "behind", "both"} {
		for name, argv := range map[string][]string{"looking": {looking, "local", "100"}, "global": {looking, "global", "100"}, "linked": {linked, "", "100"}} {
			t.Run(where+"/"+name, func(t *testing.T) {
				r := newRig(t)
				r.fakeUCP()
				switch where {
				case "before":
					r.before = []string{tool}
				case "behind":
					r.behind = []string{tool}
				case "both":
					second := compile(t, "second.so", "-shared", "-fPIC", "testdata/tool.c", "-ldl")
					r.before, r.behind = []string{tool}, []string{second}
				}
				o := r.same(0, argv...)
				if !strings.Contains(o.stdout, "100 called, 100 arrived") || !strings.Contains(o.stdout, "tool: 100 puts") {
					t.Errorf("%s", o.stdout)
				}
				r.expect(1, "ucp.put", 100)
			})
		}
	}
}

// F56: tools that people really have there.
func TestF56AllocatorsAndHeapProfilers(t *testing.T) {
	client := lifeClient(t)
	for name, c := range map[string]struct{ lib, env string }{
		"jemalloc":  {"/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "A=b"},
		"heaptrack": {"/usr/lib/heaptrack/libheaptrack_preload.so", "DUMP_HEAPTRACK_OUTPUT=/dev/null"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat(c.lib); err != nil {
				t.Skipf("%s is not installed", name)
			}
			for _, where := range []string{"before", "behind"} {
				for _, argv := range [][]string{{client, "fork_thread", "5", "1000"}, {client, "end", "return", "100"}} {
					t.Run(where+"/"+argv[1], func(t *testing.T) {
						r := newRig(t)
						r.env = []string{c.env}
						if where == "before" {
							r.before = []string{c.lib}
						} else {
							r.behind = []string{c.lib}
						}
						r.same(map[string]int{"fork_thread": 0, "end": 5}[argv[1]], argv...)
						r.expect(map[string]int{"fork_thread": 6, "end": 1}[argv[1]], "verbs.write", map[string]uint64{"fork_thread": 3051, "end": 116}[argv[1]])
					})
				}
			}
		})
	}
}

// A library that is closed and loaded again at another address: no call goes where it was.
func TestF46LibraryClosedAndLoadedAgain(t *testing.T) {
	looking, _ := callers(t)
	r := newRig(t)
	r.fakeUCP()
	r.same(0, looking, "reloaded", "100")
	r.expect(1, "ucp.put", 1000)
}

// F40: signals at 10 kHz whose handlers call what they interrupt. A call of a handler that interrupted a hook of ours is not recorded; every
// other one is, once, and the capture is whole.
func TestF40SignalStorm(t *testing.T) {
	needs.Time(t)
	looking, _ := callers(t)
	r := newRig(t)
	r.fakeUCP()
	file := filepath.Join(r.dir, "calls")
	if o := r.same(0, looking, "storm", "2", file); o.stdout != "stormed\n" {
		t.Fatalf("%s", o.stdout)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var n, inHandlers uint64
	if _, err := fmt.Sscan(string(text), &n, &inHandlers); err != nil {
		t.Fatal(err)
	}
	all := r.recorded()
	tables, events := total(all, "ucp.put")
	if len(all) != 1 || tables != events || tables < n || tables > n+inHandlers {
		t.Errorf("%d captures; %d calls in the tables, %d events, want %d and up to %d of handlers", len(all), tables, events, n, inHandlers)
	}
}

// F40: handlers that call another layer than the one they interrupt, in which no hook of theirs is open. What interrupts the recorder itself is
// counted as lost, all else is recorded; nothing hangs, and the capture is whole.
func TestF40HandlersCallAnotherLayer(t *testing.T) {
	needs.Time(t)
	r := newRig(t)
	file := filepath.Join(r.dir, "calls")
	if o := r.same(0, lifeClient(t), "handlers", "2", file); o.stdout != "handled\n" {
		t.Fatalf("%s", o.stdout)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var writes, handled uint64
	if _, err := fmt.Sscan(string(text), &writes, &handled); err != nil {
		t.Fatal(err)
	}
	r.lossy = true
	all := r.recorded()
	if len(all) != 1 {
		t.Fatalf("%d captures", len(all))
	}
	p := all[0]
	if p.tables["verbs.write"] != writes || p.events["verbs.write"] != writes {
		t.Errorf("%d writes in the tables, %d events, want %d", p.tables["verbs.write"], p.events["verbs.write"], writes)
	}
	if p.app+p.live.LostEvents != 3*handled || p.live.LostTables != p.live.LostEvents {
		t.Errorf("%d marks and edges of phases recorded, %d lost (tables: %d), want %d", p.app, p.live.LostEvents, p.live.LostTables, 3*handled)
	}
	if cause := p.live.LostCause; p.live.LostEvents > 0 && cause != capture.LostHandler {
		t.Errorf("cause of loss: %v", cause)
	}
}

// F37: threads that have been cancelled and do not know it yet. They are not cancelled in the recorder's system calls, nor leave its locks taken.
func TestF37CancelledThreads(t *testing.T) {
	looking, _ := callers(t)
	r := newRig(t)
	r.fakeUCP()
	if o := r.same(0, looking, "cancelled", "400000"); o.stdout != "400000 called, 400000 arrived\n" {
		t.Errorf("%s", o.stdout)
	}
	r.expect(1, "ucp.put", 400000)
}

// A program without standard output whose other threads write to it: not into the capture, whose descriptor might have that number.
func TestStandardOutputIsClosed(t *testing.T) {
	looking, _ := callers(t)
	r := newRig(t)
	r.fakeUCP()
	if o := r.same(0, looking, "closed", "2000000"); o.stderr != "0 writes went through\n" {
		t.Errorf("%s", o.stderr)
	}
	r.expect(1, "ucp.put", 2000000)
}

// All symbols bound at the start instead of at the first call.
func TestF46BoundAtTheStart(t *testing.T) {
	_, linked := callers(t)
	r := newRig(t)
	r.fakeUCP()
	r.env = append(r.env, "LD_BIND_NOW=1")
	r.same(0, linked, "", "100")
	r.expect(1, "ucp.put", 100)
	r = newRig(t)
	r.env = []string{"LD_BIND_NOW=1"}
	r.same(5, lifeClient(t), "end", "return", "100")
	r.expect(1, "verbs.write", 116)
}

// F29: a helper that may not map our libraries, as one that is confined: where they lie on a file system without execution. It runs as without
// us, the dynamic linker's own words apart, and the program that started it is recorded.
func TestF29HelperThatMayNotMapOurLibraries(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount a folder once more")
	}
	r := newRig(t)
	libs := filepath.Dir(r.ours()[0])
	confined := `mount --bind "$1" "$1" && mount -o remount,bind,noexec "$1" && exec sh -c 'echo helper; exit 3'`
	script := `"$0" end return 100; echo $?; unshare --mount sh -c '` + strings.ReplaceAll(confined, "'", `'\''`) + `' sh "$1"`
	argv := []string{"sh", "-c", script, lifeClient(t), libs}
	want, got := r.once(false, argv...), r.once(true, argv...)
	if want.stdout != "100 posted\n5\nhelper\n" || want.status != 3 || want.stderr != "" {
		t.Fatalf("untraced: %+v", want)
	}
	if got.stdout != want.stdout || got.status != want.status {
		t.Errorf("traced: %+v", got)
	}
	refused := 0
	for line := range strings.Lines(got.stderr) {
		if strings.HasPrefix(line, "ERROR: ld.so: object '"+libs) && strings.Contains(line, "cannot be preloaded (failed to map") {
			refused++
		} else {
			t.Errorf("on standard error: %s", line)
		}
	}
	if refused == 0 {
		t.Errorf("the helper could map them: %+v", got)
	}
	r.expect(1, "verbs.write", 116)
}

// F30: the dynamic linker ignores LD_PRELOAD in a program with other rights. It runs as without us, and leaves no capture.
func TestF30SecureExecution(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can make a file of somebody else's that is set-user-ID")
	}
	looking, _ := callers(t)
	for _, p := range []string{filepath.Dir(filepath.Dir(looking)), filepath.Dir(looking)} {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(looking, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(looking, 0o4755); err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	r.fakeUCP()
	// What it calls is UCX's own library, since LD_LIBRARY_PATH is ignored too.
	r.same(2, looking, "local")
	if left, err := filepath.Glob(r.captures() + "/*"); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// F32: a program of another C library. Its loader would refuse it with ours in LD_PRELOAD, so launch refuses before.
func TestF32Musl(t *testing.T) {
	if _, err := exec.LookPath("musl-gcc"); err != nil {
		t.Skip("musl-gcc is not installed")
	}
	dir := t.TempDir()
	source, program := filepath.Join(dir, "hello.c"), filepath.Join(dir, "hello")
	if err := os.WriteFile(source, []byte("#include <stdio.h>\nint main(void) { puts(\"hello\"); return 6; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("musl-gcc", "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("musl-gcc: %v\n%s", err, out)
	}
	r := newRig(t)
	plain := r.once(false, program)
	if plain.stdout != "hello\n" || plain.status != 6 {
		t.Fatalf("untraced: %+v", plain)
	}
	if o := r.once(true, program); o.status != 127 || o.stdout != "" || o.stderr == "" {
		t.Errorf("musl's loader takes our libraries now: %+v", o)
	}
	o := r.once(false, needs.Built(t, "bin/sigmatrace"), "launch", "-o", filepath.Join(dir, "run"), "--", program)
	if o.stdout != "" || o.status == 0 || o.status == 6 || !strings.Contains(o.stderr, "sigmatrace: error: ") || !strings.Contains(o.stderr, "musl") {
		t.Errorf("launch: %+v", o)
	}
	if _, err := os.Stat(filepath.Join(dir, "run")); err == nil {
		t.Error("a run directory was made")
	}
}
