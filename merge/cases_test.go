package merge_test

import (
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/capture"
	cat "github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/match"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// at returns the operation of a kind that was posted at a tick.
func at(t *testing.T, all []ops.Op, event uint16, tick uint64) ops.Op {
	t.Helper()
	for _, o := range all {
		if o.Event == event && o.Post == ns(tick) {
			return o
		}
	}
	t.Fatalf("no %s at %d", cat.Default.Event(event).Name, tick)
	return ops.Op{}
}

// A failed request's completion has no opcode: its wr_id tells it. Requests before it were done, those behind it are flushed, the
// unsignalled ones too; none of the failed has a flow.
func TestVerbsErrors(t *testing.T) {
	l := newLine(t)
	l.b.event(0, 1000, cat.EventVerbsRecv, l.qb, 1, 64, 1, 0, 5, 0)
	l.b.event(0, 1010, cat.EventVerbsRecv, l.qb, 2, 64, 1, 0, 5, 0)
	for n := range uint64(4) {
		flags := uint64(0)
		if n == 1 {
			flags = cat.VerbsSendFlagsSignaled
		}
		l.a.event(0, 2000+10*n, cat.EventVerbsSend, verbsFields(l.qa, 10+n, 64, cat.VerbsOpcodeSend, flags, 0)...)
	}
	const flushed, retries = 5, 12
	l.b.event(0, 2900, cat.EventVerbsCompletion, l.qb, 1, 0, 0, 128, 64, 0, 0, 0)
	l.a.event(0, 3000, cat.EventVerbsCompletion, l.qa, 11, 0, retries, 0xdead, 0, 0, 0, 0)
	l.a.event(0, 3100, cat.EventVerbsCompletion, l.qa, 12, 0, flushed, 0x80, 0, 0, 0, 0)
	l.a.event(0, 3200, cat.EventVerbsCompletion, l.qa, 13, 0, flushed, 0, 0, 0, 0, 0)
	l.b.event(0, 3300, cat.EventVerbsCompletion, l.qb, 2, 0, flushed, 0, 0, 0, 0, 0)
	l.close()
	m := l.open(merge.Options{})
	got := all(t, m)
	for n, want := range []struct {
		status int32
		done   uint64
		flags  ops.Flag
	}{{0, 3000, ops.Implied}, {retries, 3000, ops.Failed}, {flushed, 3100, ops.Failed}, {flushed, 3200, ops.Failed}} {
		o := at(t, got, cat.EventVerbsSend, 2000+10*uint64(n))
		if o.Status != want.status || o.Done != ns(want.done) || o.Flags != want.flags || (o.Flow != 0) != (n == 0) {
			t.Errorf("send %d: status %d done %d flags %#x flow %x, want %+v", n, o.Status, o.Done-epoch, o.Flags, o.Flow, want)
		}
	}
	if r := at(t, got, cat.EventVerbsRecv, 1010); r.Status != flushed || r.Flow != 0 || r.Flags != ops.Failed {
		t.Errorf("the flushed receive: %+v", r)
	}
	if i := m.Info(); i.Surplus != 0 || i.Flows.Matched != 1 || i.Flows.Unmatched[match.Failed] != 4 {
		t.Errorf("surplus %d flows %+v", i.Surplus, i.Flows)
	}
}

// F74: a number belongs to one queue pair after another. Messages of the second life are not taken for those of the first, and what
// the first left undone ends with it.
func TestRecycledQueuePairNumbers(t *testing.T) {
	r := newRig(t)
	a, b, c := r.process("n1", 100, 0), r.process("n1", 200, 1), r.process("n1", 300, 2)
	for _, p := range r.procs {
		p.pairs(hz)
	}
	da, ga := a.device(100, 1)
	db, _ := b.device(100, 1)
	dc, _ := c.device(100, 1)
	// First 17 of a with 18 of b; b goes and c gets the number 18; a resets its queue pair and connects it to that.
	qa := a.queuePair(200, da, 17, rc, 0, 0)
	qb := b.queuePair(200, db, 18, rc, 0, 0)
	a.modify(300, qa, cat.VerbsQpStateRtr, 18, ga)
	b.modify(300, qb, cat.VerbsQpStateRtr, 17, ga)
	b.event(0, 400, cat.EventVerbsRecv, qb, 1, 64, 1, 0, 5, 0)
	b.event(0, 410, cat.EventVerbsRecv, qb, 2, 64, 1, 0, 5, 0)
	a.event(0, 500, cat.EventVerbsSend, verbsFields(qa, 1, 64, cat.VerbsOpcodeSend, 2, 0)...)
	a.event(0, 510, cat.EventVerbsSend, verbsFields(qa, 2, 64, cat.VerbsOpcodeSend, 2, 0)...)
	b.event(0, 600, cat.EventVerbsCompletion, qb, 1, 0, 0, 128, 64, 0, 0, 0)
	a.event(0, 610, cat.EventVerbsCompletion, qa, 1, 0, 0, 0, 64, 0, 0, 0)
	b.Define(1000, cat.DefObjectEnd, qb)
	a.modify(1100, qa, cat.VerbsQpStateReset, 0, nil)
	qc := c.queuePair(1200, dc, 18, rc, 0, 0)
	a.modify(1300, qa, cat.VerbsQpStateRtr, 18, ga)
	c.modify(1300, qc, cat.VerbsQpStateRtr, 17, ga)
	c.event(0, 1400, cat.EventVerbsRecv, qc, 1, 64, 1, 0, 5, 0)
	a.event(0, 1500, cat.EventVerbsSend, verbsFields(qa, 3, 64, cat.VerbsOpcodeSend, 2, 0)...)
	c.event(0, 1600, cat.EventVerbsCompletion, qc, 1, 0, 0, 128, 64, 0, 0, 0)
	a.event(0, 1610, cat.EventVerbsCompletion, qa, 3, 0, 0, 0, 64, 0, 0, 0)
	r.close()
	m := r.open(merge.Options{})
	got := all(t, m)
	first, second := at(t, got, cat.EventVerbsSend, 500), at(t, got, cat.EventVerbsSend, 1500)
	if v := at(t, got, cat.EventVerbsRecv, 400); first.Flow == 0 || first.Flow != v.Flow {
		t.Errorf("first life: %x and %x", first.Flow, v.Flow)
	}
	if v := at(t, got, cat.EventVerbsRecv, 1400); second.Flow == 0 || second.Flow != v.Flow {
		t.Errorf("second life: %x and %x", second.Flow, v.Flow)
	}
	run := m.Run()
	if p, q := run.Endpoints[first.Peer-1].Process, run.Endpoints[second.Peer-1].Process; p != 1 || q != 2 {
		t.Errorf("peers are of processes %d and %d, want 1 and 2", p, q)
	}
	if o := at(t, got, cat.EventVerbsSend, 510); o.Flags&ops.Unfinished == 0 || o.Done != ns(1100) || o.Flow != 0 {
		t.Errorf("the send that the reset ended: done %d flags %#x flow %x", o.Done-epoch, o.Flags, o.Flow)
	}
	if o := at(t, got, cat.EventVerbsRecv, 410); o.Flags&ops.Unfinished == 0 || o.Done != ns(1000) {
		t.Errorf("the receive that the end of its queue pair ended: done %d flags %#x", o.Done-epoch, o.Flags)
	}
	// The tables do not tell when: for all they know, either may have got all three.
	for _, row := range m.Matrix().Layers["verbs"].Rank {
		if row.Operation == "send" && row.Destination != nil {
			t.Errorf("the matrix claims to know where sends of several lives went: %+v", row)
		}
	}
}

// F75: the same number on two devices, told apart by the GID; and a peer that was not traced.
func TestPeersByGID(t *testing.T) {
	r := newRig(t)
	a, b, c := r.process("n1", 100, 0), r.process("n2", 200, 1), r.process("n3", 300, 2)
	for _, p := range r.procs {
		p.pairs(hz)
	}
	da, ga := a.device(100, 1)
	db, gb := b.device(100, 2)
	dc, _ := c.device(100, 3)
	qa := a.queuePair(200, da, 17, rc, 0, 0)
	q2 := a.queuePair(200, da, 20, rc, 0, 0)
	qb := b.queuePair(200, db, 18, rc, 0, 0)
	qc := c.queuePair(200, dc, 18, rc, 0, 0)
	a.modify(300, qa, cat.VerbsQpStateRtr, 18, gb)
	b.modify(300, qb, cat.VerbsQpStateRtr, 17, ga)
	c.modify(300, qc, cat.VerbsQpStateRtr, 17, ga) // says so, but a does not answer
	a.modify(300, q2, cat.VerbsQpStateRtr, 99, gb)
	a.event(0, 500, cat.EventVerbsWrite, verbsFields(qa, 1, 64, cat.VerbsOpcodeRdmaWrite, 0, 0)...)
	a.event(0, 600, cat.EventVerbsSend, verbsFields(q2, 1, 64, cat.VerbsOpcodeSend, 0, 0)...)
	r.close()
	m := r.open(merge.Options{})
	run := m.Run()
	names := map[string]uint32{}
	for _, e := range run.Endpoints {
		names[e.Name] = e.Peer
	}
	if p := names["QP 0x11 -> rank 1"]; p == 0 || run.Endpoints[p-1].Process != 1 {
		t.Errorf("endpoints %v", names)
	}
	if p, ok := names["QP 0x14"]; !ok || p != 0 {
		t.Errorf("endpoints %v", names)
	}
	if f := m.Info().Flows; f.Unmatched[match.PeerNotTraced] != 1 || f.Matched != 0 {
		t.Errorf("flows %+v", f)
	}
	if c := m.Info().Clock; c.Nodes[0].ErrorNS != nil || c.Nodes[0].Reason == "" {
		t.Errorf("between nodes, a clock error is claimed to be known: %+v", c.Nodes[0])
	}
}

// Datagrams from two senders to one queue pair: the address handle tells where to, the completion's number from whom.
func TestDatagrams(t *testing.T) {
	r := newRig(t)
	a, b, c := r.process("n1", 100, 0), r.process("n2", 200, 1), r.process("n1", 300, 2)
	for _, p := range r.procs {
		p.pairs(hz)
	}
	da, _ := a.device(100, 1)
	db, gb := b.device(100, 2)
	dc, _ := c.device(100, 1)
	qa, qb, qc := a.queuePair(200, da, 17, ud, 0, 0), b.queuePair(200, db, 18, ud, 0, 0), c.queuePair(200, dc, 19, ud, 0, 0)
	ha := a.define(210, cat.DefVerbsAh, uint64(0), uint64(0), gb, uint64(0), uint64(1))
	hc := c.define(210, cat.DefVerbsAh, uint64(0), uint64(0), gb, uint64(0), uint64(1))
	datagram := func(q, wr, handle, number, uid uint64) []uint64 {
		return []uint64{q, wr, 64, cat.VerbsOpcodeSend, cat.VerbsSendFlagsSignaled, 1, uid, 5, handle, number, 0, 0}
	}
	for n := range uint64(4) {
		b.event(0, 400+10*n, cat.EventVerbsRecv, qb, n, 1000, 1, n, 5, 0)
	}
	a.event(0, 500, cat.EventVerbsDatagram, datagram(qa, 1, ha, 18, 100)...)
	c.event(0, 510, cat.EventVerbsDatagram, datagram(qc, 1, hc, 18, 200)...)
	a.event(0, 520, cat.EventVerbsDatagram, datagram(qa, 2, ha, 18, 101)...)
	a.event(0, 530, cat.EventVerbsDatagram, datagram(qa, 3, ha, 0xffffff, 102)...)
	c.event(0, 540, cat.EventVerbsDatagram, datagram(qc, 2, hc, 77, 201)...)
	// They arrive in another order.
	for n, from := range []uint64{19, 17, 17} {
		b.event(0, 600+10*uint64(n), cat.EventVerbsCompletion, qb, uint64(n), 0, 0, 128, 64+40, 0, 0, from)
	}
	r.close()
	m := r.open(merge.Options{})
	got := all(t, m)
	for send, receive := range map[uint64]uint64{510: 400, 500: 410, 520: 420} {
		s, v := at(t, got, cat.EventVerbsDatagram, send), at(t, got, cat.EventVerbsRecv, receive)
		if s.Flow == 0 || s.Flow != v.Flow || v.Bytes != 64 || (s.Flags|v.Flags)&ops.Ambiguous != 0 {
			t.Errorf("datagram at %d: flows %x and %x, %d bytes, flags %#x %#x", send, s.Flow, v.Flow, v.Bytes, s.Flags, v.Flags)
		}
	}
	i := m.Info()
	if f := i.Flows; f.Matched != 3 || f.Unmatched[match.Multicast] != 1 || f.Unmatched[match.PeerNotTraced] != 1 || f.Unmatched[match.Unfinished] != 1 {
		t.Errorf("flows %+v", f)
	}
	rows := map[[2]any]uint64{}
	for _, row := range m.Matrix().Layers["verbs"].Rank {
		rows[[2]any{row.Source, row.Destination}] += row.Count
	}
	if rows[[2]any{int64(0), int64(1)}] != 2 || rows[[2]any{int64(2), int64(1)}] != 1 || rows[[2]any{int64(0), nil}] != 1 || rows[[2]any{int64(2), nil}] != 1 {
		t.Errorf("matrix %v", rows)
	}
}

// A dropped datagram shifts those behind it: they are flagged.
func TestDroppedDatagramsMakeFlowsUnsure(t *testing.T) {
	r := newRig(t)
	a, b := r.process("n1", 100, 0), r.process("n2", 200, 1)
	a.pairs(hz)
	b.pairs(hz)
	da, _ := a.device(100, 1)
	db, gb := b.device(100, 2)
	qa, qb := a.queuePair(200, da, 17, ud, 0, 0), b.queuePair(200, db, 18, ud, 0, 0)
	h := a.define(210, cat.DefVerbsAh, uint64(0), uint64(0), gb, uint64(0), uint64(1))
	for n := range uint64(3) {
		b.event(0, 400+10*n, cat.EventVerbsRecv, qb, n, 1000, 1, n, 5, 0)
		a.event(0, 500+10*n, cat.EventVerbsDatagram, qa, n, 64, cat.VerbsOpcodeSend, 2, 1, n, 5, h, 18, 0, 0)
	}
	b.event(0, 600, cat.EventVerbsCompletion, qb, 0, 0, 0, 128, 104, 0, 0, 17)
	b.event(0, 610, cat.EventVerbsCompletion, qb, 1, 0, 0, 128, 104, 0, 0, 17)
	r.close()
	if f := r.open(merge.Options{}).Info().Flows; f.Matched != 2 || f.Ambiguous != 2 || f.Unmatched[match.NoReceiveRecorded] != 1 {
		t.Errorf("flows %+v", f)
	}
}

// Threads that take turns on a queue: which came first is not sure, and that is said.
func TestThreadsOnOneQueuePair(t *testing.T) {
	l := newLine(t)
	for n := range uint64(3) {
		l.b.event(0, 900+n, cat.EventVerbsRecv, l.qb, n, 64, 1, n, 5, 0)
	}
	l.a.event(0, 1000, cat.EventVerbsSend, verbsFields(l.qa, 1, 64, cat.VerbsOpcodeSend, 2, 0)...)
	l.a.event(0, 1100, cat.EventVerbsSend, verbsFields(l.qa, 2, 64, cat.VerbsOpcodeSend, 2, 1)...)
	l.a.event(1, 1200, cat.EventVerbsSend, verbsFields(l.qa, 3, 64, cat.VerbsOpcodeSend, 2, 2)...)
	for n := range uint64(3) {
		l.b.event(0, 1500+10*n, cat.EventVerbsCompletion, l.qb, n, 0, 0, 128, 64, 0, 0, 0)
	}
	// Two threads poll: the second completion is recorded first.
	l.a.event(0, 1600, cat.EventVerbsCompletion, l.qa, 2, 0, 0, 0, 64, 0, 0, 0)
	l.a.event(1, 1601, cat.EventVerbsCompletion, l.qa, 1, 0, 0, 0, 64, 0, 0, 0)
	l.a.event(1, 1700, cat.EventVerbsCompletion, l.qa, 3, 0, 0, 0, 64, 0, 0, 0)
	l.close()
	m := l.open(merge.Options{})
	got := all(t, m)
	for post, want := range map[uint64]struct {
		done  uint64
		flags ops.Flag
	}{1000: {1601, 0}, 1100: {1600, ops.Ambiguous}, 1200: {1700, ops.Ambiguous}} {
		if o := at(t, got, cat.EventVerbsSend, post); o.Done != ns(want.done) || o.Flags != want.flags || o.Flow == 0 {
			t.Errorf("send at %d: done %d flags %#x flow %x, want %+v", post, o.Done-epoch, o.Flags, o.Flow, want)
		}
	}
	if i := m.Info(); i.Surplus != 0 || i.Flows.Ambiguous != 2 {
		t.Errorf("surplus %d flows %+v", i.Surplus, i.Flows)
	}
}

// Several senders that use one tag to one worker: which message met which receive is a guess, and that is said.
func TestSeveralSourcesOfOneTag(t *testing.T) {
	r := newRig(t)
	a, b, c := r.process("n1", 100, 0), r.process("n1", 200, 1), r.process("n1", 300, 2)
	for _, p := range r.procs {
		p.pairs(hz)
	}
	wa, wb, wc := a.worker(10, "a"), b.worker(20, "b"), c.worker(15, "c")
	ea, ec := a.endpoint(30, wa, "b"), c.endpoint(30, wc, "b")
	a.event(0, 1000, cat.EventUcpTagSend, ucpRequest(ea, 8, 5, 0, 0, cat.UcpResultDone, 10)...)
	c.event(0, 1100, cat.EventUcpTagSend, ucpRequest(ec, 8, 5, 0, 0, cat.UcpResultDone, 10)...)
	a.event(0, 1200, cat.EventUcpTagSend, ucpRequest(ea, 8, 6, 0, 0, cat.UcpResultDone, 10)...)
	for n, tag := range []uint64{5, 5, 6} {
		b.event(0, 2000+20*uint64(n), cat.EventUcpTagRecv, ucpRequest(wb, 8, tag, wholeMask, uint64(n)+1, cat.UcpResultPending, 10)...)
		b.event(0, 2010+20*uint64(n), cat.EventUcpCompletion, wb, uint64(n)+1, 8, tag, 0)
	}
	r.close()
	m := r.open(merge.Options{})
	if f := m.Info().Flows; f.Matched != 3 || f.Ambiguous != 2 {
		t.Errorf("flows %+v", f)
	}
	if o := at(t, all(t, m), cat.EventUcpTagSend, 1200); o.Flags&ops.Ambiguous != 0 || o.Flow == 0 {
		t.Errorf("the tag of one source: %+v", o)
	}
}

// F57, F61: clocks that disagree are told, with the worst case, and no time is changed.
func TestReceivedBeforeSent(t *testing.T) {
	r := newRig(t)
	a, b := r.process("n1", 100, 0), r.process("n2", 200, 1)
	b.step = -1_000_000_000 // the wall clock of n2 is a second behind
	a.pairs(hz)
	b.pairs(hz)
	ep := a.endpoint(30, a.worker(10, "a"), "b")
	wb := b.worker(20, "b")
	for n := range uint64(2) {
		a.event(0, 10_000+n*hz/2, cat.EventUcpTagSend, ucpRequest(ep, 8, 5, 0, 0, cat.UcpResultDone, 10)...)
		b.event(0, 11_000+n*hz/2, cat.EventUcpTagRecv, ucpRequest(wb, 8, 5, wholeMask, n+1, cat.UcpResultPending, 10)...)
		b.event(0, 12_000+n*hz/2, cat.EventUcpCompletion, wb, n+1, 8, 5, 0)
	}
	r.close()
	m := r.open(merge.Options{})
	x := m.Info().Clock.ReceiveBeforeSend
	if x.Count == nil || *x.Count != 2 || *x.WorstNS != 1_000_000_000-1000 {
		t.Errorf("receive before send: %v", x)
	}
	if o := of(all(t, m), cat.EventUcpTagRecv)[0]; o.Done != ns(12_000)-1_000_000_000 {
		t.Errorf("a time was changed: %d", o.Done-epoch)
	}
	var s strings.Builder
	m.Info().Summary(&s)
	if !strings.Contains(s.String(), "2 messages received before they were sent, by up to 999.999ms") {
		t.Errorf("the summary does not say so:\n%s", &s)
	}
}

// Calls of simple mode and empty polls are operations of their own, outside of flows.
func TestCallsAndPolls(t *testing.T) {
	r := newRig(t)
	p := r.process("n1", 100, 0, func(h *capture.Header) { h.Mode = cat.ModeSimple })
	p.pairs(hz)
	d, _ := p.device(50, 1)
	cq := p.define(60, cat.DefVerbsCq, d, uint64(100))
	q := p.queuePair(70, d, 17, rc, cq, 0)
	p.event(0, 1000, cat.EventVerbsCall, q, cat.EventVerbsWrite, 32, 32*64, 0, 200)
	p.event(0, 1100, cat.EventVerbsEmptyPolls, cq, 1000, 5000)
	p.event(1, 1150, cat.EventVerbsEmptyPolls, cq, 7, 100)
	p.event(0, 7000, cat.EventVerbsNotify, cq, 0)
	r.close()
	m := r.open(merge.Options{})
	got := all(t, m)
	if o := at(t, got, cat.EventVerbsCall, 1000); o.Requests != 32 || o.Bytes != 2048 || o.Done != ns(1200) || o.Flags != ops.CallRecord || o.Role != ops.Local {
		t.Errorf("call %+v", o)
	}
	long, short := at(t, got, cat.EventVerbsEmptyPolls, 1100), at(t, got, cat.EventVerbsEmptyPolls, 1150)
	if long.Requests != 1000 || long.Done != ns(6100) || long.Flags != ops.PollRecord || short.Lane == long.Lane {
		t.Errorf("polls %+v %+v", long, short)
	}
	run := m.Run()
	if e := run.Endpoints[long.Endpoint]; e.Kind != "cq" || e.Lanes != 2 {
		t.Errorf("endpoint %+v", e)
	}
	if m.Info().Mode != "simple" || m.Info().Flows.Matched != 0 {
		t.Errorf("%+v", m.Info())
	}
}

// A blocking flush is recorded after what its callbacks posted, with an earlier time. It completes what was posted before it, of all
// endpoints of its worker, and nothing else; lanes do not overlap.
func TestNestedCallsAndFlushes(t *testing.T) {
	r := newRig(t)
	a := r.process("n1", 100, 0)
	a.pairs(hz)
	w := a.worker(10, "a")
	other := a.worker(11, "other")
	e1, e2, e3 := a.endpoint(20, w, "a"), a.endpoint(21, w, "a"), a.endpoint(22, other, "a")
	a.event(0, 1000, cat.EventUcpPut, ucpRequest(e1, 1, 0, 0, 0, cat.UcpResultImplicit, 10)...)
	a.event(0, 1100, cat.EventUcpPut, ucpRequest(e2, 2, 0, 0, 0, cat.UcpResultImplicit, 10)...)
	a.event(0, 1200, cat.EventUcpPut, ucpRequest(e3, 3, 0, 0, 0, cat.UcpResultImplicit, 10)...)
	a.event(0, 1600, cat.EventUcpPut, ucpRequest(e1, 4, 0, 0, 0, cat.UcpResultImplicit, 10)...)   // inside the flush
	a.event(0, 1700, cat.EventUcpPut, ucpRequest(e1, 5, 0, 0, 0, cat.UcpResultDone, 100)...)      // too
	a.event(0, 1500, cat.EventUcpFlush, ucpRequest(w, 0, 0, 0, 0, cat.UcpResultDone, 500)...)     // the flush itself
	a.event(0, 2500, cat.EventUcpFlush, ucpRequest(e1, 0, 0, 0, 77, cat.UcpResultPending, 10)...) // of one endpoint, pending
	a.event(0, 2600, cat.EventUcpPut, ucpRequest(e1, 6, 0, 0, 0, cat.UcpResultUntracked, 30)...)  // nobody will tell its end
	a.event(0, 2700, cat.EventUcpCompletion, e1, 77, 0, 0, 0)                                     //
	a.event(0, 2800, cat.EventUcpPut, ucpRequest(e1, 7, 0, 0, 99, cat.UcpResultPending, 10)...)   // cut off
	a.event(0, 2900, cat.EventUcpCompletion, e1, 12345, 0, 0, 0)                                  // of a request never seen
	r.close()
	m := r.open(merge.Options{})
	got := all(t, m)
	last := m.Run().Processes[0].Last
	for post, want := range map[uint64]struct {
		done  int64
		flags ops.Flag
	}{
		1000: {ns(2000), ops.Implied}, 1100: {ns(2000), ops.Implied}, 1200: {last, ops.Unfinished}, 1600: {ns(2700), ops.Implied},
		1700: {ns(1800), ops.Immediate}, 2600: {ns(2630), ops.Unfinished}, 2800: {last, ops.Unfinished},
	} {
		if o := at(t, got, cat.EventUcpPut, post); o.Done != want.done || o.Flags != want.flags {
			t.Errorf("put at %d: done %d flags %#x, want done %d flags %#x", post, o.Done-epoch, o.Flags, want.done-epoch, want.flags)
		}
	}
	if i := m.Info(); i.Surplus != 1 || i.Unfinished != 3 {
		t.Errorf("surplus %d unfinished %d", i.Surplus, i.Unfinished)
	}
}

// More requests outstanding than there is room for are kept as points in time; the rest goes on.
func TestTooManyOutstanding(t *testing.T) {
	r := newRig(t)
	a := r.process("n1", 100, 0)
	a.pairs(hz)
	ep := a.endpoint(20, a.worker(10, "a"), "a")
	const n = 70_000 // lanes are 65,535
	for i := range uint64(n) {
		a.event(0, 1000+10*i, cat.EventUcpPut, ucpRequest(ep, 1, 0, 0, 0, cat.UcpResultImplicit, 4)...)
	}
	a.event(0, 1000+10*n, cat.EventUcpFlush, ucpRequest(ep, 0, 0, 0, 0, cat.UcpResultDone, 10)...)
	r.close()
	m := r.open(merge.Options{})
	points, implied := 0, 0
	for _, o := range of(all(t, m), cat.EventUcpPut) {
		switch {
		case o.Flags&ops.Implied != 0:
			implied++
		case o.Flags&ops.Unfinished != 0 && o.Done == o.Post:
			points++
		}
	}
	if implied+points != n || points == 0 || implied < 60_000 {
		t.Errorf("%d implied, %d points", implied, points)
	}
	if c := m.Info().Operations["ucp"]["put"].Count; c != n {
		t.Errorf("%d puts", c)
	}
	if o := m.Info().Overflow; o != int64(points) {
		t.Errorf("the account says that %d are points, not %d", o, points)
	}
}
