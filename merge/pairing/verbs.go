package pairing

import (
	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/match"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/topology"
)

const (
	receiveOpcode = 128      // ibv_wc_opcode: IBV_WC_RECV and above
	multicastQPN  = 0xffffff // remote number of a multicast datagram
	headerBytesUD = 40       // a datagram's receive counts the global routing header in front of the payload
	flushed       = 5        // IBV_WC_WR_FLUSH_ERR
)

func (p *Pairer) verbsRequest(ev *capture.Event, event *catalogue.Event) {
	// The layouts of requests, datagrams and atomics begin alike: queue pair, wr_id, bytes, opcode, flags.
	s := p.state(uint32(ev.Fields[catalogue.VerbsRequestQueuePair]), verbs)
	role := ops.OneSided
	switch event.ID {
	case catalogue.EventVerbsSend, catalogue.EventVerbsWriteImm, catalogue.EventVerbsDatagram:
		role = ops.Initiator
	case catalogue.EventVerbsControl:
		role = ops.Local
	}
	i, ok := p.post(ev, s, role, ev.Fields[catalogue.VerbsRequestBytes])
	e := p.slab.at(i)
	s.onConnection(e.op.Post)
	e.op.Ordinal, e.conn = s.posted, s.conn
	s.posted++
	e.id = ev.Fields[catalogue.VerbsRequestWrId]
	e.signaled = ev.Fields[catalogue.VerbsRequestFlags]&catalogue.VerbsSendFlagsSignaled != 0
	if role == ops.Initiator {
		e.k, e.half = s.sendK, !s.kLost
		s.sendK++
		s.consuming++
	} else {
		s.others++
	}
	if s.lost && s.consuming > 0 {
		e.op.Flags |= ops.Ambiguous
	}
	p.watch(&s.sender, i, ev.Thread)
	if !ok {
		p.overflow(i)
		return
	}
	s.sends.push(i, e.op.Ordinal)
}

// watch flags requests where threads take turns on a queue: the order of their calls need not be the order on the queue.
func (p *Pairer) watch(w *poster, i int32, thread uint32) {
	if w.any && w.thread != thread {
		p.slab.at(i).op.Flags |= ops.Ambiguous
		if last := p.slab.at(w.last); last.live && last.state == p.slab.at(i).state {
			last.op.Flags |= ops.Ambiguous
		}
	}
	w.any, w.thread, w.last = true, thread, i
}

func (p *Pairer) verbsReceive(ev *capture.Event) {
	s := p.state(uint32(ev.Fields[catalogue.VerbsReceiveQueue]), verbs)
	i, ok := p.post(ev, s, ops.Target, ev.Fields[catalogue.VerbsReceiveBytes])
	e := p.slab.at(i)
	s.onConnection(e.op.Post)
	e.op.Ordinal, e.conn = s.received, s.conn
	s.received++
	e.id = ev.Fields[catalogue.VerbsReceiveWrId]
	if s.object.Kind == topology.QueuePair {
		e.k, e.half = s.receiveK, true
		s.receiveK++
		p.watch(&s.receiver, i, ev.Thread)
	}
	switch {
	case !ok:
		p.overflow(i)
	case s.object.Kind == topology.QueuePair:
		s.receives.push(i, e.op.Ordinal)
	default:
		c := s.byID[e.id]
		if c.head == 0 {
			c.head = i + 1
		} else {
			p.slab.at(c.tail - 1).next = i + 1
		}
		c.tail = i + 1
		s.byID[e.id] = c
	}
}

func (p *Pairer) verbsCompletion(ev *capture.Event) {
	s := p.state(uint32(ev.Fields[catalogue.VerbsCompletionQueuePair]), verbs)
	s.completed++
	ns, id := p.process.Clock.NS(ev.Time), ev.Fields[catalogue.VerbsCompletionWrId]
	s.onConnection(ns)
	status := int32(ev.Fields[catalogue.VerbsCompletionStatus])
	found := false
	switch {
	case status == 0 && ev.Fields[catalogue.VerbsCompletionOpcode]&receiveOpcode != 0:
		found = p.receiveDone(s, ev, id, ns, 0)
	case status == 0:
		found = p.sendDone(s, id, ns, 0)
	default:
		// An error's completion has no valid opcode. Which queue it came from the completion queue tells, if the two have one each.
		cq := uint32(ev.Fields[catalogue.VerbsCompletionCompletionQueue])
		sends, receives := cq == s.object.SendCQ, cq == s.object.RecvCQ
		if sends == receives {
			sends, receives = true, true
		}
		found = sends && p.sendDone(s, id, ns, status)
		found = found || (receives && p.receiveDone(s, ev, id, ns, status))
	}
	// A device may keep what was in a completion queue of a queue pair that was destroyed: its requests ended with it.
	if !found && !(s.object.ID == 0 && status == flushed) {
		p.Counts.Surplus++
	}
}

