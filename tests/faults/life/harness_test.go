// Package life provokes what goes wrong in the life of processes and libraries under a preload, each test named after the report in the
// field that it stands for. In every one the program's output and status are those of a run without the recorder.
package life

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/tests/needs"
	"github.com/sigmatrace/sigmatrace/tests/objects"
)

// compile makes a program or, with -shared among the arguments, a library, from sources in testdata.
func compile(t *testing.T, out string, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), out)
	line := append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-g", "-o", path}, args...)
	if text, err := exec.Command("gcc", line...).CombinedOutput(); err != nil {
		t.Fatalf("gcc %s: %v\n%s", strings.Join(line, " "), err, text)
	}
	return path
}

// rig is a place to record into.
type rig struct {
	t          *testing.T
	dir        string
	env        []string
	before     []string // preloads before and behind ours
	behind     []string
	providers  []string
	withoutHCA bool
	lossy      bool // what is lost is the test's to judge
}

// newRig records with all providers, in full, on the software HCA.
func newRig(t *testing.T) *rig {
	t.Helper()
	return &rig{t: t, dir: t.TempDir(), providers: []string{"ucx", "libfabric", "ibverbs"}}
}

func (r *rig) captures() string { return filepath.Join(r.dir, "capture") }

func (r *rig) configure() string {
	r.t.Helper()
	path := filepath.Join(r.dir, "config")
	if err := os.MkdirAll(r.captures(), 0o755); err != nil {
		r.t.Fatal(err)
	}
	text := fmt.Sprintf("sigmatrace.profile=1\nname=full\nproviders=%s\nmode=full\ncapture.directory=%s\n", strings.Join(r.providers, ","), r.captures())
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// ours are the recorder's libraries, as launch would choose them.
func (r *rig) ours() []string {
	return objects.List(filepath.Dir(needs.Built(r.t, "lib/sigmatrace/libsigmatrace.so")), r.providers...)
}

// environment of a program with the recorder, or as it would be without.
func (r *rig) environment(traced bool) []string {
	r.t.Helper()
	preload := slices.Clone(r.before)
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LD_PRELOAD=") || strings.HasPrefix(v, "SIGMATRACE") })
	if traced {
		preload = append(preload, r.ours()...)
		env = append(env, "SIGMATRACE_CONFIG="+r.configure())
	}
	if preload = append(preload, r.behind...); len(preload) > 0 {
		env = append(env, "LD_PRELOAD="+strings.Join(preload, ":"))
	}
	if !r.withoutHCA {
		shm := filepath.Join(r.dir, "hca")
		if !traced {
			shm += "-untraced"
		}
		env = append(env, "LD_LIBRARY_PATH="+filepath.Dir(needs.Built(r.t, "softhca/libibverbs.so.1")), "SOFTHCA_SHM="+shm)
	}
	return append(env, r.env...)
}

// outcome is what a program leaves.
type outcome struct {
	stdout, stderr string
	status         int // 128+n for a signal
}

const limit = 2 * time.Minute

func (r *rig) once(traced bool, argv ...string) outcome {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = r.environment(traced), r.dir, 10*time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, errs.Bytes())
	}
	if ctx.Err() != nil {
		r.t.Fatalf("%s (traced: %t) does not end\n%s%s", strings.Join(argv, " "), traced, out.Bytes(), errs.Bytes())
	}
	o := outcome{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		o.status = 128 + int(ws.Signal())
	}
	return o
}

// same runs a program without the recorder and with it, fails the test where output or status differ, and returns what it left, which is
// to have the given status.
func (r *rig) same(status int, argv ...string) outcome {
	r.t.Helper()
	want, got := r.once(false, argv...), r.once(true, argv...)
	if got != want {
		r.t.Errorf("%s\ntraced:   %+v\nuntraced: %+v", strings.Join(argv, " "), got, want)
	}
	if want.status != status {
		r.t.Errorf("%s: status %d, want %d\n%s%s", strings.Join(argv, " "), want.status, status, want.stdout, want.stderr)
	}
	return got
}

// process is one capture.
type process struct {
	header  *capture.Header
	ended   bool              // in order
	tables  map[string]uint64 // requests by layer.operation
	events  map[string]uint64
	app     uint64 // marks, and edges of phases
	live    capture.Live
	threads map[uint32]bool // that recorded events
}

// recorded reads all captures, by pid in the order of their image counters.
func (r *rig) recorded() []process {
	r.t.Helper()
	var all []process
	err := filepath.WalkDir(r.captures(), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, capture.Extension) {
			return err
		}
		p, err := readCapture(path, r.lossy)
		if err == nil {
			all = append(all, p)
		}
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b process) int {
		if a.header.Pid != b.header.Pid {
			return int(a.header.Pid) - int(b.header.Pid)
		}
		return int(a.header.Image) - int(b.header.Image)
	})
	return all
}

func readCapture(path string, lossy bool) (process, error) {
	p := process{tables: map[string]uint64{}, events: map[string]uint64{}, threads: map[uint32]bool{}}
	f, err := capture.Open(path)
	if err != nil {
		return p, err
	}
	defer f.Close()
	cat := catalogue.Default
	p.header = f.Header()
	live := f.Live()
	p.live = live
	p.ended = live.EndMark != 0
	if problems := f.Problems(); len(problems) > 0 {
		return p, errors.Join(problems...)
	}
	if !lossy && (live.LostEvents != 0 || live.LostTables != 0 || live.LostObjects != 0) {
		return p, fmt.Errorf("%s: lost %+v", path, live)
	}
	err = f.Aggregates(func(a *capture.Aggregate) error {
		if e := cat.Event(a.Event); e != nil && e.Operation != "" {
			p.tables[e.Layer+"."+e.Operation] += a.Count
		}
		return nil
	})
	if err != nil {
		return p, err
	}
	var dec capture.Decoder
	var ev capture.Event
	chunks := f.Chunks()
	for i := range chunks {
		dec.Reset(f, &chunks[i], cat)
		for {
			ok, err := dec.Next(&ev)
			if err != nil || !ok {
				if err != nil {
					return p, err
				}
				break
			}
			e := cat.Event(ev.ID)
			if e != nil && e.Layer == "app" {
				p.app++
			}
			if e != nil && e.Operation != "" {
				p.events[e.Layer+"."+e.Operation]++
				p.threads[ev.Thread] = true
			}
		}
	}
	return p, nil
}

// total of an operation over all processes: in the tables, and in the events.
func total(all []process, op string) (tables, events uint64) {
	for _, p := range all {
		tables += p.tables[op]
		events += p.events[op]
	}
	return tables, events
}

// expect fails the test where an operation was not recorded as often as it was done, in tables and events, or the number of captures
// is another.
func (r *rig) expect(captures int, op string, n uint64) []process {
	r.t.Helper()
	all := r.recorded()
	if len(all) != captures {
		r.t.Errorf("%d captures, want %d", len(all), captures)
	}
	if tables, events := total(all, op); tables != n || events != n {
		r.t.Errorf("%s: %d in the tables, %d events, want %d", op, tables, events, n)
	}
	return all
}
