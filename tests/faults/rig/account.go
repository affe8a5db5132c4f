package rig

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
)

// Merge merges the run.
func (r *Run) Merge(options ...string) (stderr string, status int) {
	r.t.Helper()
	_, stderr, status = Sigmatrace(r.t, append(append([]string{"merge"}, options...), r.Path)...)
	return stderr, status
}

// MustMerge merges the run and holds that the merge ends with a status.
func (r *Run) MustMerge(want int) {
	r.t.Helper()
	if errs, status := r.Merge(); status != want {
		r.t.Errorf("merge ended with %d, want %d: %s", status, want, errs)
	}
}

// BackEnd is that of the run's captures.
func (r *Run) BackEnd() string {
	r.t.Helper()
	names := map[capture.BackEnd]string{capture.Mapped: "mapped", capture.Written: "written"}
	all := map[string]bool{}
	for _, c := range r.Captures() {
		f, err := capture.Open(c)
		if err != nil {
			r.t.Fatal(err)
		}
		all[names[f.Header().BackEnd]] = true
		f.Close()
	}
	return strings.Join(slices.Sorted(maps.Keys(all)), " and ")
}

// Live are the live parts of the captures' headers.
func (r *Run) Live() (all []capture.Live) {
	r.t.Helper()
	for _, c := range r.Captures() {
		f, err := capture.Open(c)
		if err != nil {
			r.t.Fatal(err)
		}
		all = append(all, f.Live())
		f.Close()
	}
	return all
}

// Size is that of the captures.
func (r *Run) Size() (n int64) {
	for _, c := range r.Captures() {
		if st, err := os.Stat(c); err == nil {
			n += st.Size()
		}
	}
	return n
}

// Info is what `sigmatrace info --json` says, as far as these tests use it.
type Info struct {
	Ranks struct {
		Expected                   *int
		Injected, Active, Complete int
		Incomplete                 []struct {
			Rank, Pid *int
			LastRank  *int `json:"last_rank"`
			Reason    string
		}
	}
	Processes struct{ Total, Complete int }
	Events    struct {
		Total  uint64
		ByName map[string]uint64 `json:"by_name"`
	}
	Operations  map[string]map[string]Count
	Exact       bool
	Completions map[string]uint64
	Unfinished  uint64
	Lost        struct{ Events, Bytes, Definitions, Objects uint64 }
	Clock       struct {
		Steps  int
		StepNS int64 `json:"step_ns"`
		Nodes  []struct {
			ErrorNS *int64 `json:"error_ns"`
			Reason  string
		}
	}
	Damaged []struct{ File, Reason string }
}

// Count is a number of operations and their payload.
type Count struct{ Count, Bytes uint64 }

// Info asks for the account of the run.
func (r *Run) Info() *Info {
	r.t.Helper()
	out, errs, status := Sigmatrace(r.t, "info", "--json", r.Path)
	if status != 0 {
		r.t.Fatalf("info ended with %d: %s", status, errs)
	}
	i := &Info{}
	if err := json.Unmarshal([]byte(out), i); err != nil {
		r.t.Fatalf("%v in %s", err, out)
	}
	return i
}

// Writes are the program's writes as the tables counted them.
func (r *Run) Writes(i *Info) Count {
	if r.spec.Layer == "ucp" {
		return i.Operations["ucp"]["put"]
	}
	return i.Operations["verbs"]["write"]
}

// Exact holds that the tables, the matrix and, with what is said to be lost, the events are the program's own tally.
func (r *Run) Exact(i *Info) {
	r.t.Helper()
	r.counted(i, true)
}

// LowerBound holds the same of a run whose totals are said to be a lower bound, because ranks are missing.
func (r *Run) LowerBound(i *Info) {
	r.t.Helper()
	r.counted(i, false)
}

func (r *Run) counted(i *Info, exact bool) {
	r.t.Helper()
	writes, bytes, completions, _ := r.Tally()
	if got := r.Writes(i); got != (Count{writes, bytes}) || i.Exact != exact {
		r.t.Errorf("%+v counted, exact %v; the program made %d of %d bytes", got, i.Exact, writes, bytes)
	}
	if got := i.Completions["verbs"]; got != completions {
		r.t.Errorf("%d completions counted, the program polled %d", got, completions)
	}
	r.eventsAddUp(i, writes+completions)
	var m struct {
		Exact  bool
		Layers map[string]struct {
			Endpoint []struct {
				Operation string
				Count
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(r.Path, "matrix.json"))
	if err != nil {
		r.t.Fatal(err)
	}
	if err := json.Unmarshal(text, &m); err != nil {
		r.t.Fatal(err)
	}
	sum := Count{}
	for _, row := range m.Layers[r.spec.Layer].Endpoint {
		if row.Operation == "write" || row.Operation == "put" {
			sum.Count += row.Count.Count
			sum.Bytes += row.Bytes
		}
	}
	if sum != (Count{writes, bytes}) || m.Exact != exact {
		r.t.Errorf("matrix: %+v, exact %v; the program made %d of %d bytes", sum, m.Exact, writes, bytes)
	}
}

// eventsAddUp holds that what was recorded and what was lost is what was made: requests and completions of full mode. Empty polls, of
// which it is not known how many there were, must not be among the recorded ones then.
func (r *Run) eventsAddUp(i *Info, made uint64) {
	r.t.Helper()
	kept := uint64(0)
	for name, n := range i.Events.ByName {
		if name == "verbs_empty_polls" || name == "ucp_empty_progress" {
			continue
		}
		kept += n
	}
	if kept+i.Lost.Events != made {
		r.t.Errorf("%d events recorded and %d lost, the program made %d: %v", kept, i.Lost.Events, made, i.Events.ByName)
	}
}

// Snapshot is every file below a folder: name, mode, time and content.
func Snapshot(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		all[path] = fmt.Sprint(info.Mode(), info.ModTime(), string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Same holds that two snapshots are the same.
func Same(t testing.TB, what string, before, after map[string]string) {
	t.Helper()
	for path := range before {
		if after[path] != before[path] {
			t.Errorf("%s: %s was changed or removed", what, path)
		}
	}
	for path := range after {
		if _, ok := before[path]; !ok {
			t.Errorf("%s: %s is new", what, path)
		}
	}
}
