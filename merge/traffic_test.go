package merge_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	cat "github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// world is a model of machines that exchange messages. It knows which send met which receive, by its own rules and not by those of
// the merger: every request has a unique number, which it records as the request's local address.
type world struct {
	*rig
	rand    *rand.Rand
	now     uint64
	uid     uint64
	pairs   map[uint64]uint64 // send to receive, both recorded to their end
	ends    map[uint64]uint64 // when a request's completion was polled, its own or the one that implied it
	implied map[uint64]bool
	actions []func()
	sends   int // two-sided sends posted
}

func newWorld(t testing.TB, seed uint64) *world {
	return &world{rig: newRig(t), rand: rand.New(rand.NewPCG(seed, 1)), now: 10_000, pairs: map[uint64]uint64{},
		ends: map[uint64]uint64{}, implied: map[uint64]bool{}}
}

// tick lets some time pass: at least a nanosecond, so that no two records share one.
func (w *world) tick() uint64 {
	w.now += 2 + w.rand.Uint64N(400)
	return w.now
}

func (w *world) id() uint64 {
	w.uid++
	return w.uid
}

func (w *world) run(steps int) {
	for range steps {
		w.actions[w.rand.IntN(len(w.actions))]()
	}
}

// receive is a posted receive and message one under way.
type (
	receive struct{ uid, wr uint64 }
	message struct {
		uid, bytes, wr uint64
		consumes       bool
		signaled       bool
		opcode         uint64
		received       *receive
	}
)

// modelQP is a queue pair of the model.
type modelQP struct {
	w      *world
	p      *proc
	thread int
	object uint64
	cq     uint64
	peer   *modelQP
	srq    *modelSRQ
	queue  []receive  // posted receives, without a shared queue
	wire   []*message // sends under way, in order
	done   []*message // sends that arrived, in order, whose completion was not polled
	filled []*message // messages whose receive completion was not polled
	wr     uint64
}

type modelSRQ struct {
	object uint64
	queue  []receive
}

const (
	rc = cat.VerbsQpTypeRc
	ud = cat.VerbsQpTypeUd
)

// device opens a device of a node, with a GID of its own.
func (p *proc) device(at uint64, gid byte) (device uint64, address []byte) {
	device = p.define(at, cat.DefVerbsDevice, "mlx5_0", uint64(gid))
	address = append([]byte{0xfe, 0x80}, make([]byte, 14)...)
	address[15] = gid
	p.Define(at+p.offset, cat.DefVerbsPort, device, uint64(1), uint64(4), uint64(0))
	p.Define(at+p.offset, cat.DefVerbsGid, device, uint64(1), uint64(0), uint64(1), address)
	return device, address
}

func (p *proc) queuePair(at, device, number, kind, cq, srq uint64) uint64 {
	return p.define(at, cat.DefVerbsQp, device, uint64(0), number, kind, cq, cq, srq, uint64(0))
}

// modify records a change of state; with a destination that of RTR.
func (p *proc) modify(at, qp, state, dest uint64, gid []byte) {
	mask := uint64(1)
	if gid != nil {
		mask |= 1<<7 | 1<<20
	}
	p.Define(at+p.offset, cat.DefVerbsQpModify, qp, mask, state, dest, uint64(0), gid, uint64(0), uint64(1))
}

// verbsFields are the fields of a request.
func verbsFields(qp, wr, bytes, opcode, flags, uid uint64) []uint64 {
	return []uint64{qp, wr, bytes, opcode, flags, 1, uid, 5, 0, 0, 0, 0}
}

func (q *modelQP) postReceive() {
	r := receive{q.w.id(), q.w.rand.Uint64N(1 << 40)}
	queue := &q.queue
	object := q.object
	if q.srq != nil {
		queue, object = &q.srq.queue, q.srq.object
	} else {
		r.wr %= 4 // on a queue of its own, ids need not differ
	}
	if len(*queue) > 100 {
		return
	}
	*queue = append(*queue, r)
	q.p.event(q.thread, q.w.tick(), cat.EventVerbsRecv, object, r.wr, 1<<20, 1, r.uid, 5, 0)
}

