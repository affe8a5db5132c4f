//go:build roots

// Package roots runs the built sigmatrace, one and the same, over other generations of the libraries than this system's: in Debian roots
// that build.sh makes. What each process recorded is read here and held against the counting preload beside the recorder in it, which
// was built in that root, and against what the command line says.
package roots

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/tests/ports"
)

// program is one row of the table: what is run, where, and what is known of it.
type program struct {
	name      string
	roots     []string // nil: every root
	providers string
	env       []string
	hca       bool     // on the software HCA
	argv      []string // PORT in it is a free port
	counted   []string // layers whose counter, count-LAYER.so, runs in each process and must agree with the capture
	processes int      // captures there must be
	// What the command line says of the sum of all processes, by layer and operation; other operations may be there as well.
	want map[string]totals
}

var allRoots = []string{"debian11", "debian13"}

type tally struct{ Count, Bytes uint64 }

// totals by operation, as the layer names them.
type totals map[string]tally

func (a totals) add(name string, v tally) {
	if v.Count > 0 {
		a[name] = tally{a[name].Count + v.Count, a[name].Bytes + v.Bytes}
	}
}

// repository is the root of the source tree; it has the same path inside the roots.
func repository(t *testing.T) string {
	t.Helper()
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return top
}

// need makes a root, or takes the one that is there, and returns its path.
func need(t *testing.T, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	if os.Getuid() != 0 {
		t.Skip("only root can make a root and enter it")
	}
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		t.Skip("mmdebstrap is not installed")
	}
	if _, err := os.Stat(repository(t) + "/build/bin/sigmatrace"); err != nil {
		t.Fatalf("not built (run `make tests`): %v", err)
	}
	cmd := exec.Command(repository(t)+"/tests/roots/build.sh", name)
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("making root %s: %v\n%s", name, err, log.Bytes())
	}
	return strings.TrimSpace(string(out))
}

// command is a command line inside a root, with work and the repository at their own paths.
func command(t *testing.T, root, work string, env, argv []string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	top := repository(t)
	line := []string{"--mount", "--pid", "--ipc", "--fork", "--kill-child", top + "/tests/enter.sh", root, top, work, "--",
		"/usr/bin/env", "-i", "-C", work, "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8",
		"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "PRTE_ALLOW_RUN_AS_ROOT=1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_plm=isolated"}
	return exec.CommandContext(ctx, "unshare", append(append(line, env...), argv...)...)
}

// launch runs a program under sigmatrace in a root, its counters beside the recorder, and returns the folder with everything it left.
func (p *program) launch(t *testing.T, root string) string {
	t.Helper()
	work := t.TempDir()
	env := append([]string{"COUNT_OUT=" + work + "/count", "SENT_OUT=" + work + "/sent"}, p.env...)
	var counters []string
	for _, layer := range p.counted {
		counters = append(counters, "/tests/tests/count-"+layer+".so")
	}
	if len(counters) > 0 {
		env = append(env, "LD_PRELOAD="+strings.Join(counters, ":"), "COUNTERS="+strings.Join(counters, ":"))
	}
	if p.hca {
		env = append(env, "LD_LIBRARY_PATH=/tests/softhca", "SOFTHCA_SHM="+work+"/hca", "UCX_NET_DEVICES=mlx5_0:1")
	}
	argv := []string{repository(t) + "/build/bin/sigmatrace", "launch", "-p", "full", "--providers", p.providers, "-o", work + "/run", "--"}
	for _, a := range p.argv {
		argv = append(argv, strings.NewReplacer("PORT", strconv.Itoa(ports.Of(t)), "COUNTERS", strings.Join(counters, ":")).Replace(a))
	}
	cmd := command(t, root, work, env, argv)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", p.argv, err, out)
	}
	if bytes.Contains(out, []byte("cannot be preloaded")) || bytes.Contains(out, []byte("not found (required by")) {
		t.Errorf("the loader refused a library:\n%s", out)
	}
	return work
}

// recorded is what the captures below a folder hold: by layer, pid and operation, from the tables and from the events.
type recorded struct {
	processes int
	tables    map[string]map[int]totals
	events    map[string]map[int]totals
}

func of(m map[string]map[int]totals, layer string, pid int) totals {
	if m[layer] == nil {
		m[layer] = map[int]totals{}
	}
	if m[layer][pid] == nil {
		m[layer][pid] = totals{}
	}
	return m[layer][pid]
}

