package pairing

import (
	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/match"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/topology"
)

// Flags of libfabric, as rdma/fabric.h has them, and FI_ETRUNC of rdma/fi_errno.h.
const (
	fiRecv       = 1 << 10
	fiRemote     = 1<<12 | 1<<13 // FI_REMOTE_READ, FI_REMOTE_WRITE
	fiRemoteData = 1 << 17
	fiMultiRecv  = 1 << 16
	fiTruncated  = 265
	formatMsg    = 2 // enum fi_cq_format: from here on an entry has flags and a length
	formatTagged = 4
)

// waiting is a request of libfabric that a completion is to come for.
type waiting struct {
	ticket
	state *state
}

// fabricKey is what a completion is told by. The same context may be given to several requests.
type fabricKey struct {
	queue   uint32
	receive bool
	context uint64
}

// fabric is what pairing keeps of libfabric.
type fabric struct {
	waiting  map[fabricKey][]waiting
	counters map[uint32]*counted
	quiet    map[fabricKey]int // requests that asked for no completion: some providers make one all the same
}

// counted is a counter: the requests that it counts, of which those without another completion are completed by its value.
type counted struct {
	queue []waiting // in order of post
	done  uint64    // requests gone from the queue
	added uint64    // by the program
}

func newFabric() fabric {
	return fabric{waiting: map[fabricKey][]waiting{}, counters: map[uint32]*counted{}, quiet: map[fabricKey]int{}}
}

func (p *Pairer) live(w waiting) bool {
	e := p.slab.at(w.entry)
	return e.live && e.state == w.state && e.op.Ordinal == w.ordinal
}

// ofiRequest takes a message or an access.
func (p *Pairer) ofiRequest(ev *capture.Event, event *catalogue.Event) {
	role := ops.OneSided
	switch event.ID {
	case catalogue.EventOfiSend, catalogue.EventOfiTaggedSend:
		role = ops.Initiator
	case catalogue.EventOfiRecv, catalogue.EventOfiTaggedRecv:
		role = ops.Target
	case catalogue.EventOfiPeek:
		role = ops.Local
	}
	result, duration := ev.Fields[catalogue.OfiMessageResult], ev.Fields[catalogue.OfiMessageDuration]
	if event.Layout.Name == "ofi_access" {
		result, duration = ev.Fields[catalogue.OfiAccessResult], ev.Fields[catalogue.OfiAccessDuration]
	}
	s := p.state(uint32(ev.Fields[catalogue.OfiMessageEndpoint]), ofi)
	i, ok := p.post(ev, s, role, ev.Fields[catalogue.OfiMessageBytes])
	e := p.slab.at(i)
	e.id = ev.Fields[catalogue.OfiMessageContext]
	if role == ops.Target {
		e.op.Ordinal = s.received
		s.received++
		if event.ID == catalogue.EventOfiTaggedRecv && ev.Fields[catalogue.OfiMessageIgnore] == 0 {
			e.tag, e.tagKnown = ev.Fields[catalogue.OfiMessageTag], true
		}
	} else {
		e.op.Ordinal = s.posted
		s.posted++
	}
	if s.lost {
		e.op.Flags |= ops.Ambiguous
	}
	if !ok {
		p.overflow(i)
		return
	}
	owner := p.process.FabricOwner(s.object)
	w := waiting{ticket{i, e.op.Ordinal}, s}
	if owner.Fabric != nil {
		for _, c := range owner.Fabric.Counters {
			if c.Counts(event.ID) {
				n := p.counter(c.Counter)
				n.queue = append(n.queue, w)
			}
		}
	}
	key := fabricKey{receive: role == ops.Target || role == ops.Local, context: e.id}
	send, receive := p.process.FabricQueues(owner)
	if key.queue = send; key.receive {
		key.queue = receive
	}
	switch result {
	case catalogue.OfiResultPending:
		p.fabric.waiting[key] = append(p.fabric.waiting[key], w)
	case catalogue.OfiResultCounted:
		p.noCompletion(key)
	case catalogue.OfiResultImplicit: // no completion was asked for: all that is known is that the call returned
		p.noCompletion(key)
		e.op.Flags |= ops.Implied
		p.endAt(i, true, duration)
	default:
		e.op.Flags |= ops.Immediate
		p.endAt(i, true, duration)
	}
}

func (p *Pairer) noCompletion(key fabricKey) {
	if len(p.fabric.quiet) < maxEarly || p.fabric.quiet[key] > 0 {
		p.fabric.quiet[key]++
	}
}

func (p *Pairer) counter(id uint32) *counted {
	c := p.fabric.counters[id]
	if c == nil {
		c = &counted{}
		p.fabric.counters[id] = c
	}
	return c
}

// oldest returns the first request outstanding under a key; false where there is none.
func (p *Pairer) oldest(key fabricKey) (waiting, bool) {
	list := p.fabric.waiting[key]
	for len(list) > 0 && !p.live(list[0]) {
		list = list[1:]
	}
	if len(list) == 0 {
		delete(p.fabric.waiting, key)
		return waiting{}, false
	}
	p.fabric.waiting[key] = list
	return list[0], true
}

