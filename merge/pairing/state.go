package pairing

import (
	"container/heap"
	"slices"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/match"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/topology"
)

// entry is an outstanding request.
type entry struct {
	op        ops.Op
	state     *state
	ticks     uint64 // of the post
	id        uint64 // wr_id or UCP request id
	next      int32  // next of the same id in a shared queue, plus 1
	live      bool
	ending    bool // its end is known and waits for its time
	signaled  bool
	half      bool // k and conn are valid
	conn      int  // connection of its queue pair
	k         uint64
	overtaken int64 // a later request's completion was seen first, at this time; 0 not
	status    int32
	tag       uint64 // of the sender
	tagKnown  bool
	via       *topology.Object // the queue pair that filled a receive

	bytesUnknown bool   // of a receive: its completion did not tell
	source       uint64 // identity of the sending endpoint, where the completion told it
	lastPart     int64  // when the last message went into a buffer that receives several
}

// state is what is known of one object.
type state struct {
	object      *topology.Object
	layer       uint8 // index of the object's in the catalogue
	identity    uint64
	lanes       lanes
	outstanding uint32
	posted      uint64 // requests posted: ordinal of the next
	received    uint64 // receives posted
	completed   uint64
	locals      uint64 // calls and polls
	totals      [4]uint64
	sends       queue // outstanding requests of a send queue, in order of post
	receives    queue // outstanding receives of a queue pair
	implicit    queue // UCP and UCT requests that the next flush completes
	byID        map[uint64]chain

	conn       int // connection that sendK, receiveK and filledK count on
	sendK      uint64
	receiveK   uint64
	filledK    uint64 // receives completed, where they come from a shared queue
	consuming  uint64 // sends that take a receive, and others
	others     uint64
	lost       bool // records of this object are missing
	kLost      bool // sendK is not known any more
	overflowed bool

	sender, receiver poster
}

// poster watches who posts on a queue: where threads take turns, their order is not sure.
type poster struct {
	any    bool
	thread uint32
	last   int32 // plus 1
}

// chain is the queue of outstanding receives of one id: entries plus 1.
type chain struct{ head, tail int32 }

func (p *Pairer) state(id uint32, layer string) *state {
	k := key{id, layer}
	if p.latest != nil && p.latestKey == k {
		return p.latest
	}
	s := p.states[k]
	if s == nil {
		s = &state{object: p.process.Object(id, layer), layer: p.layer(layer), identity: p.process.Identify(id), byID: map[uint64]chain{}}
		p.states[k] = s
	}
	p.latest, p.latestKey = s, k
	return s
}

// key names a state. Known objects have one layer only; those whose definition is missing may share a number, 0, between layers.
type key struct {
	object uint32
	layer  string
}

// onConnection makes the counts of matching start afresh on a new connection of a queue pair.
func (s *state) onConnection(ns int64) {
	if len(s.object.Connections) < 2 {
		return
	}
	if c := s.object.At(ns); c > s.conn {
		s.conn, s.sendK, s.receiveK, s.filledK = c, 0, 0, 0
		s.consuming, s.others, s.kLost = 0, 0, false
	}
}

// lostSends accounts for n requests whose records are missing. Whether they took receives at the other side is only known where all
// requests around them are of one kind.
func (s *state) lostSends(n uint64) {
	s.lost = true
	switch {
	case s.others == 0:
		s.sendK += n
	case s.consuming > 0:
		s.kLost = true
	}
}

// slab holds entries so that indices and pointers stay valid.
type slab struct {
	pages [][]entry
	free  []int32
	used  int32
}

const pageEntries = 512

func (b *slab) at(i int32) *entry { return &b.pages[i/pageEntries][i%pageEntries] }

func (b *slab) take() (int32, *entry) {
	i := b.used
	if n := len(b.free); n > 0 {
		i, b.free = b.free[n-1], b.free[:n-1]
	} else {
		if int(i)/pageEntries == len(b.pages) {
			b.pages = append(b.pages, make([]entry, pageEntries))
		}
		b.used++
	}
	e := b.at(i)
	*e = entry{live: true}
	return i, e
}

func (b *slab) release(i int32) {
	b.at(i).live = false
	b.free = append(b.free, i)
}

func (b *slab) count() int { return int(b.used) - len(b.free) }

// queue is a first-in first-out list of entries, of which any may have gone meanwhile.
type queue struct {
	items []ticket
	head  int
}

// ticket is an entry together with its number, so that a reused entry is not taken for the one that was queued.
type ticket struct {
	entry   int32
	ordinal uint64
}

func (q *queue) push(i int32, ordinal uint64) {
	if q.head > 64 && q.head*2 > len(q.items) {
		q.items = q.items[:copy(q.items, q.items[q.head:])]
		q.head = 0
	}
	q.items = append(q.items, ticket{i, ordinal})
}

// holds tells whether a ticket's entry is still the request that was queued.
func (p *Pairer) holds(t ticket, s *state, role func(ops.Role) bool) bool {
	e := p.slab.at(t.entry)
	return e.live && e.state == s && e.op.Ordinal == t.ordinal && role(e.op.Role)
}

func isReceive(r ops.Role) bool { return r == ops.Target }
func isSend(r ops.Role) bool    { return r != ops.Target }

// trim drops the gone entries at the head of a queue.
func (p *Pairer) trim(q *queue, s *state, role func(ops.Role) bool) {
	for q.head < len(q.items) && !p.holds(q.items[q.head], s, role) {
		q.head++
	}
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
}

