package e2e

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// info is what `sigmatrace info --json` says, as far as these tests use it.
type info struct {
	Mode  string
	Ranks struct {
		Expected                   *int
		Injected, Active, Complete int
		Incomplete                 []struct {
			Rank, Pid *int
			Host      *string
			Reason    string
		}
	}
	Processes struct {
		Total    int
		Complete int
	}
	Events struct {
		Total  uint64
		ByName map[string]uint64 `json:"by_name"`
	}
	Operations  map[string]totals
	Exact       bool
	Completions map[string]uint64
	Flows       struct {
		Matched, Ambiguous uint64
		Unmatched          map[string]uint64
	}
	Unfinished, Surplus uint64
	Lost                struct{ Events, Bytes uint64 }
	Clock               struct {
		Before struct{ Count *uint64 } `json:"receive_before_send"`
	}
	Damaged []struct {
		File   string
		Offset *int64
		Reason string
	}
	Blind []struct {
		Pid          int
		Name, Reason string
	}
	Layer string `json:"summary_layer"`
}

// info asks the command.
func (r *run) info(options ...string) *info {
	r.t.Helper()
	args := append(append([]string{"info", "--json"}, options...), r.path)
	out, errs, status := execute(r.t, sigmatrace(r.t, args...))
	if status != 0 {
		r.t.Fatalf("info ended with %d: %s", status, errs)
	}
	i := &info{}
	if err := json.Unmarshal([]byte(out), i); err != nil {
		r.t.Fatalf("%v in %s", err, out)
	}
	return i
}

// layer is the operations of a layer that happened.
func (i *info) layer(name string) totals {
	some := totals{}
	for op, v := range i.Operations[name] {
		some.add(op, v)
	}
	return some
}

func equal(t *testing.T, what string, got, want totals) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("%s: %v\nwant: %v", what, got, want)
	}
}

// whole holds that nothing is missing in a run that ended in order.
func (i *info) whole(t *testing.T, mode string) {
	t.Helper()
	if i.Mode != mode || len(i.Blind) != 0 || !i.Exact || i.Lost.Events != 0 || len(i.Damaged) != 0 || len(i.Ranks.Incomplete) != 0 || i.Surplus != 0 || i.Processes.Complete != i.Processes.Total {
		t.Errorf("not whole: %+v", i)
	}
	if n := i.Clock.Before.Count; n != nil && *n != 0 {
		t.Errorf("%d messages received before they were sent", *n)
	}
}

// check holds a run's account and matrix against the counters of the layers that its providers record: every operation of every
// process, count and bytes. It returns the account and the counters' sums by layer.
func (r *run) check(layers ...string) (*info, map[string]totals) {
	r.t.Helper()
	i := r.info()
	i.whole(r.t, r.spec.mode)
	saw := map[string]totals{}
	if r.spec.mode == "full" && slices.Contains(layers, "ucp") && !slices.Contains(layers, "uct") {
		layers = append(layers, "uct") // full mode goes down to UCT
	}
	for _, layer := range layers {
		truth := r.truth(layer)
		saw[layer] = sum(truth)
		if len(saw[layer]) == 0 {
			r.t.Fatalf("the counter of layer %s saw nothing\n%s", layer, r.stderr)
		}
		if layer == "verbs" {
			if got := i.Completions[layer]; got != saw[layer]["completion"].Count {
				r.t.Errorf("%d completions of verbs, the counter saw %d", got, saw[layer]["completion"].Count)
			}
			for _, v := range truth {
				delete(v, "completion")
			}
			delete(saw[layer], "completion")
		}
		if layer == "uct" {
			if got := i.Events.ByName["uct_flush"]; r.spec.mode == "full" && got != saw[layer]["flush"].Count {
				r.t.Errorf("%d flushes of UCT, the counter saw %d", got, saw[layer]["flush"].Count)
			}
			for _, v := range truth {
				delete(v, "flush")
			}
			delete(saw[layer], "flush")
		}
		equal(r.t, "operations of "+layer, i.layer(layer), saw[layer])
		r.checkEvents(i, layer, saw[layer])
		r.checkMatrix(layer, truth, saw[layer])
	}
	if len(i.Operations) != len(layers) {
		r.t.Errorf("layers in the account: %v, want %v", i.Operations, layers)
	}
	return i, saw
}

// checkEvents holds the number of events against the counters, where there is one for each request.
func (r *run) checkEvents(i *info, layer string, truth totals) {
	r.t.Helper()
	got, want, calls := totals{}, totals{}, uint64(0)
	for _, e := range catalogue.Default.Events {
		n := i.Events.ByName[e.Name]
		if e.Layer == layer && e.Operation != "" {
			got.add(e.Operation, tally{Count: n})
		}
		if e.Name == layer+"_call" {
			calls = n
		}
	}
	requests := uint64(0)
	for op, v := range truth {
		want.add(op, tally{Count: v.Count})
		requests += v.Count
	}
	switch r.spec.mode {
	case "full":
		equal(r.t, "events of "+layer, got, want)
	case "simple": // a verbs call may post many
		if calls == 0 || calls > requests || (layer != "verbs" && calls != requests) || len(got) > 0 {
			r.t.Errorf("%d calls of layer %s for %d requests, and events %v", calls, layer, requests, got)
		}
	case "aggregate":
		if i.Events.Total != 0 {
			r.t.Errorf("aggregate mode has events: %v", i.Events.ByName)
		}
	}
}

// matrix is matrix.json.
type matrix struct {
	Exact  bool
	Layers map[string]struct {
		Endpoint, Received []struct {
			Source, Destination *struct{ Pid int }
			Operation           string
			tally
		}
		Rank, Node []struct {
			Source, Destination any
			Operation           string
			tally
		}
	}
}

func (r *run) checkMatrix(layer string, byPid map[int]totals, truth totals) {
	r.t.Helper()
	var m matrix
	readJSON(r.t, filepath.Join(r.path, "matrix.json"), &m)
	l := m.Layers[layer]
	endpoints, ranks, nodes, pids := totals{}, totals{}, totals{}, map[int]totals{}
	count := func(pid int, op string, v tally) {
		if pids[pid] == nil {
			pids[pid] = totals{}
		}
		pids[pid].add(op, v)
		endpoints.add(op, v)
	}
	for _, row := range l.Endpoint {
		count(row.Source.Pid, row.Operation, row.tally)
	}
	for _, row := range l.Rank {
		ranks.add(row.Operation, row.tally)
	}
	for _, row := range l.Node {
		nodes.add(row.Operation, row.tally)
	}
	sent := maps.Clone(endpoints)
	for _, row := range l.Received {
		count(row.Destination.Pid, row.Operation, row.tally)
	}
	if !m.Exact {
		r.t.Error("matrix is not exact")
	}
	equal(r.t, "matrix by endpoint, "+layer, endpoints, truth)
	equal(r.t, "matrix by rank, "+layer, ranks, sent)
	equal(r.t, "matrix by node, "+layer, nodes, sent)
	for op := range sent {
		if strings.HasSuffix(op, "recv") {
			r.t.Errorf("matrix of sent traffic has %s", op)
		}
	}
	for pid, want := range byPid {
		equal(r.t, "matrix of a process, "+layer, pids[pid], want)
		delete(pids, pid)
	}
	for pid := range pids {
		r.t.Errorf("matrix has process %d, which the counter of %s did not see", pid, layer)
	}
}
