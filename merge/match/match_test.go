package match_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/match"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/spill"
)

// joined matches halves and returns "flow: send with receive", each as process.order, in order, and what was counted.
func joined(t *testing.T, halves []match.Half, lossy ...uint32) ([]string, *match.Summary) {
	t.Helper()
	file, err := spill.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	in, out := match.NewHalves(file, 1<<20), match.NewResults(file, 1<<20)
	if err := in.Add(halves); err != nil {
		t.Fatal(err)
	}
	sorted, err := in.Finish()
	if err != nil {
		t.Fatal(err)
	}
	holes := func(h *match.Half) bool { return slices.Contains(lossy, h.Process) }
	missing := func(p uint32) string {
		if slices.Contains(lossy, p) {
			return match.LostRecords
		}
		return ""
	}
	known := match.Knowledge{Missing: missing, Holes: holes, Displaced: func(*match.Half) bool { return false }}
	s, err := match.Run(context.Background(), sorted, out, known, func(int64, int64) {})
	if err != nil {
		t.Fatal(err)
	}
	results, err := out.Finish()
	if err != nil {
		t.Fatal(err)
	}
	ends := map[uint64][]string{}
	scan := results.From(0)
	for more, err := scan.Next(); more; more, err = scan.Next() {
		if err != nil {
			t.Fatal(err)
		}
		r := &scan.Value
		text := fmt.Sprintf("%d.%d", r.Process, r.Sequence)
		if r.Flags&ops.Ambiguous != 0 {
			text += "?"
		}
		if r.Flow != 0 {
			ends[r.Flow] = append(ends[r.Flow], text)
		}
	}
	var all []string
	for _, flow := range slices.Sorted(maps.Keys(ends)) {
		slices.Sort(ends[flow])
		all = append(all, fmt.Sprint(flow, ": ", ends[flow]))
	}
	return all, s
}

// half is one side's n-th message: process 1 sends, process 2 receives.
func half(side match.Side, rule match.Rule, n uint64, bytes uint64) match.Half {
	h := match.Half{Stream: 7, Order: n, Sequence: n, Bytes: bytes, Side: side, Rule: rule, Process: 1 + uint32(side), Post: int64(100 * n), Done: int64(100*n + 50)}
	if side == match.Send {
		h.Flow = 1000 + n
	}
	return h
}

// from makes a send one of an object, and of the endpoint that this belongs to.
func from(h match.Half, object uint32, source uint64) match.Half {
	h.Object, h.Source = object, source
	return h
}

func TestRules(t *testing.T) {
	send := func(rule match.Rule, n, bytes uint64) match.Half { return half(match.Send, rule, n, bytes) }
	receive := func(rule match.Rule, n, bytes uint64) match.Half { return half(match.Receive, rule, n, bytes) }
	for name, c := range map[string]struct {
		halves         []match.Half
		want           []string
		unmatched      int64
		matched, vague int64
	}{
		"equal, with a hole at the sender": {
			[]match.Half{send(match.Equal, 1, 8), send(match.Equal, 3, 8), receive(match.Equal, 1, 8), receive(match.Equal, 2, 8), receive(match.Equal, 3, 8)},
			[]string{"1001: [1.1 2.1]", "1003: [1.3 2.3]"}, 1, 2, 0},
		"rank, by order and not by number": {
			[]match.Half{send(match.Rank, 5, 8), send(match.Rank, 9, 8), receive(match.Rank, 2, 8), receive(match.Rank, 8, 8)},
			[]string{"1005: [1.5 2.2]", "1009: [1.9 2.8]"}, 0, 2, 0},
		"rank, one receive too few": {
			[]match.Half{send(match.Rank, 1, 8), send(match.Rank, 2, 8), receive(match.Rank, 1, 8)},
			[]string{"1001: [1.1 2.1]"}, 1, 1, 0},
		"rank that may drop, counts differ": {
			[]match.Half{send(match.RankLossy, 1, 8), send(match.RankLossy, 2, 8), receive(match.RankLossy, 1, 8)},
			[]string{"1001: [1.1? 2.1?]"}, 1, 1, 1},
		"the sides disagree on the bytes": {
			[]match.Half{send(match.Equal, 1, 8), receive(match.Equal, 1, 16)},
			[]string{"1001: [1.1? 2.1?]"}, 0, 1, 1},
		"the length of the receive is not known": {
			[]match.Half{send(match.Equal, 1, 8), receive(match.Equal, 1, match.UnknownBytes)},
			[]string{"1001: [1.1 2.1]"}, 0, 1, 0},
		"nobody received": {
			[]match.Half{send(match.Equal, 1, 8), send(match.Equal, 2, 8)}, nil, 2, 0, 0},
		"two objects send": {
			[]match.Half{send(match.Rank, 1, 8), from(send(match.Rank, 2, 8), 2, 0), receive(match.Rank, 1, 8), receive(match.Rank, 2, 8)},
			[]string{"1001: [1.1? 2.1?]", "1002: [1.2? 2.2?]"}, 0, 2, 2},
		"two objects of one endpoint send": {
			[]match.Half{from(send(match.Rank, 1, 8), 1, 30), from(send(match.Rank, 2, 8), 2, 30), receive(match.Rank, 1, 8), receive(match.Rank, 2, 8)},
			[]string{"1001: [1.1 2.1]", "1002: [1.2 2.2]"}, 0, 2, 0},
		"two endpoints send, the receives do not tell": {
			[]match.Half{from(send(match.Rank, 1, 8), 1, 30), from(send(match.Rank, 2, 8), 2, 31), receive(match.Rank, 1, 8), receive(match.Rank, 2, 8)},
			[]string{"1001: [1.1? 2.1?]", "1002: [1.2? 2.2?]"}, 0, 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			got, s := joined(t, c.halves)
			if !slices.Equal(got, c.want) {
				t.Errorf("%v, not %v", got, c.want)
			}
			f := s.Layers[0]
			var unmatched int64
			for _, n := range f.Unmatched {
				unmatched += n
			}
			if f.Matched != c.matched || f.Ambiguous != c.vague || unmatched != c.unmatched {
				t.Errorf("%+v: not %d matched, %d ambiguous, %d unmatched", f, c.matched, c.vague, c.unmatched)
			}
		})
	}
}

