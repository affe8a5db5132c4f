package merge_test

import (
	"context"
	"os"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	cat "github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

const wholeMask = ^uint64(0)

func of(all []ops.Op, event uint16) (some []ops.Op) {
	for _, o := range all {
		if o.Event == event {
			some = append(some, o)
		}
	}
	return some
}

// Two ranks: rank 0 puts, one of each kind of end, and sends two tagged messages that rank 1 receives in the other order of completion.
func TestUCPPutsAndTaggedMessages(t *testing.T) {
	r := newRig(t)
	a, b := r.process("n1", 100, 0), r.process("n1", 200, 1)
	a.pairs(2 * hz)
	b.pairs(2 * hz)
	wa, wb := a.worker(10, "a"), b.worker(20, "b")
	ep := a.endpoint(30, wa, "b")

	a.event(0, 1000, cat.EventUcpPut, ucpRequest(ep, 8, 0, 0, 0, cat.UcpResultDone, 100)...)
	a.event(0, 2000, cat.EventUcpPut, ucpRequest(ep, 4096, 0, 0, 7, cat.UcpResultPending, 50)...)
	a.event(0, 2400, cat.EventUcpPut, ucpRequest(ep, 64, 0, 0, 0, cat.UcpResultImplicit, 20)...)
	a.event(0, 3000, cat.EventUcpCompletion, ep, 7, 0, 0, 0)
	a.event(0, 4000, cat.EventUcpFlush, ucpRequest(ep, 0, 0, 0, 8, cat.UcpResultPending, 10)...)
	a.event(0, 5000, cat.EventUcpCompletion, ep, 8, 0, 0, 0)
	// Both with the same tag: the first is long and completes last.
	a.event(0, 6000, cat.EventUcpTagSend, ucpRequest(ep, 1<<20, 77, 0, 9, cat.UcpResultPending, 10)...)
	a.event(0, 6100, cat.EventUcpTagSend, ucpRequest(ep, 16, 77, 0, 0, cat.UcpResultDone, 10)...)
	b.event(0, 5500, cat.EventUcpTagRecv, ucpRequest(wb, 2<<20, 70, 0xf0, 1, cat.UcpResultPending, 10)...)
	b.event(0, 5600, cat.EventUcpTagRecv, ucpRequest(wb, 2<<20, 77, wholeMask, 2, cat.UcpResultPending, 10)...)
	b.event(0, 6500, cat.EventUcpCompletion, wb, 2, 16, 77, 0)
	b.event(0, 9000, cat.EventUcpCompletion, wb, 1, 1<<20, 77, 0)
	a.event(0, 9100, cat.EventUcpCompletion, ep, 9, 0, 0, 0)
	r.close()

	m := r.open(merge.Options{Workers: 2})
	run, got := m.Run(), all(t, m)
	type want struct {
		event      uint16
		post, done uint64
		flags      ops.Flag
		bytes      uint64
		out, after uint32
	}
	for _, w := range []want{
		{cat.EventUcpPut, 1000, 1100, ops.Immediate, 8, 1, 0},
		{cat.EventUcpPut, 2000, 3000, 0, 4096, 1, 1},
		{cat.EventUcpPut, 2400, 5000, ops.Implied, 64, 2, 0},
		{cat.EventUcpFlush, 4000, 5000, 0, 0, 2, 1},
		{cat.EventUcpTagSend, 6000, 9100, 0, 1 << 20, 1, 0},
		{cat.EventUcpTagSend, 6100, 6110, ops.Immediate, 16, 2, 1},
		{cat.EventUcpTagRecv, 5500, 9000, 0, 1 << 20, 1, 0},
		{cat.EventUcpTagRecv, 5600, 6500, 0, 16, 2, 1},
	} {
		found := false
		for _, o := range got {
			if o.Event != w.event || o.Post != ns(w.post) {
				continue
			}
			found = true
			if o.Done != ns(w.done) || o.Flags != w.flags || o.Bytes != w.bytes || o.Outstanding != w.out || o.After != w.after {
				t.Errorf("%s at %d: done %d flags %#x bytes %d outstanding %d after %d, want %+v", cat.Default.Event(o.Event).Name, w.post,
					(o.Done-epoch)*2, o.Flags, o.Bytes, o.Outstanding, o.After, w)
			}
		}
		if !found {
			t.Errorf("no %s at %d", cat.Default.Event(w.event).Name, w.post)
		}
	}
	sends, receives := of(got, cat.EventUcpTagSend), of(got, cat.EventUcpTagRecv)
	for i := range 2 {
		s, v := sends[i], receives[i]
		if s.Flow == 0 || s.Flow != v.Flow {
			t.Errorf("message %d: flow %x sent, %x received", i, s.Flow, v.Flow)
		}
		if e := run.Endpoints[s.Peer-1]; e.Process != 1 || e.Kind != "worker" || e.Object != uint32(wb) {
			t.Errorf("message %d leads to %+v", i, e)
		}
		if e := run.Endpoints[v.Peer-1]; e.Process != 0 || e.Kind != "endpoint" || e.Object != uint32(ep) {
			t.Errorf("message %d comes from %+v", i, e)
		}
	}
	if sends[0].Flow == sends[1].Flow {
		t.Error("two messages share a flow")
	}

	i := m.Info()
	if i.Events.Total != 13 || i.Events.ByName["ucp_completion"] != 5 || i.Events.ByProvider["ucx"] != 13 {
		t.Errorf("events %+v", i.Events)
	}
	if got, want := i.Operations["ucp"]["put"], (merge.Count{Count: 3, Bytes: 8 + 4096 + 64}); got != want {
		t.Errorf("puts %+v, want %+v", got, want)
	}
	if got, want := i.Operations["ucp"]["tag_send"], (merge.Count{Count: 2, Bytes: 1<<20 + 16}); got != want {
		t.Errorf("tag_sends %+v, want %+v", got, want)
	}
	if i.Completions["ucp"] != 5 || i.Flows.Matched != 2 || len(i.Flows.Unmatched) != 0 || i.Flows.Ambiguous != 0 {
		t.Errorf("completions %v flows %+v", i.Completions, i.Flows)
	}
	if !i.Complete() || i.Ranks.Complete != 2 || i.Ranks.Injected != 2 {
		t.Errorf("ranks %+v", i.Ranks)
	}
	if n := i.Clock.Nodes; len(n) != 1 || n[0].ErrorNS == nil || *n[0].ErrorNS < 20 || *n[0].ErrorNS > 30 {
		t.Errorf("clock %+v", n)
	}
	if x := i.Clock.ReceiveBeforeSend; x.Count == nil || *x.Count != 0 {
		t.Errorf("receive before send %+v", x)
	}
	var row *merge.PartyRow
	for j, x := range m.Matrix().Layers["ucp"].Rank {
		if x.Operation == "put" {
			row = &m.Matrix().Layers["ucp"].Rank[j]
		}
	}
	if row == nil || row.Source != int64(0) || row.Destination != int64(1) || row.Count != 3 || row.Bytes != 8+4096+64 {
		t.Errorf("matrix row %+v", row)
	}
}

// A merge leaves its results under their names, and nothing else; again and again, to the same bytes.
func TestRunWritesResultsAndCanBeRepeated(t *testing.T) {
	r := newRig(t)
	a := r.process("n1", 100, 0)
	a.pairs(hz)
	ep := a.endpoint(30, a.worker(10, "a"), "a")
	a.event(0, 1000, cat.EventUcpPut, ucpRequest(ep, 8, 0, 0, 0, cat.UcpResultDone, 100)...)
	r.close()
	var first []byte
	for range 2 {
		info, err := merge.Run(context.Background(), r.dir, merge.Options{})
		if err != nil {
			t.Fatal(err)
		}
		validate(t, info, m(t, r))
		text, err := os.ReadFile(r.dir.Matrix())
		if err != nil {
			t.Fatal(err)
		}
		if first != nil && string(first) != string(text) {
			t.Errorf("the matrix differs:\n%s\n%s", first, text)
		}
		first = text
		manifest, err := r.dir.ReadManifest()
		if err != nil {
			t.Fatal(err)
		}
		back, err := merge.ParseInfo(manifest.Result)
		if err != nil || back.Events.Total != 1 {
			t.Errorf("the manifest's result: %v %+v", err, back)
		}
		entries, err := os.ReadDir(r.dir.Path())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			switch e.Name() {
			case "capture", "manifest.json", "matrix.json", "trace.pftrace":
			default:
				t.Errorf("%s was left behind", e.Name())
			}
		}
		if len(entries) != 4 {
			t.Errorf("%d entries in the run directory, want 4", len(entries))
		}
	}
}

func m(t *testing.T, r *rig) *merge.Matrix {
	t.Helper()
	return r.open(merge.Options{}).Matrix()
}