// read reads every capture of a run; each must be whole.
func read(t *testing.T, dir string) *recorded {
	t.Helper()
	rec := &recorded{tables: map[string]map[int]totals{}, events: map[string]map[int]totals{}}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, capture.Extension) {
			return err
		}
		rec.processes++
		return rec.file(path)
	})
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func (rec *recorded) file(path string) error {
	f, err := capture.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	cat := catalogue.Default
	pid := int(f.Header().Pid)
	if problems := f.Problems(); len(problems) > 0 {
		return errors.Join(problems...)
	}
	if live := f.Live(); live.LostEvents != 0 || live.LostTables != 0 || live.LostObjects != 0 {
		return fmt.Errorf("%s: lost %+v", path, live)
	}
	err = f.Aggregates(func(a *capture.Aggregate) error {
		e := cat.Event(a.Event)
		if e == nil {
			return fmt.Errorf("%s: aggregate of event %d", path, a.Event)
		}
		if e.Operation != "" {
			of(rec.tables, e.Layer, pid).add(e.Operation, tally{a.Count, a.Bytes})
		}
		return nil
	})
	if err != nil {
		return err
	}
	var dec capture.Decoder
	var ev capture.Event
	chunks := f.Chunks()
	for i := range chunks {
		dec.Reset(f, &chunks[i], cat)
		for {
			ok, err := dec.Next(&ev)
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			if e := cat.Event(ev.ID); e != nil && e.Operation != "" {
				of(rec.events, e.Layer, pid).add(e.Operation, tally{1, 0})
			}
		}
	}
	return nil
}

// counterNames are the names of the counting preloads where they are not those of the layer; "" where the layer has no such operation.
var counterNames = map[string]string{"stream_recv": "", "send_imm": "send", "send_inv": "send", "srq_recv": "recv", "cqe": "", "cqe_error": "", "completion": ""}

// counters reads what the counting preload of a layer saw, by pid.
func counters(t *testing.T, work, layer string) map[int]totals {
	t.Helper()
	prefix := work + "/count." + layer + "."
	names, err := filepath.Glob(prefix + "*")
	if err != nil {
		t.Fatal(err)
	}
	all := map[int]totals{}
	for _, name := range names {
		pid, err := strconv.Atoi(strings.TrimPrefix(name, prefix))
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var counted totals
		if err := json.Unmarshal(text, &counted); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all[pid] = totals{}
		for op, v := range counted {
			if to, other := counterNames[op]; !other {
				all[pid].add(op, v)
			} else if to != "" {
				all[pid].add(to, v)
			}
		}
		if layer == "uct" { // no operation there
			delete(all[pid], "flush")
		}
	}
	return all
}

func sum(all map[int]totals) totals {
	s := totals{}
	for _, one := range all {
		for op, v := range one {
			s.add(op, v)
		}
	}
	return s
}

// check holds the captures of a run against the counters and the command line.
func (p *program) check(t *testing.T, work string) {
	t.Helper()
	rec := read(t, work+"/run/capture")
	if rec.processes != p.processes {
		t.Errorf("%d captures, want %d", rec.processes, p.processes)
	}
	for _, layer := range p.counted {
		truth := counters(t, work, layer)
		if len(truth) == 0 && p.processes > 0 {
			t.Errorf("the counter of layer %s saw nothing", layer)
		}
		for pid, want := range truth {
			if got := rec.tables[layer][pid]; !maps.Equal(got, want) {
				t.Errorf("layer %s, process %d: recorded %v\nits counter saw %v", layer, pid, got, want)
			}
		}
		if len(rec.tables[layer]) > len(truth) {
			t.Errorf("layer %s: %d processes recorded, %d counted", layer, len(rec.tables[layer]), len(truth))
		}
	}
	for layer, want := range p.want {
		got := sum(rec.tables[layer])
		for op, v := range want {
			if got[op] != v {
				t.Errorf("layer %s, %s: %v, the command line says %v", layer, op, got[op], v)
			}
		}
	}
	for layer, all := range rec.tables {
		for pid, want := range all {
			got := rec.events[layer][pid]
			for op, v := range want {
				if got[op].Count != v.Count {
					t.Errorf("layer %s, process %d, %s: %d events, the table says %d", layer, pid, op, got[op].Count, v.Count)
				}
			}
		}
	}
}

// Each program of the table in each of its roots.
func TestPrograms(t *testing.T) {
	for _, name := range allRoots {
		t.Run(name, func(t *testing.T) {
			root := need(t, name)
			if versions, err := os.ReadFile(root + "/versions"); err == nil {
				t.Logf("%s", versions)
			}
			for _, p := range programs {
				if p.roots == nil || slices.Contains(p.roots, name) {
					t.Run(p.name, func(t *testing.T) { p.check(t, p.launch(t, root)) })
				}
			}
		})
	}
}
