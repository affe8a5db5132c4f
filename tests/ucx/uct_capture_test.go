package ucx

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// operation is a record of UCT.
type operation struct {
	name     string
	object   uint64
	bytes    uint64
	form     uint64
	id       uint64
	status   uint64
	parent   uint64
	time     uint64
	duration uint64
	thread   uint32
}

type lane struct {
	iface, owner uint64
	ended        bool
}

// uctProcess is what a capture says of UCT. Flushes and fences are "flush" in totals and recorded.
type uctProcess struct {
	totals, recorded map[string]total
	completed        uint64 // from the aggregate tables
	operations       []operation
	completions      map[uint64]int64 // error by request id
	twice            []uint64         // ids completed more than once
	interfaces       map[uint64]string
	lanes            map[uint64]*lane
	off              []string
}

func newUCT() uctProcess {
	return uctProcess{totals: map[string]total{}, recorded: map[string]total{}, completions: map[uint64]int64{}, interfaces: map[uint64]string{}, lanes: map[uint64]*lane{}}
}

func uctName(e *catalogue.Event) string { return strings.TrimPrefix(e.Name, "uct_") }

func (u *uctProcess) count(e *catalogue.Event, a *capture.Aggregate) {
	if e.Kind == catalogue.Completion {
		u.completed += a.Count
		return
	}
	t := u.totals[uctName(e)]
	u.totals[uctName(e)] = total{t.Count + a.Count, t.Bytes + a.Bytes}
}

func (u *uctProcess) define(d *capture.Definition) {
	switch d.Def.Name {
	case "uct_interface":
		u.interfaces[d.Uint(0)] = d.String(1) + "/" + d.String(2)
	case "uct_endpoint":
		u.lanes[d.Uint(0)] = &lane{iface: d.Uint(1)}
	case "uct_endpoint_owner":
		u.lanes[d.Uint(0)].owner = d.Uint(1)
	case "uct_off":
		u.off = append(u.off, d.String(0)+": "+d.String(1))
	case "object_end":
		if l := u.lanes[d.Uint(0)]; l != nil {
			l.ended = true
		}
	}
}

func (u *uctProcess) event(e *catalogue.Event, ev *capture.Event) {
	f := &ev.Fields
	if e.Kind == catalogue.Completion {
		if _, ok := u.completions[f[1]]; ok {
			u.twice = append(u.twice, f[1])
		}
		u.completions[f[1]] = int64(f[2])
		return
	}
	u.operations = append(u.operations, operation{name: uctName(e), object: f[0], bytes: f[1], form: f[2], id: f[7], status: f[8], parent: f[9],
		duration: f[10], time: ev.Time, thread: ev.Thread})
	t := u.recorded[uctName(e)]
	u.recorded[uctName(e)] = total{t.Count + 1, t.Bytes + f[1]}
}

// checkUCT holds what is true of every complete full-mode capture: the operations add up to the tables, pending ones complete at most once, and
// each names the request of the UCP call that it lies in, or none where it lies in none. It returns the ids named.
func (p *process) checkUCT(t *testing.T) map[uint64]bool {
	t.Helper()
	u := &p.uct
	if fmt.Sprint(u.recorded) != fmt.Sprint(u.totals) {
		t.Errorf("events of UCT add up to %v, tables say %v", u.recorded, u.totals)
	}
	calls := map[uint32][]*request{}
	for i := range p.requests {
		r := &p.requests[i]
		calls[r.thread] = append(calls[r.thread], r)
	}
	parents, pendings, complete := map[uint64]bool{}, map[uint64]bool{}, uint64(0)
	for _, o := range u.operations {
		switch {
		case o.status == pending && (o.id == 0 || pendings[o.id]), o.status != pending && o.id != 0:
			t.Errorf("operation %+v", o)
		case o.status == pending:
			pendings[o.id] = true
		case o.status == done:
			complete++
		}
		if u.lanes[o.object] == nil && u.interfaces[o.object] == "" {
			t.Errorf("operation %+v on nothing that was defined", o)
		}
		var within *request // the innermost
		for _, r := range calls[o.thread] {
			if r.time <= o.time && o.time+o.duration <= r.time+r.duration && (within == nil || r.duration < within.duration) {
				within = r
			}
		}
		switch {
		case within == nil && o.parent != 0:
			t.Errorf("operation %+v lies in no call of UCP", o)
		case within != nil && (o.parent == 0 || o.parent != within.id):
			t.Errorf("operation %+v lies in %+v", o, *within)
		}
		if o.parent != 0 {
			parents[o.parent] = true
		}
	}
	for id := range u.completions {
		if !pendings[id] {
			t.Errorf("completion of no operation: %d", id)
		}
	}
	if len(u.twice) > 0 {
		t.Errorf("completed twice: %v", u.twice)
	}
	if want := complete + uint64(len(u.completions)); u.completed != want {
		t.Errorf("table counts %d completions of UCT, events %d", u.completed, want)
	}
	return parents
}

// compareUCT holds the captures to the counting preload: nothing is recorded where the level is not.
func (s *session) compareUCT(t *testing.T, mode string, all []*process) {
	t.Helper()
	sum, events := map[string]total{}, map[string]total{}
	for _, p := range all {
		add(sum, p.uct.totals)
		add(events, p.uct.recorded)
		if mode == "full" {
			p.checkUCT(t)
			if n := p.uct.unfinished(); n != 0 {
				t.Errorf("%d operations without completion in pid %d", n, p.header.Pid)
			}
		}
	}
	want := s.counted(t, "uct")
	if len(want) == 0 {
		t.Error("the counting preload of UCT saw nothing")
	}
	if !s.uct {
		want = map[string]total{}
	}
	if fmt.Sprint(sum) != fmt.Sprint(want) {
		t.Errorf("tables of UCT: %v, counting preload: %v", sum, want)
	}
	if mode == "simple" {
		delete(want, "flush") // no communication call
	}
	if mode == "aggregate" {
		want = map[string]total{}
	}
	if fmt.Sprint(events) != fmt.Sprint(want) {
		t.Errorf("events of UCT: %v, expected: %v", events, want)
	}
}

func add(sum, more map[string]total) {
	for op, c := range more {
		sum[op] = total{sum[op].Count + c.Count, sum[op].Bytes + c.Bytes}
	}
}

// unfinished counts the pending operations that were not seen to complete.
func (u *uctProcess) unfinished() int {
	n := 0
	for _, o := range u.operations {
		if _, ok := u.completions[o.id]; o.status == pending && !ok {
			n++
		}
	}
	return n
}

// tell adds what the scenarios of uct_edge expect.
func (u *uctProcess) tell(got map[string]uint64) {
	for op, c := range u.totals {
		got["uct_"+op] += c.Count
		got["uct_"+op+".bytes"] += c.Bytes
	}
	for _, o := range u.operations {
		got["uct_"+[]string{"done", "pending", "implicit", "untracked"}[o.status]]++
	}
	got["uct_completions"] += uint64(len(u.completions))
	for _, e := range u.completions {
		if e != 0 {
			got["uct_failed"]++
		}
	}
	for _, name := range u.interfaces {
		got["uct_interface "+name]++
	}
	for _, l := range u.lanes {
		got["uct_lanes"]++
		if l.ended {
			got["uct_lanes_ended"]++
		}
	}
	for _, x := range u.off {
		got["uct_off"]++
		got["uct_off "+x]++
	}
}
