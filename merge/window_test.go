package merge_test

import (
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	cat "github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/match"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// Tagged messages under a window that is closed and opened again: those before it closed are surely matched, unless threads share an
// endpoint, of which one may have gone on recording for a moment; those behind are not; the account calls nothing lost.
func TestTagsAreSureUntilAWindowCloses(t *testing.T) {
	for _, threads := range []int{1, 2} {
		r := newRig(t)
		a, b := r.process("n1", 100, 0), r.process("n1", 200, 1)
		wa, wb := uint64(0), uint64(0)
		for _, p := range []*proc{a, b} {
			p.pairs(hz)
			for command, open := range []uint64{1, 0, 1} {
				p.Define([]uint64{5, 11_050, 21_050}[command], cat.DefWindow, open, uint64(cat.WindowCauseCommand), uint64(epoch), uint64(command))
			}
		}
		wa, wb = a.worker(10, "a"), b.worker(20, "b")
		ep := a.endpoint(30, wa, "b")
		for n := range uint64(30) {
			at, thread := 1100+1000*n, int(n)%threads
			send, receive := ucpRequest(ep, 100, 5, 0, 0, cat.UcpResultDone, 10), ucpRequest(wb, 100, 5, wholeMask, 0, cat.UcpResultDone, 10)
			send[cat.UcpRequestLocalAddress], receive[cat.UcpRequestLocalAddress] = n, n
			if n >= 10 && n < 20 {
				a.count(thread, at, cat.EventUcpTagSend, send...)
				b.count(thread, at+500, cat.EventUcpTagRecv, receive...)
				continue
			}
			if n >= 20 && n < 20+uint64(threads) {
				a.thread(thread).Cut()
				b.thread(thread).Cut()
			}
			a.event(thread, at, cat.EventUcpTagSend, send...)
			b.event(thread, at+500, cat.EventUcpTagRecv, receive...)
		}
		r.close()
		m := r.open(merge.Options{})
		flows := map[uint64]ops.Op{}
		operations := all(t, m)
		for _, o := range of(operations, cat.EventUcpTagRecv) {
			flows[o.Flow] = o
		}
		for _, s := range of(operations, cat.EventUcpTagSend) {
			n, sure := s.Fields[cat.UcpRequestLocalAddress], s.Flags&ops.Ambiguous == 0
			if v := flows[s.Flow]; s.Flow == 0 || v.Fields[cat.UcpRequestLocalAddress] != n || sure != (n < 10 && threads == 1) {
				t.Errorf("%d threads: message %d matched with %d, sure %v", threads, n, v.Fields[cat.UcpRequestLocalAddress], sure)
			}
		}
		i := m.Info()
		if i.Flows.Matched != 20 || i.Flows.Unmatched[match.LostRecords] != 0 || i.Lost.Events != 0 || i.Windowed == nil {
			t.Errorf("flows %+v, lost %+v", i.Flows, i.Lost)
		}
	}
}
