package merge_test

import (
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/capture"
	cat "github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// A phase's traffic is what was sent in it, in mode simple as in full: receives are there to cross-check.
func TestPhasesOfCallsHaveNoReceives(t *testing.T) {
	r := newRig(t)
	p := r.process("n1", 100, 0, func(h *capture.Header) { h.Mode = cat.ModeSimple })
	p.pairs(hz)
	w := p.worker(10, "w")
	ep := p.endpoint(20, w, "w")
	track := p.define(30, cat.DefAppTrack, uint64(1))
	p.Define(40, cat.DefAppName, uint64(1), "exchange", "")
	p.event(0, 1000, cat.EventAppPhaseBegin, track, 1, 0)
	p.event(0, 1100, cat.EventUcpCall, w, cat.EventUcpTagRecv, 1, 100, 0, 5)
	p.event(0, 1200, cat.EventUcpCall, ep, cat.EventUcpTagSend, 1, 70, 0, 5)
	p.event(0, 1300, cat.EventAppPhaseEnd, track, 0, 0)
	r.close()
	i := r.open(merge.Options{}).Info()
	phases := i.Phases
	if x := i.Time; x == nil || x.BeginNS > ns(1000) || x.EndNS < ns(1300) || x.FirstOperationNS == nil || *x.FirstOperationNS != ns(1000) || *x.LastOperationNS != ns(1300) {
		t.Errorf("time %+v, want operations from %d to %d", x, ns(1000), ns(1300))
	}
	if len(phases) != 1 || phases[0].Name != "exchange" || phases[0].Traffic["ucp"] != (merge.Count{Count: 1, Bytes: 70}) {
		t.Errorf("phases %+v, want one send of 70 bytes", phases)
	}
}
