package merge_test

import (
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	cat "github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/match"
)

// From rdma/fabric.h: bits of operations and capabilities, and formats of addresses and of completion queues' entries.
const (
	fiMsg, fiRma, fiRecv, fiSend, fiRemoteWrite, fiRemoteCQData = 1 << 1, 1 << 2, 1 << 10, 1 << 11, 1 << 13, 1 << 17
	fiSource                                                    = 1 << 57
	fiSockaddrIn, fiSockaddrIB, fiFormatData                    = 2, 4, 3
)

// inetName is a sockaddr_in: 10.9.0.1 at a port.
func inetName(port byte) []byte { return []byte{2, 0, 0, port, 10, 9, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0} }

// fabricEndpoint defines an endpoint with a queue for both directions.
func (p *proc) fabricEndpoint(at, kind, format, caps uint64, name, peer []byte) (endpoint, queue uint64) {
	endpoint = p.define(at, cat.DefOfiEndpoint, uint64(0), uint64(cat.OfiClassEndpoint), kind, format, caps, uint64(0), uint64(0), uint64(0), "verbs", "fabric", "rxe0", uint64(0))
	p.Define(at+p.offset, cat.DefOfiName, endpoint, name, peer)
	queue = p.define(at, cat.DefOfiCq, uint64(fiFormatData), uint64(512))
	p.Define(at+p.offset, cat.DefOfiBind, endpoint, queue, uint64(fiSend|fiRecv))
	return endpoint, queue
}

func (p *proc) ofiMessage(at uint64, event uint16, endpoint, bytes, context, result uint64) {
	p.event(0, at, event, endpoint, bytes, context, 0, 0, 0, 0, 0, 0x1000, result, cat.OfiApiPlain, 10)
}

func (p *proc) ofiCompletion(at, queue, context, flags, bytes, source uint64) {
	p.event(0, at, cat.EventOfiCompletion, queue, context, flags, bytes, 0, 0, source)
}

// libfabric's verbs says of the side that takes a connection that its addresses are InfiniBand's, and names it by IP all the same. A write
// with data takes one of the receives there, and no message's.
func TestConnectedOverVerbs(t *testing.T) {
	r := newRig(t)
	a, b := r.process("n1", 100, 0), r.process("n1", 200, 1)
	a.pairs(2 * hz)
	b.pairs(2 * hz)
	ea, _ := a.fabricEndpoint(10, cat.OfiEndpointTypeMsg, fiSockaddrIn, fiMsg|fiRma, inetName(7), inetName(8))
	eb, qb := b.fabricEndpoint(10, cat.OfiEndpointTypeMsg, fiSockaddrIB, fiMsg|fiRma, inetName(8), inetName(7))
	for i := range uint64(3) {
		b.ofiMessage(1000+i, cat.EventOfiRecv, eb, 4096, 0xb0+i, cat.OfiResultPending)
	}
	a.ofiMessage(2000, cat.EventOfiSend, ea, 100, 0, cat.OfiResultDone)
	b.ofiCompletion(2100, qb, 0xb0, fiMsg|fiRecv, 100, 0)
	b.ofiCompletion(2200, qb, 0xb1, fiRma|fiRemoteWrite|fiRemoteCQData, 8, 0)
	a.ofiMessage(2300, cat.EventOfiSend, ea, 300, 0, cat.OfiResultDone)
	b.ofiCompletion(2400, qb, 0xb2, fiMsg|fiRecv, 300, 0)
	r.close()

	m := r.open(merge.Options{Workers: 2})
	all(t, m)
	f := m.Info().Flows
	if f.Matched != 2 || f.Ambiguous != 0 || len(f.Unmatched) != 0 || m.Info().Surplus != 0 {
		t.Errorf("%+v, surplus %d", f, m.Info().Surplus)
	}
}

// Where an endpoint has not the capability, what stands in the place of a completion's source is nobody's.
func TestSourceOnlyWithTheCapability(t *testing.T) {
	for caps, sure := range map[uint64]bool{fiMsg: false, fiMsg | fiSource: true} {
		r := newRig(t)
		a, b, c := r.process("n1", 100, 0), r.process("n1", 200, 1), r.process("n1", 300, 2)
		sends := func(p *proc, port byte, at, bytes uint64) {
			p.pairs(2 * hz)
			ep, _ := p.fabricEndpoint(10, cat.OfiEndpointTypeRdm, fiSockaddrIn, fiMsg, inetName(port), nil)
			way := p.define(20, cat.DefOfiPeer, ep, uint64(0), uint64(0), inetName(9))
			p.ofiMessage(at, cat.EventOfiSend, way, bytes, 0, cat.OfiResultDone)
		}
		sends(a, 7, 2000, 100)
		sends(b, 8, 2500, 200)
		c.pairs(2 * hz)
		ec, qc := c.fabricEndpoint(10, cat.OfiEndpointTypeRdm, fiSockaddrIn, caps, inetName(9), nil)
		c.define(20, cat.DefOfiPeer, ec, uint64(0), uint64(0), inetName(7))
		c.define(20, cat.DefOfiPeer, ec, uint64(1), uint64(0), inetName(8))
		for i, bytes := range []uint64{100, 200} {
			c.ofiMessage(1000+uint64(i), cat.EventOfiRecv, ec, 4096, 0xc0+uint64(i), cat.OfiResultPending)
			source := uint64(i + 1)
			if !sure {
				source = 2 // the way to b: left there by an earlier call
			}
			c.ofiCompletion(3000+uint64(i), qc, 0xc0+uint64(i), fiMsg|fiRecv, bytes, source)
		}
		r.close()

		m := r.open(merge.Options{Workers: 2})
		all(t, m)
		if f := m.Info().Flows; f.Matched != 2 || len(f.Unmatched) != 0 || (f.Ambiguous == 0) != sure {
			t.Errorf("caps %#x: %+v", caps, f)
		}
	}
}

// soft-RoCE leaves the flushed receives of a destroyed queue pair in the completion queue: they are of no queue pair, and none is missing.
func TestFlushedAfterDestroy(t *testing.T) {
	for status, surplus := range map[uint64]int64{5: 0, 0: 1} { // IBV_WC_WR_FLUSH_ERR
		r := newRig(t)
		a := r.process("n1", 100, 0)
		a.pairs(2 * hz)
		a.event(0, 1000, cat.EventVerbsCompletion, 0, 0xa0, 1, status, 128, 0, 0, 0, 0)
		r.close()
		m := r.open(merge.Options{Workers: 1})
		all(t, m)
		if i := m.Info(); i.Surplus != surplus || i.Flows.Unmatched[match.Failed] != 0 {
			t.Errorf("status %d: surplus %d, %+v", status, i.Surplus, i.Flows)
		}
	}
}
