package merge_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/capture"
	cat "github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// F72: a world of a million ranks of which few were seen is said in few words.
func TestF72MissingRanksAreRanges(t *testing.T) {
	r := newRig(t)
	for n, rank := range []int64{0, 1, 5, 7, 999_999} {
		r.process("n1", 100+uint32(n), rank, func(h *capture.Header) { h.World = 1_000_000 }).pairs(hz)
	}
	r.close()
	i := r.open(merge.Options{}).Info()
	want := []string{"ranks 2 to 4: not injected", "rank 6: not injected", "ranks 8 to 999998: not injected"}
	if fmt.Sprint(i.Ranks.Incomplete) != fmt.Sprint(want) {
		t.Errorf("incomplete: %v, want %v", i.Ranks.Incomplete, want)
	}
	if i.Complete() || *i.Ranks.Expected != 1_000_000 || i.Ranks.Complete != 5 {
		t.Errorf("%+v", i.Ranks)
	}
	text, err := i.JSON()
	if err != nil || len(text) > 10_000 {
		t.Errorf("an account of %d bytes, %v", len(text), err)
	}
	if err := check(t, "info", merge.InfoSchema, text); err != nil {
		t.Error(err)
	}
	var s strings.Builder
	i.Summary(&s)
	if !strings.Contains(s.String(), "ranks: 5 of 1000000 complete") {
		t.Errorf("summary:\n%s", &s)
	}
	// What is left out of a long list is still counted by ranks.
	r = newRig(t)
	for n := range uint32(8) {
		r.process("n1", 100+n, 10*int64(n), func(h *capture.Header) { h.World = 1000 }).pairs(hz)
	}
	r.close()
	s.Reset()
	r.open(merge.Options{}).Info().Summary(&s)
	if want := fmt.Sprintf("and %d more", 1000-8-5*9); !strings.Contains(s.String(), want) {
		t.Errorf("summary, want %s:\n%s", want, &s)
	}
}

