// Package ibverbs tests the provider ibverbs with real verbs programs on the software HCA: what the captures say is held against a
// counting preload (tests/count) that sits in the same processes and shares nothing with the recorder.
package ibverbs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/tests/objects"
	"github.com/sigmatrace/sigmatrace/tests/ports"
)

var modes = []string{"aggregate", "simple", "full"}

// rig is one run: programs over the software HCA, recorded in one mode.
type rig struct {
	t        *testing.T
	dir      string
	captures string
	env      []string
}

func built(t *testing.T, path string) string {
	t.Helper()
	p, err := filepath.Abs(filepath.Join("../../build", path))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("not built (run `make tests`): %v", err)
	}
	return p
}

// newRig prepares a run. extra: name=value settings of the flat profile.
func newRig(t *testing.T, mode string, extra ...string) *rig {
	t.Helper()
	dir := t.TempDir()
	r := &rig{t: t, dir: dir, captures: filepath.Join(dir, "capture")}
	if err := os.MkdirAll(r.captures, 0o700); err != nil {
		t.Fatal(err)
	}
	profile := filepath.Join(dir, "profile")
	text := fmt.Sprintf("sigmatrace.profile=1\nname=test\nmode=%s\nproviders=ibverbs,mlx5dv\nrecord.budget=268435456\nrecord.chunk=65536\ncapture.directory=%s\n%s\n",
		mode, r.captures, strings.Join(extra, "\n"))
	if err := os.WriteFile(profile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	lib := filepath.Dir(built(t, "softhca/libibverbs.so.1"))
	r.env = append(os.Environ(),
		"SIGMATRACE_CONFIG="+profile,
		"LD_LIBRARY_PATH="+lib,
		"LD_PRELOAD="+built(t, "tests/count-verbs.so")+":"+ours(t),
		"SOFTHCA_SHM="+filepath.Join(dir, "hca"),
		"SOFTHCA_STATS="+filepath.Join(dir, "stats"),
		"COUNT_OUT="+filepath.Join(dir, "count"),
	)
	return r
}

// preload is the list with these providers, and with what makes UCX believe that the device has a node in /dev.
func (r *rig) preload(providers ...string) string {
	r.t.Helper()
	libs := objects.List(filepath.Dir(built(r.t, "lib/sigmatrace/libsigmatrace.so")), providers...)
	return strings.Join(append([]string{built(r.t, "tests/count-verbs.so"), built(r.t, "softhca/softhca-node.so")}, libs...), ":")
}

// ours is the recorder with this provider, and with mlx5dv.
func ours(t *testing.T) string {
	t.Helper()
	return built(t, "lib/sigmatrace/"+objects.Whole("", "ibverbs", "mlx5dv"))
}

func (r *rig) command(args ...string) *exec.Cmd {
	cmd := limited(r.t, limit, args...)
	cmd.Env = r.env
	cmd.Dir = r.dir
	return cmd
}

func (r *rig) run(args ...string) string {
	r.t.Helper()
	out, err := r.command(args...).CombinedOutput()
	if err != nil {
		r.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// pair runs a program that is server and client of itself, as perftest's and rdma-core's examples are.
func (r *rig) pair(args ...string) {
	r.t.Helper()
	port := strconv.Itoa(ports.Of(r.t))
	args = append(args, "-p", port)
	server := r.command(args...)
	var out bytes.Buffer
	server.Stdout, server.Stderr = &out, &out
	if err := server.Start(); err != nil {
		r.t.Fatal(err)
	}
	if err := awaitListener(port); err != nil {
		server.Process.Kill()
		server.Wait()
		r.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out.String())
	}
	client, err := r.command(append(args, "127.0.0.1")...).CombinedOutput()
	if err != nil {
		server.Process.Kill()
	}
	if serr := server.Wait(); err != nil || serr != nil {
		r.t.Fatalf("%s: client %v, server %v\n%s\n%s", strings.Join(args, " "), err, serr, client, out.String())
	}
}

// awaitListener waits without connecting, which the server would take for its client.
func awaitListener(port string) error {
	var n int
	fmt.Sscan(port, &n)
	hex := fmt.Sprintf(":%04X ", n)
	for range 1200 {
		for _, f := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			text, err := os.ReadFile(f)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			for line := range strings.Lines(string(text)) {
				if f := strings.Fields(line); len(f) > 3 && f[3] == "0A" && strings.HasSuffix(f[1]+" ", hex) {
					return nil
				}
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("nothing listens on port %s", port)
}

func need(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%s is not installed", program)
	}
}

type tally struct{ Count, Bytes uint64 }

// totals by operation, as the layer names them, and "completion".
type totals map[string]tally

func (a totals) add(name string, count, bytes uint64) {
	v := a[name]
	a[name] = tally{v.Count + count, v.Bytes + bytes}
}

var truthNames = map[string]string{"send": "send", "send_imm": "send", "send_inv": "send", "write": "write", "write_imm": "write_imm", "read": "read",
	"atomic": "atomic", "recv": "recv", "srq_recv": "recv", "cqe": "completion", "cqe_error": "completion", "other": "control"}

// truth is what the counting preload saw, over all processes.
func (r *rig) truth() totals {
	r.t.Helper()
	names, err := filepath.Glob(filepath.Join(r.dir, "count.verbs.*"))
	if err != nil {
		r.t.Fatal(err)
	}
	out := totals{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			r.t.Fatal(err)
		}
		var counted map[string]tally
		if err := json.Unmarshal(text, &counted); err != nil {
			r.t.Fatalf("%s: %v", name, err)
		}
		for op, v := range counted {
			out.add(truthNames[op], v.Count, v.Bytes)
		}
	}
	return out
}

// recorded is what the captures of a run hold.
type recorded struct {
	files  int
	tables totals // aggregates
	events totals // full mode
	calls  tally  // simple mode: requests and bytes of all posting calls
	queues map[uint64]int
	defs   map[string][]map[string]any
	list   []capture.Event
	lost   uint64
}

func (r *rig) recorded() *recorded {
	r.t.Helper()
	names, err := filepath.Glob(filepath.Join(r.captures, "*", "*"+capture.Extension))
	if err != nil {
		r.t.Fatal(err)
	}
	rec := &recorded{files: len(names), tables: totals{}, events: totals{}, queues: map[uint64]int{}, defs: map[string][]map[string]any{}}
	for _, name := range names {
		f, err := capture.Open(name)
		if err != nil {
			r.t.Fatal(err)
		}
		defer f.Close()
		if p := f.Problems(); len(p) > 0 {
			r.t.Fatalf("%s: %v", name, p)
		}
		if err := rec.read(f); err != nil {
			r.t.Fatalf("%s: %v", name, err)
		}
	}
	return rec
}

func nameOf(e *catalogue.Event) string {
	switch {
	case e.Operation != "":
		return e.Operation
	case e.Name == "verbs_completion":
		return "completion"
	case e.Name == "verbs_control":
		return "control"
	}
	return ""
}

func (rec *recorded) read(f *capture.File) error {
	c := catalogue.Default
	rec.lost += f.Live().LostEvents
	err := f.Aggregates(func(a *capture.Aggregate) error {
		e := c.Event(a.Event)
		if e == nil {
			return fmt.Errorf("aggregate of event %d", a.Event)
		}
		if e.Layer != "verbs" {
			return nil
		}
		if nameOf(e) == "" {
			return fmt.Errorf("aggregate of event %s", e.Name)
		}
		rec.tables.add(nameOf(e), a.Count, a.Bytes)
		return nil
	})
	if err != nil {
		return err
	}
	err = f.Definitions(c, func(d *capture.Definition) error {
		m := map[string]any{}
		for i, field := range d.Def.Fields {
			switch field.Type {
			case catalogue.Raw, catalogue.String:
				m[field.Name] = d.String(i)
			default:
				m[field.Name] = d.Uint(i)
			}
		}
		rec.defs[d.Def.Name] = append(rec.defs[d.Def.Name], m)
		return nil
	})
	if err != nil {
		return err
	}
	var d capture.Decoder
	chunks := f.Chunks()
	for i := range chunks {
		d.Reset(f, &chunks[i], c)
		for {
			var ev capture.Event
			ok, err := d.Next(&ev)
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			if ev.ID == 0 {
				continue
			}
			e := c.Event(ev.ID)
			if e.Layer != "verbs" {
				continue
			}
			rec.list = append(rec.list, ev)
			switch name := nameOf(e); {
			case e.Name == "verbs_call":
				rec.calls.Count += ev.Fields[e.Layout.FieldIndex("requests")]
				rec.calls.Bytes += ev.Fields[e.Layout.FieldIndex("bytes")]
			case name != "":
				rec.events.add(name, 1, ev.Fields[e.Layout.FieldIndex("bytes")])
				rec.queues[ev.Fields[0]]++
			}
		}
	}
	return nil
}

// field reads a field of an event by name.
func field(ev *capture.Event, name string) uint64 {
	return ev.Fields[catalogue.Default.Event(ev.ID).Layout.FieldIndex(name)]
}

// compare holds what was recorded against what the counter saw, in every form that the mode records.
func (r *rig) compare(mode string) *recorded {
	r.t.Helper()
	truth, rec := r.truth(), r.recorded()
	if rec.lost != 0 {
		r.t.Errorf("%d events lost", rec.lost)
	}
	if len(truth) == 0 {
		r.t.Fatal("the counting preload saw nothing")
	}
	same := func(form string, got totals) {
		r.t.Helper()
		for op, want := range truth {
			have := got[op]
			if op == "completion" { // the counter does not sum their bytes
				have.Bytes, want.Bytes = 0, 0
			}
			if have != want {
				r.t.Errorf("%s: %s: %d requests of %d bytes, the counter saw %d of %d", form, op, have.Count, have.Bytes, want.Count, want.Bytes)
			}
		}
		for op, have := range got {
			if _, ok := truth[op]; !ok && have.Count > 0 {
				r.t.Errorf("%s: %s: %d requests, the counter saw none", form, op, have.Count)
			}
		}
	}
	same("tables", rec.tables)
	switch mode {
	case "full":
		same("events", rec.events)
		if n := rec.queues[0]; n > 0 {
			r.t.Errorf("%d events of unknown queues", n)
		}
	case "simple":
		var want tally
		for op, v := range truth {
			if op != "completion" {
				want.Count += v.Count
				want.Bytes += v.Bytes
			}
		}
		if rec.calls != want {
			r.t.Errorf("calls: %d requests of %d bytes, the counter saw %d of %d", rec.calls.Count, rec.calls.Bytes, want.Count, want.Bytes)
		}
		if len(rec.events) > 0 {
			r.t.Errorf("simple mode has request events: %v", rec.events)
		}
	case "aggregate":
		if len(rec.list) > 0 {
			r.t.Errorf("aggregate mode has %d events", len(rec.list))
		}
	}
	return rec
}
