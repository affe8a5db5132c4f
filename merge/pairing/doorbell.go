package pairing

import (
	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// doorbellRequest takes an element of a queue that a GPU or a program rings by itself. Its completion goes past everything: when it ended is not known.
func (p *Pairer) doorbellRequest(ev *capture.Event, event *catalogue.Event) {
	s := p.state(uint32(ev.Fields[catalogue.DoorbellRequestQueuePair]), bell)
	role := ops.OneSided
	if event.Kind == catalogue.Control {
		role = ops.Local
	}
	i, ok := p.post(ev, s, role, ev.Fields[catalogue.DoorbellRequestBytes])
	e := p.slab.at(i)
	s.onConnection(e.op.Post)
	e.op.Ordinal, e.conn = s.posted, s.conn
	s.posted++
	p.begun(i, ok, s, catalogue.UcpResultUntracked, 0, 0)
}