// find returns the request that an entry of a queue is about.
func (p *Pairer) find(queue uint32, context, flags uint64) (int32, fabricKey, bool) {
	key := fabricKey{queue, flags&fiRecv != 0, context}
	w, ok := p.oldest(key)
	other := key
	other.receive = !key.receive
	switch x, found := p.oldest(other); {
	case !found:
	case flags == 0 && (!ok || p.slab.at(x.entry).op.Post < p.slab.at(w.entry).op.Post), // the queue's format does not tell
		!ok && context != 0: // a remote write that took a receive; an error whose flags say nothing
		w, key, ok = x, other, true
	}
	for _, context := range p.process.SharedContexts(queue) {
		if ok {
			break
		}
		of := fabricKey{context, true, key.context}
		if w, ok = p.oldest(of); ok {
			key = of
		}
	}
	return w.entry, key, ok
}

// taken removes the first request of a key.
func (p *Pairer) taken(key fabricKey) {
	if list := p.fabric.waiting[key]; len(list) > 1 {
		p.fabric.waiting[key] = list[1:]
	} else {
		delete(p.fabric.waiting, key)
	}
}

func (p *Pairer) ofiCompletion(ev *capture.Event) {
	queue := uint32(ev.Fields[catalogue.OfiCompletionCompletionQueue])
	q := p.state(queue, ofi)
	q.completed++
	flags := ev.Fields[catalogue.OfiCompletionFlags]
	i, key, ok := p.find(queue, ev.Fields[catalogue.OfiCompletionContext], flags)
	if !ok {
		switch {
		case flags&fiRemote != 0 || flags&(fiRemoteData|fiRecv) == fiRemoteData: // what a peer wrote here has no request of this side
		case p.fabric.quiet[key] > 0:
			if p.fabric.quiet[key]--; p.fabric.quiet[key] == 0 {
				delete(p.fabric.quiet, key)
			}
		default:
			p.Counts.Surplus++
		}
		return
	}
	ns := p.process.Clock.NS(ev.Time)
	e := p.slab.at(i)
	received := e.op.Role == ops.Target
	format := uint32(0)
	if q.object.Fabric != nil {
		format = q.object.Fabric.Format
	}
	if e.op.Fields[catalogue.OfiMessageFlags]&fiMultiRecv != 0 && e.op.Event == catalogue.EventOfiRecv {
		p.multiReceived(i, key, ev, ns, flags, format)
		return
	}
	p.taken(key)
	switch {
	case received && flags&fiRemote != 0 && flags&fiRecv == 0:
		e.op.Role = ops.Local // the peer's write with data took it: no message is one of this receive
	case received:
		p.tellReceive(e, ev, format)
	}
	p.complete(i, ns, 0, 0)
}

// tellReceive notes what a completion says of the message that a receive took.
func (p *Pairer) tellReceive(e *entry, ev *capture.Event, format uint32) {
	if e.bytesUnknown = format < formatMsg; !e.bytesUnknown {
		e.op.Bytes = ev.Fields[catalogue.OfiCompletionBytes]
	}
	if format == formatTagged && e.op.Event == catalogue.EventOfiTaggedRecv {
		e.tag, e.tagKnown = ev.Fields[catalogue.OfiCompletionTag], true
	}
	// Without the capability providers leave the place of the source as it was.
	owner := p.process.FabricOwner(e.state.object)
	if source := ev.Fields[catalogue.OfiCompletionSource]; source != 0 && p.process.TellsSources(owner) {
		e.source = p.identityOf(p.topology.Sender(p.process.Way(owner.ID, source-1)))
	}
}

// multiReceived takes a message out of a buffer that receives several (FI_MULTI_RECV): each is an operation of its own, from the end of
// the one before it; the buffer itself is one that moves nothing, and ends when it is given back.
func (p *Pairer) multiReceived(i int32, key fabricKey, ev *capture.Event, ns int64, flags uint64, format uint32) {
	e := p.slab.at(i)
	if flags&fiRecv != 0 || format < formatMsg {
		j, m := p.slab.take()
		m.op, m.state, m.ticks, m.id = e.op, e.state, e.ticks, e.id
		m.op.Role, m.op.Post = ops.Target, max(e.op.Post, e.lastPart)
		m.op.Thread, m.op.Sequence = ev.Thread, ev.Sequence
		p.tellReceive(m, ev, format)
		s := m.state
		lane, ok := s.lanes.take(m.op.Post, maxLanes)
		s.outstanding++
		m.op.Lane, m.op.Outstanding = lane, s.outstanding
		e.lastPart, e.op.Role = ns, ops.Local
		if ok {
			p.complete(j, ns, 0, 0)
		} else {
			s.outstanding--
			p.overflow(j)
		}
	}
	if flags&fiMultiRecv != 0 {
		p.taken(key)
		p.complete(i, ns, 0, 0)
	}
}