func (q *modelQP) postSend() {
	if len(q.wire)+len(q.done) > 60 {
		return
	}
	kinds := []struct {
		event  uint16
		opcode uint64
		takes  bool
	}{
		{cat.EventVerbsSend, cat.VerbsOpcodeSend, true}, {cat.EventVerbsSend, cat.VerbsOpcodeSendImm, true},
		{cat.EventVerbsWriteImm, cat.VerbsOpcodeRdmaWriteImm, true}, {cat.EventVerbsWrite, cat.VerbsOpcodeRdmaWrite, false},
		{cat.EventVerbsRead, cat.VerbsOpcodeRdmaRead, false}, {cat.EventVerbsControl, cat.VerbsOpcodeLocalInvalidate, false},
	}
	k := kinds[q.w.rand.IntN(len(kinds))]
	m := &message{uid: q.w.id(), bytes: q.w.rand.Uint64N(1 << 16), wr: q.wr % 7, consumes: k.takes, opcode: k.opcode, signaled: q.w.rand.IntN(3) == 0}
	q.wr++
	flags := uint64(0)
	if m.signaled {
		flags = cat.VerbsSendFlagsSignaled
	}
	if k.takes {
		q.w.sends++
	}
	q.wire = append(q.wire, m)
	q.p.event(q.thread, q.w.tick(), k.event, verbsFields(q.object, m.wr, m.bytes, k.opcode, flags, m.uid)...)
}

// deliver takes the first message off the wire if the peer has room for it.
func (q *modelQP) deliver() {
	if len(q.wire) == 0 {
		return
	}
	m := q.wire[0]
	if m.consumes {
		queue := &q.peer.queue
		if q.peer.srq != nil {
			queue = &q.peer.srq.queue
		}
		if len(*queue) == 0 {
			return
		}
		r := (*queue)[0]
		*queue = (*queue)[1:]
		m.received = &r
		q.peer.filled = append(q.peer.filled, m)
	}
	q.wire = q.wire[1:]
	q.done = append(q.done, m)
}

// pollSend polls one completion of the send queue, which retires all requests before it.
func (q *modelQP) pollSend() {
	for i, m := range q.done {
		if m.signaled { // the ones before it are not
			now := q.w.tick()
			for _, d := range q.done[:i+1] {
				q.w.ends[d.uid], q.w.implied[d.uid] = now, d != m
			}
			q.done = q.done[i+1:]
			q.p.event(q.thread, now, cat.EventVerbsCompletion, q.object, m.wr, q.cq, 0, 0, m.bytes, 0, 0, 0)
			return
		}
	}
}

func (q *modelQP) pollReceive() {
	if len(q.filled) == 0 {
		return
	}
	m := q.filled[0]
	q.filled = q.filled[1:]
	opcode := uint64(128)
	if m.opcode == cat.VerbsOpcodeRdmaWriteImm {
		opcode = 129
	}
	q.w.pairs[m.uid] = m.received.uid
	q.w.ends[m.received.uid] = q.w.tick()
	q.p.event(q.thread, q.w.now, cat.EventVerbsCompletion, q.object, m.received.wr, q.cq, 0, opcode, m.bytes, 0, 0, 0)
}

func (q *modelQP) act() {
	q.w.actions = append(q.w.actions, q.postSend, q.postReceive, q.deliver, q.deliver, q.pollSend, q.pollReceive, q.pollReceive)
}

// verbsWorld has queue pairs between all processes: half of them with a shared receive queue, each pair on a thread of its own.
func verbsWorld(t testing.TB, seed uint64, processes, pairs int) *world {
	w := newWorld(t, seed)
	var devices, cqs []uint64
	var gids [][]byte
	var srqs []*modelSRQ
	for i := range processes {
		p := w.process(fmt.Sprintf("n%d", i%2), uint32(100+i), int64(i))
		p.pairs(hz)
		d, g := p.device(w.tick(), byte(1+i%2))
		devices, gids = append(devices, d), append(gids, g)
		cqs = append(cqs, p.define(w.tick(), cat.DefVerbsCq, d, uint64(1000)))
		srqs = append(srqs, &modelSRQ{object: p.define(w.tick(), cat.DefVerbsSrq, uint64(0), uint64(1000))})
	}
	number := uint64(10)
	for n := range pairs {
		i := w.rand.IntN(processes)
		j := (i + 1 + w.rand.IntN(processes-1)) % processes
		ends := [2]*modelQP{}
		for e, k := range []int{i, j} {
			q := &modelQP{w: w, p: w.procs[k], thread: n % 3, cq: cqs[k]}
			srq := uint64(0)
			if w.rand.IntN(2) == 0 {
				q.srq = srqs[k]
				srq = q.srq.object
				q.thread = 0 // who shares a queue shares a thread
			}
			q.object = q.p.queuePair(w.tick(), devices[k], number, rc, cqs[k], srq)
			number++
			ends[e] = q
		}
		ends[0].peer, ends[1].peer = ends[1], ends[0]
		ends[0].p.modify(w.tick(), ends[0].object, cat.VerbsQpStateRtr, number-1, gids[j])
		ends[1].p.modify(w.tick(), ends[1].object, cat.VerbsQpStateRtr, number-2, gids[i])
		ends[0].act()
		ends[1].act()
	}
	return w
}