// ending is an entry whose end is known before its time has come.
type ending struct {
	done  int64
	entry int32
}

type endHeap []ending

func (h endHeap) Len() int { return len(h) }
func (h endHeap) Less(i, j int) bool {
	return h[i].done < h[j].done || (h[i].done == h[j].done && h[i].entry < h[j].entry)
}
func (h endHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *endHeap) Push(x any)   { *h = append(*h, x.(ending)) }
func (h *endHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// spareForFlushes is the room that is kept for what completes all the others.
const spareForFlushes = 1024

// post begins a request. ok is false where there is no room for it: the caller ends it with overflow.
func (p *Pairer) post(ev *capture.Event, s *state, role ops.Role, bytes uint64) (int32, bool) {
	return p.postAt(ev, s, role, bytes, p.process.Clock.NS(ev.Time))
}

// postAt is post for what began at another time than that of its record.
func (p *Pairer) postAt(ev *capture.Event, s *state, role ops.Role, bytes uint64, ns int64) (int32, bool) {
	i, e := p.slab.take()
	s.totals[role] += bytes
	if role != ops.Target {
		p.inPhases(ev, s, bytes)
	}
	e.state, e.ticks = s, ev.Time
	e.op = ops.Op{
		Post: ns, Process: p.process.Index, Endpoint: s.object.Local, Thread: ev.Thread, Sequence: ev.Sequence, Event: ev.ID, Role: role,
		Requests: 1, Bytes: bytes, Total: s.totals[role], Fields: ev.Fields, For: p.forGroup(ev, s, role, bytes),
	}
	room := p.limit - p.slab.count()
	spare := spareForFlushes
	if ev.ID == catalogue.EventUcpFlush {
		spare = 0
	}
	if room < min(spare, p.limit/2) {
		return i, false
	}
	lane, ok := s.lanes.take(ns, maxLanes-spare)
	if !ok {
		return i, false
	}
	s.outstanding++
	e.op.Lane, e.op.Outstanding = lane, s.outstanding
	return i, true
}

// overflow ends a request that there is no room for: what is left of it is the time of its post.
func (p *Pairer) overflow(i int32) {
	e := p.slab.at(i)
	p.Counts.Overflow++
	e.state.overflowed = true
	e.op.Done = e.op.Post
	e.op.Lane = overflowLane
	e.op.Outstanding, e.op.After = e.state.outstanding, e.state.outstanding
	e.op.Flags |= ops.Unfinished
	p.emit(i)
}

// complete ends a request.
func (p *Pairer) complete(i int32, done int64, status int32, flags ops.Flag) {
	e := p.slab.at(i)
	e.op.Done = max(done, e.op.Post)
	if e.status != 0 {
		status = e.status
	}
	e.op.Status = status
	e.op.Flags |= flags
	if status != 0 {
		e.op.Flags |= ops.Failed
	}
	s := e.state
	s.outstanding--
	e.op.After = s.outstanding
	s.lanes.release(e.op.Lane, e.op.Done)
	if (e.op.Event == catalogue.EventUcpFlush || e.op.Event == catalogue.EventUctFlush) && e.op.Flags&(ops.Unfinished|ops.Failed) == 0 {
		p.flushed(s, e.op.Post, e.op.Done)
	}
	p.emit(i)
}

// unfinished ends a request that no completion came for.
func (p *Pairer) unfinished(i int32, at int64) {
	e := p.slab.at(i)
	if e.overtaken != 0 {
		p.complete(i, e.overtaken, 0, ops.Implied)
		return
	}
	p.Counts.Unfinished++
	p.complete(i, at, 0, ops.Unfinished)
}

// emit hands an ended request on, with its half where it has a partner, and frees it.
func (p *Pairer) emit(i int32) {
	e := p.slab.at(i)
	if e.op.Role == ops.Initiator || e.op.Role == ops.Target {
		if h, cause := p.halfOf(e); cause != "" {
			p.unmatched(e.state.layer, cause)
		} else if err := p.sink.Half(&h); err != nil && p.err == nil {
			p.err = err
		}
	}
	if err := p.sink.Op(&e.op); err != nil && p.err == nil {
		p.err = err
	}
	p.slab.release(i)
}

// layer returns a layer's index in the catalogue.
func (p *Pairer) layer(name string) uint8 {
	return uint8(slices.IndexFunc(p.catalogue.Layers, func(l catalogue.Layer) bool { return l.Name == name }))
}

func (p *Pairer) unmatched(layer uint8, cause string) {
	m := p.Counts.Unmatched[layer]
	if m == nil {
		m = map[string]int64{}
		p.Counts.Unmatched[layer] = m
	}
	m[cause]++
}

func (p *Pairer) newHalf(e *entry, side match.Side) match.Half {
	op := &e.op
	return match.Half{
		Sequence: op.Sequence, Bytes: op.Bytes, Post: op.Post, Done: op.Done, Process: p.process.Index, Object: e.state.object.ID,
		Tag: e.tag, Thread: op.Thread, Flags: op.Flags & (ops.Ambiguous | ops.Unfinished | ops.Failed), Side: side, Layer: e.state.layer, Window: p.window(e.ticks),
	}
}

// FlowOf returns the flow number of a request: never 0.
func FlowOf(identity, ordinal uint64) uint64 { return max(topology.Mix(identity, ordinal), 1) }

// endLater queues the end of an entry.
func (p *Pairer) endLater(i int32, done int64) {
	p.slab.at(i).ending = true
	heap.Push(&p.ends, ending{done, i})
}