func (p *Pairer) ofiError(ev *capture.Event) {
	queue := uint32(ev.Fields[catalogue.OfiErrorCompletionQueue])
	p.state(queue, ofi).completed++
	flags := ev.Fields[catalogue.OfiErrorFlags]
	i, key, ok := p.find(queue, ev.Fields[catalogue.OfiErrorContext], flags)
	if !ok {
		p.Counts.Surplus++
		return
	}
	p.taken(key)
	e := p.slab.at(i)
	status := int32(ev.Fields[catalogue.OfiErrorError])
	if e.op.Role == ops.Target && status == fiTruncated {
		e.op.Bytes = ev.Fields[catalogue.OfiErrorBytes]
		if e.op.Event == catalogue.EventOfiTaggedRecv && flags&fiRecv != 0 {
			e.tag, e.tagKnown = ev.Fields[catalogue.OfiErrorTag], true
		}
	}
	p.complete(i, p.process.Clock.NS(ev.Time), status, 0)
}

// ofiCounter follows a counter: its value says how many of the requests that it counts are complete, taken to be the first ones.
func (p *Pairer) ofiCounter(ev *capture.Event) {
	c := p.counter(uint32(ev.Fields[catalogue.OfiCounterCounter]))
	value := ev.Fields[catalogue.OfiCounterValue]
	switch ev.Fields[catalogue.OfiCounterKind] {
	case catalogue.OfiCounterKindCompleted:
		ns := p.process.Clock.NS(ev.Time)
		for len(c.queue) > 0 && int64(c.done+c.added) < int64(value) {
			w := c.queue[0]
			c.queue = c.queue[1:]
			c.done++
			if p.live(w) && resultOf(p, w) == catalogue.OfiResultCounted {
				e := p.slab.at(w.entry)
				e.bytesUnknown = e.op.Role == ops.Target
				p.complete(w.entry, ns, 0, ops.Implied)
			}
		}
	case catalogue.OfiCounterKindSet:
		c.added = value - c.done
	case catalogue.OfiCounterKindAdded:
		c.added += value
	}
	p.polls(ev, 1, 0)
}

func resultOf(p *Pairer, w waiting) uint64 {
	op := &p.slab.at(w.entry).op
	if p.catalogue.Event(op.Event).Layout.Name == "ofi_access" {
		return op.Fields[catalogue.OfiAccessResult]
	}
	return op.Fields[catalogue.OfiMessageResult]
}

func (p *Pairer) identityOf(r topology.Ref) uint64 {
	o := p.topology.Object(r)
	if o == nil {
		return 0
	}
	return p.topology.Processes[r.Process].Identify(r.Object)
}

// Streams of messages to one receiver.
const (
	untagged = 1
	tagged   = 2
)

// ofiHalf is halfOf for libfabric.
func (p *Pairer) ofiHalf(e *entry) (match.Half, string) {
	isTagged := e.op.Event == catalogue.EventOfiTaggedSend || e.op.Event == catalogue.EventOfiTaggedRecv
	kind := uint64(untagged)
	if isTagged {
		kind = tagged
	}
	if e.op.Role == ops.Initiator {
		if e.op.Flags&ops.Failed != 0 {
			return match.Half{}, match.Failed
		}
		to := p.topology.Receiver(e.state.object.Peer)
		if to.Object == 0 {
			return match.Half{}, match.PeerNotTraced
		}
		h := p.newHalf(e, match.Send)
		h.Source = p.process.Identify(p.process.FabricOwner(e.state.object).ID)
		h.Stream = topology.Mix(topology.Mix(p.identityOf(to), kind), e.op.Fields[catalogue.OfiMessageTag])
		h.Rule, h.Order, h.Flow = match.Rank, match.TimeOrder(e.op.Post), FlowOf(e.state.identity, e.op.Ordinal)
		return h, ""
	}
	switch {
	case e.op.Flags&ops.Failed != 0 && e.op.Status != fiTruncated:
		return match.Half{}, match.Failed
	case e.op.Flags&ops.Unfinished != 0 && !(isTagged && e.tagKnown):
		if f := &e.op.Fields; isTagged && len(p.Counts.Open) < maxOpen {
			p.Counts.Open = append(p.Counts.Open, OpenReceive{e.state.object.ID, e.op.Post, f[catalogue.OfiMessageTag], ^f[catalogue.OfiMessageIgnore]})
		}
		return match.Half{}, match.Unfinished
	case isTagged && !e.tagKnown:
		return match.Half{}, match.NoTagRecorded
	}
	h := p.newHalf(e, match.Receive)
	if h.Source = e.source; h.Source == 0 {
		if o := p.process.Objects[uint32(e.op.Fields[catalogue.OfiMessageSource])]; o != nil && o.Kind == topology.FabricPeer {
			h.Source = p.identityOf(p.topology.Sender(o.Peer))
		}
	}
	if e.bytesUnknown {
		h.Bytes = match.UnknownBytes
	}
	h.Stream = topology.Mix(topology.Mix(e.state.identity, kind), e.tag)
	h.Rule, h.Order = match.Rank, match.TimeOrder(e.op.Post)
	return h, ""
}