// A pack that could not be taken apart may have captures of which nothing else tells.
func TestPackThatIsNotUnpackedIsDamage(t *testing.T) {
	r := newRig(t)
	r.process("n1", 100, 0, func(h *capture.Header) { h.World = 1 }).pairs(hz)
	r.close()
	if err := os.WriteFile(filepath.Join(r.dir.Capture(), "n2.7.0.tar.zst"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	i := r.open(merge.Options{}).Info()
	if i.Complete() || i.Ranks.Complete != 1 || len(i.Damaged) != 1 || filepath.Base(i.Damaged[0].File) != "n2.7.0.tar.zst" {
		t.Errorf("complete %v, ranks %+v, damaged %+v", i.Complete(), i.Ranks, i.Damaged)
	}
}

// ring has n ranks, some left out, each sending to the next one.
func ring(r *rig, n int, absent int) {
	procs := make([]*proc, n)
	workers := make([]uint64, n)
	for k := range n {
		if k == absent {
			continue
		}
		p := r.process("n1", 100+uint32(k), int64(k), func(h *capture.Header) { h.World = int64(n) })
		p.pairs(hz)
		procs[k], workers[k] = p, p.worker(10, fmt.Sprint("w", k))
	}
	for k, p := range procs {
		next := (k + 1) % n
		if p == nil {
			continue
		}
		ep := p.endpoint(30, workers[k], fmt.Sprint("w", next))
		p.event(0, 10_000, cat.EventUcpTagSend, ucpRequest(ep, 8, 5, 0, 0, cat.UcpResultDone, 10)...)
		p.event(0, 9_000, cat.EventUcpTagRecv, ucpRequest(workers[k], 8, 5, wholeMask, 1, cat.UcpResultPending, 10)...)
		p.event(0, 20_000, cat.EventUcpCompletion, workers[k], 1, 8, 5, 0)
	}
	r.close()
}

// F67: no rank is special: without rank 0, or any other, the rest is merged, and the one that is missing is named.
func TestF67NoRankIsSpecial(t *testing.T) {
	for _, absent := range []int{0, 2} {
		r := newRig(t)
		ring(r, 4, absent)
		m := r.open(merge.Options{})
		i := m.Info()
		if want := fmt.Sprintf("rank %d: not injected", absent); len(i.Ranks.Incomplete) != 1 || i.Ranks.Incomplete[0].String() != want {
			t.Errorf("incomplete %v, want %s", i.Ranks.Incomplete, want)
		}
		if i.Flows.Matched != 2 || i.Operations["ucp"]["tag_send"].Count != 3 || i.Ranks.Complete != 3 || i.Exact || m.Matrix().Exact {
			t.Errorf("without rank %d: %+v %+v, exact %v: what it sent is missing", absent, i.Flows, i.Operations, i.Exact)
		}
		if rows := m.Matrix().Layers["ucp"].Rank; len(rows) != 3 {
			t.Errorf("without rank %d, matrix of ranks: %+v", absent, rows)
		}
	}
}

// F21: the components of a heterogeneous job count their ranks anew. Processes of the same rank are not one: each keeps its own
// endpoints and its own end.
func TestF21SameRankInTwoComponents(t *testing.T) {
	r := newRig(t)
	for n, component := range []string{"0", "1"} {
		for rank := range uint32(2) {
			p := r.process(fmt.Sprint("n", n), 100+rank, int64(rank), func(h *capture.Header) {
				h.World, h.Job = 2, "SLURM_JOB_ID=7\nSLURM_HET_JOB_OFFSET="+component+"\n"
			})
			p.pairs(hz)
			w := p.worker(10, fmt.Sprint("w", n, rank))
			ep := p.endpoint(30, w, fmt.Sprint("w", n, 1-rank))
			p.event(0, 10_000, cat.EventUcpTagSend, ucpRequest(ep, 8, 5, 0, 0, cat.UcpResultDone, 10)...)
			p.event(0, 9_000, cat.EventUcpTagRecv, ucpRequest(w, 8, 5, wholeMask, 1, cat.UcpResultPending, 10)...)
			p.event(0, 20_000, cat.EventUcpCompletion, w, 1, 8, 5, 0)
		}
	}
	if err := r.procs[3].end(true); err != nil {
		t.Fatal(err)
	}
	r.procs = r.procs[:3]
	r.close()
	m := r.open(merge.Options{})
	i := m.Info()
	if i.Processes.Total != 4 || i.Processes.Complete != 3 || i.Flows.Matched != 4 || i.Flows.Ambiguous != 0 || i.Operations["ucp"]["tag_send"].Count != 4 {
		t.Errorf("%+v, flows %+v", i.Processes, i.Flows)
	}
	if len(i.Ranks.Incomplete) != 1 || !strings.HasPrefix(i.Ranks.Incomplete[0].String(), "rank 1 pid 101 on n1: no end mark") {
		t.Errorf("incomplete: %v", i.Ranks.Incomplete)
	}
	var summary bytes.Buffer
	if i.Summary(&summary); i.Ranks.Components != 2 || !strings.Contains(summary.String(), "of 2 components") {
		t.Errorf("%d components\n%s", i.Ranks.Components, summary.String())
	}
	parties := map[string]uint64{}
	for _, row := range m.Matrix().Layers["ucp"].Rank {
		if row.Operation == "tag_send" {
			parties[fmt.Sprint(row.Source, " to ", row.Destination)] += row.Count
		}
	}
	want := map[string]uint64{}
	for _, c := range []int{0, 1} {
		want[fmt.Sprintf("component %d rank 0 to component %d rank 1", c, c)] = 1
		want[fmt.Sprintf("component %d rank 1 to component %d rank 0", c, c)] = 1
	}
	if !maps.Equal(parties, want) {
		t.Errorf("sends between ranks: %v, want %v", parties, want)
	}
	ends := map[string]bool{}
	for _, row := range m.Matrix().Layers["ucp"].Endpoint {
		if row.Source == nil || row.Destination == nil || row.Source.Host != row.Destination.Host {
			t.Errorf("traffic between components: %+v", row)
			continue
		}
		ends[fmt.Sprint(row.Source.Host, row.Source.Pid)] = true
	}
	if len(ends) != 4 {
		t.Errorf("endpoints of %v only", ends)
	}
}

// F59: a counter that does not promise a constant rate has no known error, and the summary says so; times are still there.
func TestF59CounterOfChangingRate(t *testing.T) {
	r := newRig(t)
	p := r.process("n1", 100, 0, func(h *capture.Header) { h.ClockFlags = 0 })
	p.pairs(3 * hz)
	ep := p.endpoint(30, p.worker(10, "a"), "b")
	p.event(0, 10_000, cat.EventUcpPut, ucpRequest(ep, 8, 0, 0, 0, cat.UcpResultDone, 10)...)
	r.close()
	m := r.open(merge.Options{})
	if n := m.Info().Clock.Nodes[0]; n.ErrorNS != nil || n.Reason == "" {
		t.Errorf("clock %+v", n)
	}
	var s strings.Builder
	m.Info().Summary(&s)
	if !strings.Contains(s.String(), "error not known: the counter does not promise a constant rate") {
		t.Errorf("summary:\n%s", &s)
	}
	if o := of(all(t, m), cat.EventUcpPut)[0]; o.Post != ns(10_000) {
		t.Errorf("posted at %d", o.Post-epoch)
	}
}

// F61: messages received before they were sent are counted with the worst, by node's clocks that disagree by little as well, and the
// number of those that do not is not touched.
func TestF61NegativeLatenciesAreCounted(t *testing.T) {
	r := newRig(t)
	a, b := r.process("n1", 100, 0), r.process("n2", 200, 1)
	b.step = -300 // ns
	a.pairs(hz)
	b.pairs(hz)
	ep := a.endpoint(30, a.worker(10, "a"), "b")
	wb := b.worker(20, "b")
	for n := range uint64(10) { // latencies of 0, 100, ... 900 ns
		at := 10_000 + n*hz/16
		a.event(0, at, cat.EventUcpTagSend, ucpRequest(ep, 8, 5, 0, 0, cat.UcpResultDone, 10)...)
		b.event(0, at-5_000, cat.EventUcpTagRecv, ucpRequest(wb, 8, 5, wholeMask, n+1, cat.UcpResultPending, 10)...)
		b.event(0, at+n*200, cat.EventUcpCompletion, wb, n+1, 8, 5, 0)
	}
	r.close()
	x := r.open(merge.Options{}).Info().Clock.ReceiveBeforeSend
	if x.Count == nil || *x.Count != 3 || *x.WorstNS != 300 {
		t.Errorf("receive before send: %v of 3 (latencies of 0, 100 and 200 ns), worst %v of 300", *x.Count, *x.WorstNS)
	}
}

// F63: what found no room is in the account, each kind apart, and the run is not called complete.
func TestF63LossesAreInTheAccount(t *testing.T) {
	for what, live := range map[string]capture.Live{
		"lost definitions: 3":                              {LostDefinitions: 3},
		"more objects than the recorder has places for: 5": {LostObjects: 5},
		"lost events: no space (no space left on device)":  {LostEvents: 2, LostBytes: 16, LostCause: capture.LostSpace, LostErrno: 28},
		"lost events: quota (disk quota exceeded)":         {LostEvents: 2, LostBytes: 16, LostCause: capture.LostQuota, LostErrno: 122},
		"lost counts: totals are a lower bound":            {LostTables: 1},
		"lost events: elements of queues that GPUs ring could not be read; lost counts: totals are a lower bound": {LostEvents: 2, LostTables: 2, LostCause: capture.LostElements},
		"tables full: 4 calls are counted without their endpoint":                                                 {Unplaced: 4},
		"lost events: byte budget; lost definitions: 1":                                                           {LostEvents: 1, LostCause: capture.LostBudget, LostDefinitions: 1},
	} {
		r := newRig(t)
		p := r.process("n1", 100, 0)
		p.pairs(hz)
		p.Live = live
		r.close()
		i := r.open(merge.Options{}).Info()
		if len(i.Ranks.Incomplete) != 1 || i.Ranks.Incomplete[0].Reason != what || i.Complete() {
			t.Errorf("incomplete %v, want %s", i.Ranks.Incomplete, what)
		}
		if i.Lost != (merge.Lost{Events: live.LostEvents, Bytes: live.LostBytes, Definitions: live.LostDefinitions, Objects: live.LostObjects}) || i.Exact == (live.LostTables > 0) {
			t.Errorf("%s: lost %+v, exact %v", what, i.Lost, i.Exact)
		}
	}
}
