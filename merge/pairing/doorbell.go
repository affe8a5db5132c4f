package pairing

import (
	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// elementLanes is how many elements of one doorbell lie beside each other.
const elementLanes = 64

// doorbell is the doorbell that a thread records the elements of, one after the other.
type doorbell struct {
	state    *state // nil: none
	ticks    uint64
	elements uint32
	of       [2]ops.Op // the doorbell itself: of its data elements, and of its control elements
}

// doorbellRequest takes an element of a queue that a GPU or a program rings by itself. Its completion goes past everything: when it ended is not known.
func (p *Pairer) doorbellRequest(ev *capture.Event, event *catalogue.Event) {
	s := p.state(uint32(ev.Fields[catalogue.DoorbellRequestQueuePair]), bell)
	d := p.doorbells[ev.Thread]
	if d == nil {
		d = &doorbell{}
		p.doorbells[ev.Thread] = d
	}
	if d.state != s || d.ticks != ev.Time || ev.Fields[catalogue.DoorbellRequestCall] == 0 {
		p.rung(d)
		*d = doorbell{state: s, ticks: ev.Time}
	}
	role, flags, bytes := ops.OneSided, ops.Unseen, ev.Fields[catalogue.DoorbellRequestBytes]
	if event.Kind == catalogue.Control {
		role = ops.Local
	}
	of := &d.of[0]
	if event.ID == catalogue.EventDoorbellControl || ev.Fields[catalogue.DoorbellRequestFlags]&catalogue.VerbsSendFlagsControl != 0 {
		flags |= ops.Synchronizes
		of = &d.of[1]
	} else {
		s.totals[role] += bytes
	}
	p.inPhases(ev, s, bytes)
	op := p.atOnce(ev, s, role, flags, bytes)
	s.onConnection(op.Post)
	op.Requests, op.Ordinal, op.Lane = 1, s.posted, uint16(d.elements%elementLanes)
	s.posted++
	s.lanes.reserve(int(op.Lane) + 1)
	if of.Requests == 0 {
		*of = op
		of.Event, of.Role, of.Flags, of.Lane, of.Requests, of.Bytes = catalogue.EventDoorbellCall, ops.Local, flags|ops.Doorbell, 0, 0, 0
		of.Fields = [16]uint64{catalogue.CallOperation: uint64(ev.ID)}
		of.Ordinal = s.locals
		s.locals++
	}
	d.elements++
	of.Requests++
	of.Bytes += bytes
	p.put(&op)
}

// rung ends the elements of a doorbell.
func (p *Pairer) rung(d *doorbell) {
	for i := range d.of {
		if of := &d.of[i]; of.Requests > 0 {
			of.Fields[catalogue.CallRequests], of.Fields[catalogue.CallBytes] = uint64(of.Requests), of.Bytes
			p.put(of)
		}
	}
	*d = doorbell{}
}

// doorbellCall takes a doorbell of mode simple: what of it moves data, or what of it synchronizes.
func (p *Pairer) doorbellCall(ev *capture.Event) {
	s, bytes, flags := p.state(uint32(ev.Fields[catalogue.CallObject]), bell), ev.Fields[catalogue.CallBytes], ops.Unseen|ops.Doorbell|ops.CallRecord
	if ev.ID == catalogue.EventDoorbellCall {
		s.totals[ops.Local] += bytes
	} else {
		flags |= ops.Synchronizes
	}
	p.inPhases(ev, s, bytes)
	op := p.atOnce(ev, s, ops.Local, flags, bytes)
	op.Requests, op.Ordinal = uint32(min(ev.Fields[catalogue.CallRequests], 1<<32-1)), s.locals
	s.locals++
	s.lanes.reserve(1)
	p.put(&op)
}

// atOnce makes an operation that is nothing but a point in time.
func (p *Pairer) atOnce(ev *capture.Event, s *state, role ops.Role, flags ops.Flag, bytes uint64) ops.Op {
	ns := p.process.Clock.NS(ev.Time)
	return ops.Op{
		Post: ns, Done: ns, Process: p.process.Index, Endpoint: s.object.Local, Thread: ev.Thread, Sequence: ev.Sequence, Event: ev.ID, Role: role,
		Flags: flags, Bytes: bytes, Total: s.totals[role], Fields: ev.Fields,
	}
}

func (p *Pairer) put(op *ops.Op) {
	if err := p.sink.Op(op); err != nil && p.err == nil {
		p.err = err
	}
}