// Behind a window that left messages out (flagged: nothing numbers them any more) what is left of an earlier window stays alone, and the
// next window begins afresh; what was recorded before is sure.
func TestWindowsBeginAfresh(t *testing.T) {
	in := func(h match.Half, window uint32, flags ops.Flag) match.Half {
		h.Window, h.Flags = window, flags
		return h
	}
	send := func(n uint64, window uint32, flags ops.Flag) match.Half {
		return in(half(match.Send, match.Rank, n, 8), window, flags)
	}
	receive := func(n uint64, window uint32, flags ops.Flag) match.Half {
		return in(half(match.Receive, match.Rank, n, 8), window, flags)
	}
	const vague = ops.Ambiguous
	for name, c := range map[string]struct {
		halves    []match.Half
		want      []string
		unmatched int64
	}{
		"sends are left": {
			[]match.Half{send(1, 1, 0), send(2, 1, 0), send(3, 1, 0), send(20, 3, vague), receive(1, 1, 0), receive(20, 3, vague)},
			[]string{"1001: [1.1 2.1]", "1020: [1.20? 2.20?]"}, 2},
		"receives are left": {
			[]match.Half{send(1, 1, 0), send(20, 3, vague), receive(1, 1, 0), receive(2, 1, 0), receive(20, 3, vague)},
			[]string{"1001: [1.1 2.1]", "1020: [1.20? 2.20?]"}, 1},
		"the receiver's window opens earlier": {
			[]match.Half{send(20, 3, vague), receive(15, 3, vague), receive(16, 3, vague), receive(20, 3, vague)},
			[]string{"1020: [1.20? 2.20?]"}, 2},
		"the receiver has no window": {
			[]match.Half{send(1, 1, 0), send(20, 3, vague), receive(1, 0, 0), receive(2, 0, 0), receive(20, 0, 0)},
			[]string{"1001: [1.1 2.1]", "1020: [1.20? 2.20?]"}, 1},
		"nothing was left out": {
			[]match.Half{send(1, 1, 0), send(20, 3, 0), receive(1, 3, 0), receive(20, 3, 0)},
			[]string{"1001: [1.1 2.1]", "1020: [1.20 2.20]"}, 0},
		"records are lost, and clocks disagree": {
			[]match.Half{send(20, 0, vague), receive(15, 0, vague)},
			[]string{"1020: [1.20? 2.15?]"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, s := joined(t, c.halves)
			var unmatched int64
			for _, n := range s.Layers[0].Unmatched {
				unmatched += n
			}
			if !slices.Equal(got, c.want) || unmatched != c.unmatched {
				t.Errorf("%v, %d unmatched, not %v, %d", got, unmatched, c.want, c.unmatched)
			}
		})
	}
}

// A message received before it was sent is counted with how far it was off, and matched all the same.
func TestReceivedBeforeSent(t *testing.T) {
	s, r := half(match.Send, match.Equal, 1, 8), half(match.Receive, match.Equal, 1, 8)
	s.Post, s.Done, r.Post, r.Done = 1000, 1100, 500, 930
	got, sum := joined(t, []match.Half{s, r})
	if len(got) != 1 || sum.ReceiveBeforeSend != 1 || sum.WorstNS != 70 {
		t.Errorf("%v, %+v", got, sum)
	}
}

// What goes through the external sort comes out as it was.
func TestHalvesKeepEverything(t *testing.T) {
	h := match.Half{Stream: 1, Order: 2, Sequence: 3, Flow: 4, Bytes: match.UnknownBytes, Tag: 6, Source: 7, Post: -8, Done: 9, Process: 10, Object: 11,
		Thread: 12, Flags: ops.Ambiguous | ops.Failed, Side: match.Receive, Rule: match.RankLossy, Layer: 15, Window: 16}
	b := make([]byte, 92)
	h.Put(b)
	var g match.Half
	if g.Get(b); g != h {
		t.Errorf("%+v, not %+v", g, h)
	}
	if a, b := match.TimeOrder(-5), match.TimeOrder(5); a >= b {
		t.Errorf("times before 1970 come after those behind: %x, %x", a, b)
	}
}
