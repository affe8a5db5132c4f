package pairing

import (
	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// uctRequest takes an operation of UCT. None has a partner that the other side records, not even a message: who receives it is a callback.
func (p *Pairer) uctRequest(ev *capture.Event, event *catalogue.Event) {
	s := p.state(uint32(ev.Fields[catalogue.UctRequestEndpoint]), uct)
	role := ops.OneSided
	if event.ID == catalogue.EventUctFlush || event.ID == catalogue.EventUctTagRecv {
		role = ops.Local
	}
	i, ok := p.post(ev, s, role, ev.Fields[catalogue.UctRequestBytes])
	e := p.slab.at(i)
	if event.ID == catalogue.EventUctTagRecv {
		e.op.Ordinal = s.received
		s.received++
	} else {
		e.op.Ordinal = s.posted
		s.posted++
	}
	p.begun(i, ok, s, ev.Fields[catalogue.UctRequestStatus], ev.Fields[catalogue.UctRequestRequest], ev.Fields[catalogue.UctRequestDuration])
}

func (p *Pairer) uctCompletion(ev *capture.Event) {
	p.ended(uint32(ev.Fields[catalogue.UctCompletionEndpoint]), uct, ev.Fields[catalogue.UctCompletionRequest], early{
		ns: p.process.Clock.NS(ev.Time), status: int32(int64(ev.Fields[catalogue.UctCompletionError])),
	})
}