// sendDone retires the first outstanding request with the completion's id, which must have asked for a completion unless it failed,
// and the unsignalled ones before it. A signalled one before it has a completion of its own, which another thread has in hand; only
// where records are missing it may have been lost.
func (p *Pairer) sendDone(s *state, id uint64, ns int64, status int32) bool {
	p.trim(&s.sends, s, isSend)
	at := -1
	for n := s.sends.head; n < len(s.sends.items); n++ {
		t := s.sends.items[n]
		if !p.holds(t, s, isSend) {
			continue
		}
		if e := p.slab.at(t.entry); e.id == id && (e.signaled || status != 0) {
			at = n
			break
		}
	}
	if at < 0 {
		return false
	}
	for _, t := range s.sends.items[s.sends.head:at] {
		if !p.holds(t, s, isSend) {
			continue
		}
		if e := p.slab.at(t.entry); e.signaled && !p.lossy {
			if e.overtaken == 0 {
				e.overtaken = ns
			}
			continue
		}
		p.complete(t.entry, ns, 0, ops.Implied)
	}
	p.complete(s.sends.items[at].entry, ns, status, 0)
	p.trim(&s.sends, s, isSend)
	return true
}

// receiveDone fills a receive of the queue pair, in the order of its queue, or of its shared receive queue, by id.
func (p *Pairer) receiveDone(s *state, ev *capture.Event, id uint64, ns int64, status int32) bool {
	i := int32(-1)
	if srq := s.object.SharedQueue; srq != 0 {
		i = p.fromChain(p.state(srq, verbs), id)
	} else {
		i = p.fromQueue(s, id, ns)
	}
	if i < 0 {
		if status == 0 {
			s.filledK++
		}
		return false
	}
	e := p.slab.at(i)
	e.via = s.object
	if status == 0 {
		e.op.Bytes = ev.Fields[catalogue.VerbsCompletionBytes]
		if s.object.Type == topology.TypeUD {
			e.op.Bytes = max(e.op.Bytes, headerBytesUD) - headerBytesUD
		}
		e.tag = ev.Fields[catalogue.VerbsCompletionSourceQpn]
		if s.object.SharedQueue != 0 || s.object.Type == topology.TypeUD {
			e.k, e.half, e.conn = s.filledK, !(s.lost && s.object.SharedQueue != 0), s.conn
		}
		s.filledK++
	}
	p.complete(i, ns, status, 0)
	return true
}

// fromQueue takes the receive with an id, mostly the first of the queue. Where it is not, threads poll side by side, or records are
// missing: those before it were then filled long ago.
func (p *Pairer) fromQueue(s *state, id uint64, ns int64) int32 {
	p.trim(&s.receives, s, isReceive)
	for n := s.receives.head; n < len(s.receives.items); n++ {
		t := s.receives.items[n]
		if !p.holds(t, s, isReceive) || p.slab.at(t.entry).id != id {
			continue
		}
		if p.lossy {
			for _, b := range s.receives.items[s.receives.head:n] {
				if p.holds(b, s, isReceive) {
					p.unfinished(b.entry, ns)
				}
			}
		}
		return t.entry
	}
	return -1
}

// fromChain takes the first receive with an id off a shared queue.
func (p *Pairer) fromChain(s *state, id uint64) int32 {
	c := s.byID[id]
	if c.head == 0 {
		return -1
	}
	i := c.head - 1
	if c.head = p.slab.at(i).next; c.head == 0 {
		delete(s.byID, id)
	} else {
		s.byID[id] = c
	}
	return i
}

// verbsHalf is halfOf for queue pairs.
func (p *Pairer) verbsHalf(e *entry) (match.Half, string) {
	q, side := e.state.object, match.Send
	if e.op.Role == ops.Target {
		side = match.Receive
		if e.via != nil {
			q = e.via
		}
	}
	h := p.newHalf(e, side)
	h.Object = q.ID
	if q.Type == topology.TypeUD {
		return p.datagramHalf(e, q, h)
	}
	if e.conn >= len(q.Connections) || q.Connections[e.conn].Peer.Object == 0 {
		return h, match.PeerNotTraced
	}
	if !e.half {
		return h, p.missing
	}
	h.Rule, h.Order = match.Equal, e.k
	if q.Type == topology.TypeUC {
		h.Flags |= ops.Ambiguous // packets may be dropped unseen
	}
	sender, connection := p.process.Identify(q.ID), e.conn
	if side == match.Receive {
		c := &q.Connections[e.conn]
		sender, connection = p.topology.Processes[c.Peer.Process].Identify(c.Peer.Object), c.PeerIndex
	} else {
		h.Flow = FlowOf(sender, e.op.Ordinal)
	}
	h.Stream = topology.Mix(sender, uint64(connection))
	return h, ""
}

func (p *Pairer) datagramHalf(e *entry, q *topology.Object, h match.Half) (match.Half, string) {
	h.Rule = match.RankLossy
	if h.Side == match.Receive {
		h.Stream, h.Order = topology.Mix(p.process.Identify(q.ID), e.tag), e.k
		return h, ""
	}
	number := uint32(e.op.Fields[catalogue.VerbsDatagramRemoteQpn])
	if number == multicastQPN {
		return h, match.Multicast
	}
	to := p.topology.Datagram(p.process.Index, uint32(e.op.Fields[catalogue.VerbsDatagramAddressHandle]), number, e.op.Post)
	if to.Object == 0 {
		return h, match.PeerNotTraced
	}
	h.Stream = topology.Mix(p.topology.Processes[to.Process].Identify(to.Object), uint64(q.QPN))
	h.Order, h.Flow = match.TimeOrder(e.op.Post), FlowOf(e.state.identity, e.op.Ordinal)
	return h, ""
}
