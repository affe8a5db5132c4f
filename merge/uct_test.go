package merge_test

import (
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	cat "github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

func uctRequest(endpoint, bytes, form, request, status, parent, duration uint64) []uint64 {
	return []uint64{endpoint, bytes, form, 0, 0x1000, 0x2000, 0x3000, request, status, parent, duration}
}

// Operations of UCT end on return, by their completion, or with a flush of their endpoint or interface; one that nothing completes is
// unfinished. Their peer is that of the UCP endpoint that their endpoint is a lane of, none without one; none waits for a receive.
func TestUCTOperationsEnd(t *testing.T) {
	r := newRig(t)
	a, b := r.process("n1", 100, 0), r.process("n1", 200, 1)
	a.pairs(hz)
	b.pairs(hz)
	wa := a.worker(10, "a")
	wb := b.worker(20, "b")
	ep := a.endpoint(30, wa, "b")
	tcp := a.define(40, cat.DefUctInterface, "tcp", "lo")
	shm := a.define(41, cat.DefUctInterface, "posix", "memory")
	lane, stray, other := a.define(50, cat.DefUctEndpoint, tcp), a.define(51, cat.DefUctEndpoint, tcp), a.define(52, cat.DefUctEndpoint, shm)
	a.Define(60, cat.DefUctEndpointOwner, lane, ep)

	const put, get, am, flush = cat.EventUctPut, cat.EventUctGet, cat.EventUctAmSend, cat.EventUctFlush
	const done, pending, implicit = uint64(cat.UcpResultDone), uint64(cat.UcpResultPending), uint64(cat.UcpResultImplicit)
	a.event(0, 1000, put, uctRequest(lane, 8, cat.UctFormShort, 0, done, 77, 100)...)
	a.event(0, 2000, get, uctRequest(lane, 4096, cat.UctFormZcopy, 5, pending, 77, 50)...)
	a.event(0, 3000, put, uctRequest(lane, 64, cat.UctFormBcopy, 0, implicit, 77, 20)...)
	a.event(0, 3100, put, uctRequest(stray, 32, cat.UctFormBcopy, 0, implicit, 0, 20)...)
	a.event(0, 3200, am, uctRequest(other, 16, cat.UctFormBcopy, 0, implicit, 0, 20)...)
	a.event(0, 4000, cat.EventUctCompletion, lane, 5, 0)
	a.event(0, 5000, flush, uctRequest(lane, 0, cat.UctFormFlush, 6, pending, 0, 10)...)
	a.event(0, 6000, cat.EventUctCompletion, lane, 6, 0)
	a.event(0, 7000, flush, uctRequest(tcp, 0, cat.UctFormFlush, 0, done, 0, 10)...)
	a.event(0, 8000, get, uctRequest(lane, 4, cat.UctFormZcopy, 9, pending, 77, 50)...)
	a.event(0, 9000, cat.EventUctCompletion, lane, 9, ^uint64(24)) // error -25
	a.event(0, 9500, cat.EventUctCompletion, lane, 99, 0)
	r.close()

	m := r.open(merge.Options{})
	got := map[uint64]ops.Op{}
	for _, o := range all(t, m) {
		got[uint64(o.Post-epoch)*2] = o
	}
	for _, w := range []struct {
		post, done uint64
		flags      ops.Flag
		role       ops.Role
		peer       bool
		status     int32
	}{
		{1000, 1100, ops.Immediate, ops.OneSided, true, 0},
		{2000, 4000, 0, ops.OneSided, true, 0},
		{3000, 6000, ops.Implied, ops.OneSided, true, 0},
		{3100, 7010, ops.Implied, ops.OneSided, false, 0}, // by the flush of the interface
		{3200, 0, ops.Unfinished, ops.OneSided, false, 0}, // of another interface: nothing completes it
		{5000, 6000, 0, ops.Local, true, 0},
		{7000, 7010, ops.Immediate, ops.Local, false, 0},
		{8000, 9000, ops.Failed, ops.OneSided, true, -25},
	} {
		o, ok := got[w.post]
		if !ok || o.Flags != w.flags || o.Role != w.role || o.Status != w.status || (w.done != 0 && o.Done != ns(w.done)) {
			t.Errorf("posted at %d: %v, done at %d, flags %#x, role %d, status %d, want %+v", w.post, ok, (o.Done-epoch)*2, o.Flags, o.Role, o.Status, w)
		}
		if w.peer != (o.Peer != 0) {
			t.Errorf("posted at %d: peer %d", w.post, o.Peer)
		} else if w.peer {
			if e := m.Run().Endpoints[o.Peer-1]; e.Process != 1 || e.Object != uint32(wb) {
				t.Errorf("posted at %d: to %+v", w.post, e)
			}
		}
	}
	if parent := got[1000].Fields[cat.UctRequestParent]; parent != 77 {
		t.Errorf("parent %d", parent)
	}
	i := m.Info()
	if i.Unfinished != 1 || i.Surplus != 1 || i.Flows.Matched != 0 || len(i.Flows.Unmatched) != 0 {
		t.Errorf("unfinished %d, surplus %d, flows %+v", i.Unfinished, i.Surplus, i.Flows)
	}
	if c := i.Operations["uct"]["put"]; c != (merge.Count{Count: 3, Bytes: 104}) {
		t.Errorf("puts %+v", c)
	}
}
