package merge_test

import (
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/capture"
	cat "github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// A process whose wall clock was set back comes to an interval again, under another number: the interval has the sum of both, and the
// process once.
func TestIntervalsThatComeTwice(t *testing.T) {
	r := newRig(t)
	for rank := range int64(2) {
		p := r.process("n1", 100+uint32(rank), rank)
		p.pairs(hz)
		w := p.worker(10, "w")
		ep := p.endpoint(20, w, "nobody")
		for number, start := range []int64{epoch, epoch + 1000, epoch} {
			p.Define(uint64(30+number), cat.DefEpoch, uint64(number), uint64(cat.EpochKindInterval), uint64(start), "")
			p.Aggregate(capture.Aggregate{Object: uint32(ep), Event: cat.EventUcpPut, Thread: 1, Epoch: uint32(number), First: 40, Count: 5, Bytes: 50, Calls: 5})
		}
	}
	r.close()
	epochs := r.open(merge.Options{}).Info().Epochs
	if len(epochs) != 2 {
		t.Fatalf("epochs %+v", epochs)
	}
	for i, want := range []merge.Count{{Count: 20, Bytes: 200}, {Count: 10, Bytes: 100}} {
		if e := epochs[i]; *e.StartNS != epoch+int64(i)*1000 || e.Processes != 2 || e.Operations["ucp"]["put"] != want {
			t.Errorf("epoch %d: %+v, want %+v of 2 processes", i, e, want)
		}
	}
}