// verify compares what the merger matched with the truth.
func (w *world) verify(m *merge.Merged, uidField func(*ops.Op) uint64) {
	w.t.Helper()
	operations := all(w.t, m)
	flows := map[uint64]uint64{} // of receives, by uid
	for i := range operations {
		o := &operations[i]
		if o.Role == ops.Target {
			flows[uidField(o)] = o.Flow
		}
	}
	seen := map[uint64]bool{}
	for i := range operations {
		o := &operations[i]
		uid := uidField(o)
		switch end, ended := w.ends[uid]; {
		case ended && (o.Done != ns(end) || o.Flags&ops.Unfinished != 0):
			w.t.Errorf("request %d: ended at %d with flags %#x, want %d", uid, o.Done-epoch, o.Flags, ns(end)-epoch)
		case !ended && o.Flags&ops.Unfinished == 0:
			w.t.Errorf("request %d: never ended and has flags %#x", uid, o.Flags)
		}
		if implied := o.Flags&ops.Implied != 0; implied != w.implied[uid] {
			w.t.Errorf("request %d: implied %v, want %v", uid, implied, w.implied[uid])
		}
		if o.Role != ops.Initiator {
			continue
		}
		r, met := w.pairs[uidField(o)]
		switch {
		case !met && o.Flow != 0:
			w.t.Errorf("request %d met nothing and has flow %x", uidField(o), o.Flow)
		case met && (o.Flow == 0 || o.Flow != flows[r]):
			w.t.Errorf("request %d met receive %d: flows %x and %x", uidField(o), r, o.Flow, flows[r])
		case met && seen[o.Flow]:
			w.t.Errorf("flow %x twice", o.Flow)
		}
		seen[o.Flow] = true
	}
	if f := m.Info().Flows; f.Matched != int64(len(w.pairs)) {
		w.t.Errorf("%d matched of %d: %+v", f.Matched, len(w.pairs), f)
	}
	if len(w.pairs) < w.sends/4 {
		w.t.Errorf("only %d of %d sends met a receive: the test tests little", len(w.pairs), w.sends)
	}
}

func verbsUID(o *ops.Op) uint64 {
	if o.Role == ops.Target {
		return o.Fields[cat.VerbsReceiveLocalAddress]
	}
	return o.Fields[cat.VerbsRequestLocalAddress]
}

