package clock

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
)

// What is kept of messages does not depend on their order, is bounded, and node 0 keeps all its pairs.
func TestBoundsAreOfNoOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	const nodes = 400
	origin := make([]int64, nodes)
	var all []Message
	for i := range nodes {
		for j := range nodes {
			for range 3 {
				at := r.Int64N(1e12)
				all = append(all, Message{From: uint32(i), To: uint32(j), Sent: at, Received: at + r.Int64N(1e6)})
			}
		}
	}
	add := func() *Bounds {
		b := NewBounds(origin, 1e12)
		for _, m := range all {
			b.Add(m.From, m.To, m.Sent, m.Received)
		}
		b.last = nil
		return b
	}
	one := add()
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	two := add()
	if one.shift != two.shift || one.hashed != two.hashed || one.used != two.used || len(one.pairs) != len(two.pairs) {
		t.Fatalf("%d pairs of %d, then %d of %d", len(one.pairs), one.used, len(two.pairs), two.used)
	}
	own, slots := 0, 0
	for key, p := range one.pairs {
		if key[0] == 0 {
			own++
		}
		slots += len(p.slots)
		if !reflect.DeepEqual(p.slots, two.pairs[key].slots) {
			t.Fatalf("pair %v: %v and %v", key, p.slots, two.pairs[key].slots)
		}
	}
	if own != nodes-1 || len(one.pairs) > maxPairs || slots != one.used || slots > maxBuckets || one.hashed == 0 {
		t.Errorf("%d pairs of node 0, %d in all, %d stretches", own, len(one.pairs), slots)
	}
}

// A map never goes back, and back and forth is the same but for rounding, whatever its points.
func FuzzMap(f *testing.F) {
	f.Add(int64(0), int64(1000), int64(500), int64(3_000_000), int64(7), int64(-3))
	f.Add(int64(-5), int64(1), int64(2), int64(1<<40), int64(1<<30), int64(-1<<30))
	f.Fuzz(func(t *testing.T, start, gap1, gap2, gap3, skew, drift int64) {
		x, y := start%(1<<60), start%(1<<60)+skew%(1<<50)
		points := []Point{{x, y}}
		for _, g := range []int64{gap1, gap2, gap3} {
			g %= 1 << 50
			x, y = x+g, y+g+drift%max(g/4, 1)
			points = append(points, Point{x, y})
		}
		m := newMap(points)
		back := m.Inverse()
		for _, p := range m.points {
			last := int64(math.MinInt64)
			for d := int64(-20); d <= 20; d++ {
				to := m.NS(p.From + d)
				if to < last {
					t.Fatalf("%+v: %d leads to %d, one before to %d", m.points, p.From+d, to, last)
				}
				last = to
				if again := back.NS(to); again-p.From-d > 3 || again-p.From-d < -3 {
					t.Fatalf("%+v: %d there and back is %d", m.points, p.From+d, again)
				}
			}
		}
	})
}

// Bounds that cannot all be true are widened until they are, by no more than it takes and twice, and nothing is made up for nodes that nothing leads to.
func TestContradictionsAndStrangers(t *testing.T) {
	b := NewBounds(make([]int64, 4), 1e9)
	for at := int64(0); at < 1e9; at += 1e6 {
		b.Add(0, 1, at, at+1000)
		b.Add(1, 0, at, at-3000) // by 2000 more than can be
		b.Add(0, 2, at, at+1000) // one way only
	}
	nodes := []Node{{0, 1e9, false}, {0, 1e9, false}, {0, 1e9, false}, {0, 1e9, false}}
	s := Solve(&Problem{Nodes: nodes, Bounds: b})
	if s.SlackNS < 1000 || s.SlackNS > 2048 {
		t.Errorf("widened by %g", s.SlackNS)
	}
	if x := s.Nodes[1]; !x.Known || x.Offset < 1000 || x.Offset > 3000 {
		t.Errorf("%+v", x)
	}
	for _, i := range []int{2, 3} {
		if x := s.Nodes[i]; x.Known || x.Map != nil {
			t.Errorf("node %d: %+v", i, x)
		}
	}
}

// Messages, readings and times of any kind, as damaged captures tell them: it comes to an end, and what is told is no nonsense.
func TestAnythingIsSolved(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	for range 300 {
		size := int64(1) << (1 + r.IntN(60))
		any := func() int64 { return r.Int64N(size) - size/2 }
		n := 2 + r.IntN(4)
		p := &Problem{Bounds: NewBounds(make([]int64, n), size), Sources: 1, Reference: r.IntN(n + 1)}
		for range n {
			from := any()
			p.Nodes = append(p.Nodes, Node{from, from + r.Int64N(size), r.IntN(4) == 0})
		}
		for range r.IntN(40) {
			p.Bounds.Add(uint32(r.IntN(n)), uint32(r.IntN(n)), any(), any())
		}
		for range r.IntN(4) {
			p.Readings = append(p.Readings, Reading{r.IntN(n), 0, any(), any(), r.Int64N(size)})
		}
		s := Solve(p)
		for i, x := range s.Nodes {
			if x.Known && (math.IsNaN(x.Error) || x.Error < 0 || x.Map == nil) {
				t.Fatalf("node %d: %+v", i, x)
			}
			last := int64(math.MinInt64)
			for at := p.Nodes[i].From; x.Known && at < p.Nodes[i].To; at += (p.Nodes[i].To-p.Nodes[i].From)/97 + 1 {
				to := x.Map.NS(at)
				if to < last {
					t.Fatalf("node %d goes back from %d to %d", i, last, to)
				}
				last = to
			}
		}
	}
}
