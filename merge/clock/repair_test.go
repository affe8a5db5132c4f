package clock

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/spill"
)

// traffic are true messages between nodes, by the nodes' own clocks, which are wrong by skew and drift.
func traffic(r *rand.Rand, nodes, messages int, skew float64) []Message {
	ahead, rate := make([]float64, nodes), make([]float64, nodes)
	for i := range nodes {
		ahead[i], rate[i] = skew*r.NormFloat64(), 1+1e-3*r.NormFloat64()
	}
	own := func(node int, at float64) int64 { return int64(ahead[node] + at*rate[node]) }
	var all []Message
	now := 0.0
	for range messages {
		now += 1000 * r.ExpFloat64()
		from := r.IntN(nodes)
		to := (from + 1 + r.IntN(nodes-1)) % nodes
		all = append(all, Message{Sent: own(from, now), Received: own(to, now+10+2000*r.ExpFloat64()), From: uint32(from), To: uint32(to)})
	}
	return all
}

func sorted(t *testing.T, messages []Message) *spill.Sorted[Message, *Message] {
	t.Helper()
	f, err := spill.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	s := spill.NewSorter[Message](f, MessageBytes, 0)
	if err := s.Add(messages); err != nil {
		t.Fatal(err)
	}
	out, err := s.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func repaired(t *testing.T, messages []Message, nodes int) []*Map {
	t.Helper()
	jumps, err := Repair(sorted(t, messages), nodes, 4*MessageBytes)
	if err != nil {
		t.Fatal(err)
	}
	maps := make([]*Map, nodes)
	for i, x := range jumps {
		maps[i] = (*Map)(nil).WithJumps(x)
		for k := 1; k < len(x); k++ {
			if x[k].At <= x[k-1].At || x[k].By <= x[k-1].By {
				t.Fatalf("node %d: jump %+v behind %+v", i, x[k], x[k-1])
			}
		}
	}
	return maps
}

func violations(messages []Message, maps []*Map) (n int) {
	for _, m := range messages {
		if maps[m.To].NS(m.Received) < maps[m.From].NS(m.Sent) {
			n++
		}
	}
	return n
}

// Whatever the clocks, no message is received before it was sent afterwards, the order of each node's own times is kept, the order in
// which messages come does not matter, and what is kept of a node is bounded.
func TestRepairKeepsOrderAndLeavesNothing(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 3))
		nodes := 2 + r.IntN(8)
		messages := traffic(r, nodes, 3000, []float64{0, 500, 1e5, 1e9}[seed%4])
		maps := repaired(t, messages, nodes)
		before := violations(messages, make([]*Map, nodes))
		if seed%4 > 0 && before == 0 {
			t.Errorf("seed %d: nothing to repair", seed)
		}
		if n := violations(messages, maps); n > 0 {
			t.Fatalf("seed %d: %d of %d are left", seed, n, before)
		}
		r.Shuffle(len(messages), func(i, j int) { messages[i], messages[j] = messages[j], messages[i] })
		for i, m := range repaired(t, messages, nodes) {
			if (m == nil) != (maps[i] == nil) || (m != nil && !slices.Equal(m.jumps, maps[i].jumps)) {
				t.Fatalf("seed %d: node %d is repaired otherwise", seed, i)
			}
			if m != nil && len(m.jumps) > 64*steps(m.jumps) {
				t.Errorf("seed %d: node %d has %d jumps up to %d", seed, i, len(m.jumps), m.jumps[len(m.jumps)-1].By)
			}
		}
	}
}

// steps is how often the least jump may have been doubled for the last delay, and twice.
func steps(jumps []Jump) int {
	n := 2
	for by := jumps[len(jumps)-1].By; by > 0; by /= 2 {
		n++
	}
	return n
}

// Messages of which each was received before another was sent cannot be brought in order: they end nothing, and the others are in order.
func TestRepairOfTheImpossible(t *testing.T) {
	circle := []Message{{From: 0, To: 1, Sent: 100, Received: 50}, {From: 1, To: 0, Sent: 60, Received: 40}}
	others := []Message{{From: 0, To: 2, Sent: 300, Received: 200}, {From: 2, To: 1, Sent: 210, Received: 900}}
	maps := repaired(t, append(slices.Clone(circle), others...), 3)
	n := violations(circle, maps)
	if n == 0 {
		t.Error("the impossible was done")
	}
	all := append(slices.Clone(circle), others...)
	jumps, err := Repair(sorted(t, all), 3, 0)
	if err != nil {
		t.Fatal(err)
	}
	if left, err := Left(sorted(t, all), jumps); err != nil || left != int64(n) {
		t.Errorf("%d are said to be left of %d, %v", left, n, err)
	}
	if n := violations(others, maps); n > 0 {
		t.Errorf("%d that could be in order are not", n)
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 50 { // any messages at all: it comes to an end
		var any []Message
		for range 200 {
			any = append(any, Message{r.Int64N(1000), r.Int64N(1000), uint32(r.IntN(4)), uint32(r.IntN(4))})
		}
		repaired(t, any, 4)
	}
}