// Whatever the traffic, the flows are the true ones.
func TestVerbsMatchingIsExact(t *testing.T) {
	for seed := range uint64(12) {
		w := verbsWorld(t, seed, 2+int(seed%4), 1+int(seed)*2)
		w.run(4000)
		w.close()
		m := w.open(merge.Options{Workers: 2})
		w.verify(m, verbsUID)
		if i := m.Info(); i.Surplus != 0 || i.Flows.Ambiguous != 0 || !i.Complete() {
			t.Errorf("seed %d: surplus %d flows %+v incomplete %v", seed, i.Surplus, i.Flows, i.Ranks.Incomplete)
		}
		validate(t, m.Info(), m.Matrix())
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// tagWorld is a model of tag matching: posted receives and unexpected messages of a worker, as MPI's rules have it.
type tagWorld struct {
	p          *proc
	worker     uint64
	posted     []tagReceive
	unexpected []*tagMessage
	filling    []tagFilled // matched, not complete
}

type tagReceive struct{ uid, request, tag, mask uint64 }
type tagMessage struct{ uid, tag, bytes, request uint64 }
type tagFilled struct {
	r tagReceive
	m *tagMessage
}

type tagSender struct {
	w        *world
	p        *proc
	endpoint uint64
	source   uint64
	to       *tagWorld
	wire     []*tagMessage
	pending  []*tagMessage
}

func (s *tagSender) send() {
	if len(s.wire) > 50 {
		return
	}
	s.w.sends++
	m := &tagMessage{uid: s.w.id(), tag: s.source<<32 | s.w.rand.Uint64N(3), bytes: s.w.rand.Uint64N(1 << 20)}
	s.wire = append(s.wire, m)
	status := uint64(cat.UcpResultDone)
	if s.w.rand.IntN(2) == 0 {
		m.request, status = s.w.id(), cat.UcpResultPending
		s.pending = append(s.pending, m)
	}
	f := ucpRequest(s.endpoint, m.bytes, m.tag, 0, m.request, status, 2)
	f[cat.UcpRequestLocalAddress] = m.uid
	now := s.w.tick()
	if m.request == 0 {
		s.w.ends[m.uid] = now + 2 // its duration
	}
	s.p.event(0, now, cat.EventUcpTagSend, f...)
}

func (s *tagSender) complete() {
	if len(s.pending) == 0 {
		return
	}
	i := s.w.rand.IntN(len(s.pending))
	m := s.pending[i]
	s.pending = append(s.pending[:i], s.pending[i+1:]...)
	s.w.ends[m.uid] = s.w.tick()
	s.p.event(0, s.w.now, cat.EventUcpCompletion, s.endpoint, m.request, 0, 0, 0)
}

func (s *tagSender) deliver() {
	if len(s.wire) == 0 {
		return
	}
	m := s.wire[0]
	s.wire = s.wire[1:]
	for i, r := range s.to.posted {
		if m.tag&r.mask == r.tag&r.mask {
			s.to.posted = append(s.to.posted[:i:i], s.to.posted[i+1:]...)
			s.to.filling = append(s.to.filling, tagFilled{r, m})
			return
		}
	}
	s.to.unexpected = append(s.to.unexpected, m)
}

func (g *tagWorld) post(w *world, sources uint64) {
	if len(g.posted) > 50 {
		return
	}
	r := tagReceive{uid: w.id(), request: w.id(), tag: w.rand.Uint64N(sources)<<32 | w.rand.Uint64N(3), mask: wholeMask}
	switch w.rand.IntN(4) {
	case 0:
		r.mask = 0xffffffff // any source
	case 1:
		r.mask = 0xffffffff00000000 // any tag
	}
	f := ucpRequest(g.worker, 1<<20, r.tag, r.mask, r.request, cat.UcpResultPending, 2)
	f[cat.UcpRequestLocalAddress] = r.uid
	g.p.event(0, w.tick(), cat.EventUcpTagRecv, f...)
	for i, m := range g.unexpected {
		if m.tag&r.mask == r.tag&r.mask {
			g.unexpected = append(g.unexpected[:i:i], g.unexpected[i+1:]...)
			g.filling = append(g.filling, tagFilled{r, m})
			return
		}
	}
	g.posted = append(g.posted, r)
}

// complete ends any of the receives under way: long messages take longer than short ones.
func (g *tagWorld) complete(w *world) {
	if len(g.filling) == 0 {
		return
	}
	i := w.rand.IntN(len(g.filling))
	f := g.filling[i]
	g.filling = append(g.filling[:i], g.filling[i+1:]...)
	w.pairs[f.m.uid] = f.r.uid
	w.ends[f.r.uid] = w.tick()
	g.p.event(0, w.now, cat.EventUcpCompletion, g.worker, f.r.request, f.m.bytes, f.m.tag, 0)
}

func (w *world) drain(sides []*tagWorld) {
	for _, g := range sides {
		for len(g.filling) > 0 {
			g.complete(w)
		}
	}
}

func ucpUID(o *ops.Op) uint64 { return o.Fields[cat.UcpRequestLocalAddress] }

func tagsWorld(t testing.TB, seed uint64, processes int) (*world, []*tagWorld) {
	w := newWorld(t, seed)
	var sides []*tagWorld
	for i := range processes {
		p := w.process(fmt.Sprintf("n%d", i%2), uint32(100+i), int64(i))
		p.pairs(hz)
		sides = append(sides, &tagWorld{p: p, worker: p.worker(w.tick(), fmt.Sprint("process", i))})
	}
	for i, from := range sides {
		for j, to := range sides {
			s := &tagSender{w: w, p: from.p, source: uint64(i), to: to}
			s.endpoint = from.p.endpoint(w.tick(), from.worker, fmt.Sprint("process", j))
			w.actions = append(w.actions, s.send, s.deliver, s.complete)
		}
		for range processes {
			w.actions = append(w.actions, func() { from.post(w, uint64(processes)) }, func() { from.complete(w) })
		}
	}
	return w, sides
}

func TestTagMatchingIsExact(t *testing.T) {
	for seed := range uint64(12) {
		w, sides := tagsWorld(t, seed, 2+int(seed%5))
		w.run(6000)
		w.drain(sides) // a message that is never received leaves the later ones of its tag to others: see the test of unfinished ones
		w.close()
		m := w.open(merge.Options{Workers: 2})
		w.verify(m, ucpUID)
		if i := m.Info(); i.Surplus != 0 || i.Flows.Ambiguous != 0 || !i.Complete() {
			t.Errorf("seed %d: surplus %d flows %+v incomplete %v", seed, i.Surplus, i.Flows, i.Ranks.Incomplete)
		}
		validate(t, m.Info(), m.Matrix())
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
