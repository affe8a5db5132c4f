// Package ofi holds provider-libfabric.so against programs that know what they sent, and against a counting preload beside it. It needs
// what `make tests` builds.
package ofi

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

type tally struct{ Count, Bytes uint64 }

type totals map[string]tally

// info is what `sigmatrace info --json` says, as far as these tests use it.
type info struct {
	Processes   struct{ Total, Complete int }
	Operations  map[string]totals
	Completions map[string]uint64
	Exact       bool
	Flows       struct {
		Matched, Ambiguous uint64
		Unmatched          map[string]uint64
	}
	Unfinished, Surplus uint64
	Lost                struct{ Events uint64 }
	Layer               *string `json:"summary_layer"`
}

type run struct {
	t       *testing.T
	dir     string
	out     string
	errs    string
	shipped bool // the providers that profiles have by themselves, not libfabric alone
}

func built(t *testing.T, name string) string {
	t.Helper()
	p, err := filepath.Abs(filepath.Join("../../build", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("not built (run `make tests`): %v", err)
	}
	return p
}

func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
}

func (r *run) command(mode string, argv ...string) *exec.Cmd {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	r.t.Cleanup(cancel)
	args := []string{"launch", "-p", mode}
	if !r.shipped {
		args = append(args, "--providers", "libfabric")
	}
	args = append(append(args, "-o", r.dir+"/run", "--"), argv...)
	c := exec.CommandContext(ctx, built(r.t, "bin/sigmatrace"), args...)
	c.Env = append(os.Environ(), "COUNT_OUT="+r.dir+"/count", "SENT_OUT="+r.dir+"/sent", "COUNTERS="+built(r.t, "tests/count-ofi.so"))
	c.Dir = r.dir
	return c
}

// Where the counting preload stands.
const (
	behind = `LD_PRELOAD=$LD_PRELOAD:$COUNTERS exec "$@"`
	ahead  = `LD_PRELOAD=$COUNTERS:$LD_PRELOAD exec "$@"`
)

func start(t *testing.T, mode, place string, argv ...string) *run {
	t.Helper()
	r := &run{t: t, dir: t.TempDir()}
	c := r.command(mode, append([]string{"sh", "-c", place, "sh"}, argv...)...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		t.Fatalf("%s: %v\n%s\n%s", strings.Join(argv, " "), err, &out, &errs)
	}
	r.out, r.errs = out.String(), errs.String()
	return r
}

func (r *run) info() *info {
	r.t.Helper()
	text, err := exec.Command(built(r.t, "bin/sigmatrace"), "info", "--json", r.dir+"/run").Output()
	if err != nil {
		r.t.Fatal(err)
	}
	i := &info{}
	if err := json.Unmarshal(text, i); err != nil {
		r.t.Fatal(err)
	}
	for op, v := range i.Operations["ofi"] {
		if v.Count == 0 {
			delete(i.Operations["ofi"], op)
		}
	}
	return i
}

// read sums the files PREFIX.<pid> of counts.
func (r *run) read(prefix string) (totals, int) {
	r.t.Helper()
	names, err := filepath.Glob(r.dir + "/" + prefix + ".*")
	if err != nil {
		r.t.Fatal(err)
	}
	sum := totals{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			r.t.Fatal(err)
		}
		var one totals
		if err := json.Unmarshal(text, &one); err != nil {
			r.t.Fatalf("%s: %v", name, err)
		}
		for op, v := range one {
			sum[op] = tally{sum[op].Count + v.Count, sum[op].Bytes + v.Bytes}
		}
	}
	return sum, len(names)
}

// check holds the account against counts; it returns both, the counts without the completions.
func (r *run) check(prefix string) (*info, totals) {
	r.t.Helper()
	i := r.info()
	want, n := r.read(prefix)
	if n == 0 {
		r.t.Fatalf("no counts %s\n%s", prefix, r.errs)
	}
	entries := want["completion"].Count
	delete(want, "completion")
	if !maps.Equal(i.Operations["ofi"], want) {
		r.t.Errorf("recorded %v\n%s: %v", i.Operations["ofi"], prefix, want)
	}
	if i.Completions["ofi"] != entries {
		r.t.Errorf("%d completions, %s has %d", i.Completions["ofi"], prefix, entries)
	}
	if !i.Exact || i.Lost.Events != 0 || i.Processes.Complete != i.Processes.Total || len(i.Operations) != 1 {
		r.t.Errorf("not whole: %+v", i)
	}
	return i, want
}

// ranks is the matrix by rank: operation and the two ranks.
func (r *run) ranks() map[string]tally {
	r.t.Helper()
	text, err := os.ReadFile(r.dir + "/run/matrix.json")
	if err != nil {
		r.t.Fatal(err)
	}
	var m struct {
		Layers map[string]struct {
			Rank []struct {
				Source, Destination *int
				Operation           string
				Count, Bytes        uint64
			}
		}
	}
	if err := json.Unmarshal(text, &m); err != nil {
		r.t.Fatal(err)
	}
	all := map[string]tally{}
	for _, x := range m.Layers["ofi"].Rank {
		if x.Source == nil || x.Destination == nil {
			r.t.Errorf("an end without a rank: %+v", x)
			continue
		}
		key := x.Operation + " " + strconv.Itoa(*x.Source) + " " + strconv.Itoa(*x.Destination)
		all[key] = tally{x.Count, x.Bytes}
	}
	return all
}
