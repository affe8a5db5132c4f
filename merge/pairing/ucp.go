package pairing

import (
	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/match"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/topology"
)

// early is a completion that was recorded before its request: a thread completed what another was still posting.
type early struct {
	ns         int64
	bytes, tag uint64
	status     int32
}

// maxEarly bounds the completions that are kept for a request to come; only requests inside a call at that moment can.
const maxEarly = 4096

func (p *Pairer) ucpRequest(ev *capture.Event, event *catalogue.Event) {
	s := p.state(uint32(ev.Fields[catalogue.UcpRequestEndpoint]), ucp)
	role := ops.OneSided
	switch event.ID {
	case catalogue.EventUcpTagSend:
		role = ops.Initiator
	case catalogue.EventUcpTagRecv:
		role = ops.Target
	}
	i, ok := p.post(ev, s, role, ev.Fields[catalogue.UcpRequestBytes])
	e := p.slab.at(i)
	if role == ops.Target {
		e.op.Ordinal = s.received
		s.received++
		if ev.Fields[catalogue.UcpRequestMask] == ^uint64(0) {
			e.tag, e.tagKnown = ev.Fields[catalogue.UcpRequestTag], true
		}
	} else {
		e.op.Ordinal = s.posted
		s.posted++
	}
	if s.lost {
		e.op.Flags |= ops.Ambiguous
	}
	p.begun(i, ok, s, ev.Fields[catalogue.UcpRequestStatus], ev.Fields[catalogue.UcpRequestRequest], ev.Fields[catalogue.UcpRequestDuration])
}

// begun lets a request of UCP or UCT end as its call's result says, duration ticks later or with a completion or flush to come.
func (p *Pairer) begun(i int32, ok bool, s *state, result, id, duration uint64) {
	e := p.slab.at(i)
	if !ok {
		p.overflow(i)
		return
	}
	switch result {
	case catalogue.UcpResultPending:
		p.pending(i, id)
	case catalogue.UcpResultImplicit:
		if s.implicit.items == nil {
			p.flushing = append(p.flushing, s)
		}
		s.implicit.push(i, e.op.Ordinal)
	case catalogue.UcpResultUntracked:
		// No completion will come: all that is known is that the call returned.
		e.op.Flags |= ops.Unfinished
		p.Counts.Unfinished++
		p.endAt(i, true, duration)
	default:
		e.op.Flags |= ops.Immediate
		p.endAt(i, true, duration)
	}
}

// pending files a request under its id.
func (p *Pairer) pending(i int32, id uint64) {
	e := p.slab.at(i)
	e.id = id
	if x, ok := p.early[id]; ok && x.ns >= e.op.Post {
		delete(p.early, id)
		p.Counts.Surplus--
		p.ucpEnd(i, x)
		return
	}
	if old, ok := p.requests[id]; ok {
		p.unfinished(old, e.op.Post) // the id is in use again: the old request's completion was not recorded
	}
	p.requests[id] = i
}

func (p *Pairer) ucpCompletion(ev *capture.Event) {
	p.ended(uint32(ev.Fields[catalogue.UcpCompletionEndpoint]), ucp, ev.Fields[catalogue.UcpCompletionRequest], early{
		ns: p.process.Clock.NS(ev.Time), bytes: ev.Fields[catalogue.UcpCompletionBytes], tag: ev.Fields[catalogue.UcpCompletionTag],
		status: int32(int64(ev.Fields[catalogue.UcpCompletionError])),
	})
}

// ended takes the completion of a request of UCP or UCT.
func (p *Pairer) ended(object uint32, layer string, id uint64, x early) {
	p.state(object, layer).completed++
	i, ok := p.requests[id]
	if !ok {
		p.Counts.Surplus++
		if len(p.early) < maxEarly {
			p.early[id] = x
		}
		return
	}
	delete(p.requests, id)
	p.ucpEnd(i, x)
}

func (p *Pairer) ucpEnd(i int32, x early) {
	e := p.slab.at(i)
	if e.op.Role == ops.Target && (x.status == 0 || x.status == truncated) {
		e.tag, e.tagKnown, e.op.Bytes = x.tag, true, x.bytes
	}
	p.complete(i, x.ns, x.status, 0)
}

// flushed completes what a flush of an endpoint, or of all endpoints of a worker, posted at a time implies.
func (p *Pairer) flushed(flush *state, posted, done int64) {
	worker := flush.object.Kind == topology.Worker || flush.object.Kind == topology.Interface
	for _, s := range p.flushing {
		if s != flush && (!worker || s.layer != flush.layer || s.object.Worker != flush.object.ID) {
			continue
		}
		for p.trim(&s.implicit, s, isSend); s.implicit.head < len(s.implicit.items); p.trim(&s.implicit, s, isSend) {
			i := s.implicit.items[s.implicit.head].entry
			if p.slab.at(i).op.Post > posted {
				break
			}
			p.complete(i, done, 0, ops.Implied)
		}
	}
}

// truncated is UCS_ERR_MESSAGE_TRUNCATED: the receive took a message, but had no room for all of it.
const truncated = -9

// maxOpen bounds the receives of OpenReceives.
const maxOpen = 1 << 16

// OpenReceive is a receive of any of several tags that was never seen to end. Receives behind it that could not overtake it show that
// it took a message; of which tag is not known.
type OpenReceive struct {
	Worker    uint32
	Post      int64
	Tag, Mask uint64
}

// halfOf describes a two-sided operation for matching, or tells why it cannot have a partner.
func (p *Pairer) halfOf(e *entry) (match.Half, string) {
	if p.catalogue.Event(e.op.Event).Layer == ofi {
		return p.ofiHalf(e)
	}
	switch {
	case e.op.Event == catalogue.EventUcpTagRecv && e.op.Status == truncated:
	case e.op.Flags&ops.Failed != 0:
		return match.Half{}, match.Failed
	case e.op.Event == catalogue.EventUcpTagRecv && e.op.Flags&ops.Unfinished != 0 && !e.tagKnown:
		if len(p.Counts.Open) < maxOpen {
			f := &e.op.Fields
			p.Counts.Open = append(p.Counts.Open, OpenReceive{e.state.object.ID, e.op.Post, f[catalogue.UcpRequestTag], f[catalogue.UcpRequestMask]})
		}
		return match.Half{}, match.Unfinished
	case e.op.Event == catalogue.EventUcpTagRecv: // one that has not ended keeps its place in the order
	case e.op.Role == ops.Target && e.op.Flags&ops.Unfinished != 0:
		return match.Half{}, match.Unfinished
	}
	switch e.op.Event {
	case catalogue.EventUcpTagSend:
		peer := e.state.object.Peer
		if peer.Object == 0 {
			return match.Half{}, match.PeerNotTraced
		}
		h := p.newHalf(e, match.Send)
		h.Stream = topology.Mix(p.topology.Processes[peer.Process].Identify(peer.Object), e.op.Fields[catalogue.UcpRequestTag])
		h.Rule, h.Order, h.Flow = match.Rank, match.TimeOrder(e.op.Post), FlowOf(e.state.identity, e.op.Ordinal)
		return h, ""
	case catalogue.EventUcpTagRecv:
		if !e.tagKnown {
			return match.Half{}, match.NoTagRecorded
		}
		h := p.newHalf(e, match.Receive)
		h.Stream = topology.Mix(e.state.identity, e.tag)
		h.Rule, h.Order = match.Rank, match.TimeOrder(e.op.Post)
		return h, ""
	}
	return p.verbsHalf(e)
}
