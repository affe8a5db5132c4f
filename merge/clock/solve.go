package clock

import (
	"math"
	"slices"
)

// Rates of clocks to each other.
const (
	// strangers is how far the rate of a node's clock may be off that of the reference where nothing has told: crystals, and what a
	// daemon that slews makes of them.
	strangers = 3e-4
	// wander is how far the rate of a counter may move while a run goes on, by temperature.
	wander = 1e-6
)

// Sizes of what is computed.
const (
	rateKnots  = 17
	maxKnots   = 256
	knotBudget = 1 << 20 // knots of all nodes
)

// Node is a node whose clock is to be put beside the others.
type Node struct {
	From, To int64 // first and last time of interest, by the node's own clock
	Changing bool  // its counter does not promise a constant rate
}

// Reading says how far a node's clock was ahead of a source's time, at a time of the node's clock.
type Reading struct {
	Node, Source int
	At           int64
	Offset       int64
	Error        int64 // the true offset is no further away
}

// Problem is what is known of the clocks of several nodes: by messages between them, and by readings of sources of time.
type Problem struct {
	Nodes     []Node
	Bounds    *Bounds // nil: no messages
	Readings  []Reading
	Sources   int
	Reference int // a node, or len(Nodes) and more a source: its time is what all are taken to
}

// Solution is how the clocks of all nodes lead to that of the reference.
type Solution struct {
	Nodes []Placed
	// SlackNS is by how much every bound had to be widened before they agreed; 0 where they do.
	SlackNS   float64
	Triangles Triangles
}

// Placed is the clock of a node beside the reference's.
type Placed struct {
	Known      bool    // there are bounds on both sides
	Map        *Map    // from the node's clock to the reference's; nil where not known
	Error      float64 // bound, ns, from Node.From to Node.To
	Offset     int64   // how far the node's clock is ahead, ns, at Node.From
	Drift      float64 // by how much its rate is more, relatively, over all of the time
	DriftError float64 // bound of that
}

// edge says how far the clock of b may be ahead of that of a.
type edge struct {
	a, b         int
	slots        []slot // by a's clock
	upper, lower []anchor
}

// anchor is a bound at a time; it grows with the distance.
type anchor struct{ at, bound float64 }

type solver struct {
	*Problem
	edges   []edge
	start   int64     // of the reference's time: what at counts from
	coarse  []int64   // by vertex: how far the clock is ahead at start, about
	rate    []float64 // how much more its rate is
	unsure  []float64 // how far that may be off
	reached []bool
	slack   float64
	length  float64
}

// Solve finds for each node and time the least and the greatest offset to the reference that contradict nothing, and takes the middle. What lies
// in the middle for all nodes contradicts nothing between two of them either. Bounds are carried from one time to another by the most that
// rates may differ, which is learnt first.
func Solve(p *Problem) *Solution {
	s := &solver{Problem: p}
	s.connect()
	out := &Solution{Nodes: make([]Placed, len(p.Nodes))}
	if !s.place() {
		return out
	}
	for range 2 {
		s.learn()
	}
	n := min(max(knotBudget/max(len(s.reached), 1), rateKnots), maxKnots)
	times := s.knots(n)
	low, high := s.close(times, true)
	for i := range p.Nodes {
		out.Nodes[i] = s.placed(i, times, s.between(i, times, low, -1), s.between(i, times, high, 1))
	}
	out.SlackNS, out.Triangles = s.slack, s.triangles(times)
	return out
}

// connect makes the edges, in an order of their own.
func (s *solver) connect() {
	if s.Bounds != nil {
		for key, p := range s.Bounds.pairs {
			s.edges = append(s.edges, edge{a: int(key[0]), b: int(key[1]), slots: p.slots})
		}
	}
	bySource := map[[2]int][]slot{}
	for _, r := range s.Readings {
		key := [2]int{r.Node, len(s.Nodes) + r.Source}
		bySource[key] = append(bySource[key], slot{upper: r.Error - r.Offset, lower: -r.Error - r.Offset, upperAt: r.At, lowerAt: r.At})
	}
	for key, slots := range bySource {
		slices.SortFunc(slots, func(a, b slot) int { return int(min(max(a.upperAt-b.upperAt, -1), 1)) })
		s.edges = append(s.edges, edge{a: key[0], b: key[1], slots: slots})
	}
	slices.SortFunc(s.edges, func(x, y edge) int { return (x.a-y.a)*2 + min(max(x.b-y.b, -1), 1) })
}

// rough is how far the clock of an edge's b is ahead, about.
func (e *edge) rough() int64 {
	for _, x := range e.slots {
		if x.upper != noUpper && x.lower != noLower {
			return x.lower + (x.upper-x.lower)/2
		}
	}
	if x := e.slots[0]; x.upper != noUpper {
		return x.upper
	}
	return e.slots[0].lower
}

// place finds out about where each clock is, and the time of the run. It returns false where nothing leads to the reference.
func (s *solver) place() bool {
	n := len(s.Nodes) + s.Sources
	s.coarse, s.rate, s.unsure, s.reached = make([]int64, n), make([]float64, n), make([]float64, n), make([]bool, n)
	near := make([][]int, n)
	for i, e := range s.edges {
		if len(e.slots) > 0 {
			near[e.a], near[e.b] = append(near[e.a], i), append(near[e.b], i)
		}
	}
	s.reached[s.Reference] = true
	for queue := []int{s.Reference}; len(queue) > 0; queue = queue[1:] {
		v := queue[0]
		if v != s.Reference {
			s.unsure[v] = strangers
		}
		for _, i := range near[v] {
			e := &s.edges[i]
			to, ahead := e.b, e.rough()
			if to == v {
				to, ahead = e.a, -ahead
			}
			if !s.reached[to] {
				s.reached[to], s.coarse[to] = true, s.coarse[v]+ahead
				queue = append(queue, to)
			}
		}
	}
	from, to := int64(math.MaxInt64), int64(math.MinInt64)
	for i, x := range s.Nodes {
		if s.reached[i] {
			from, to = min(from, x.From-s.coarse[i]), max(to, x.To-s.coarse[i])
		}
	}
	s.start, s.length = from, float64(to-from)
	return from <= to
}

// knots are n times, evenly over the run, and one to each side.
func (s *solver) knots(n int) []float64 {
	gap := max(s.length/float64(n-3), 1000)
	t := make([]float64, n)
	for i := range t {
		t[i] = math.Round(gap * float64(i-1))
	}
	return t
}

// prepare takes all bounds to the reference's time, offsets and rates out.
func (s *solver) prepare() {
	for i := range s.edges {
		e := &s.edges[i]
		if !s.reached[e.a] || !s.reached[e.b] {
			continue
		}
		apart, turn, grow := s.coarse[e.b]-s.coarse[e.a], s.rate[e.b]-s.rate[e.a], s.unsure[e.a]+s.unsure[e.b]
		e.upper, e.lower = e.upper[:0], e.lower[:0]
		at := func(own int64) float64 { return float64(own-s.coarse[e.a]-s.start) / (1 + s.rate[e.a]) }
		for _, x := range e.slots {
			if x.upper != noUpper {
				t := at(x.upperAt)
				e.upper = append(e.upper, anchor{t, float64(x.upper-apart) - float64(turn*t)})
			}
			if x.lower != noLower {
				t := at(x.lowerAt)
				e.lower = append(e.lower, anchor{t, -(float64(x.lower-apart) - float64(turn*t))})
			}
		}
		tighten(e.upper, grow)
		tighten(e.lower, grow)
	}
}

// tighten lets each bound hold for its neighbours, with what may have come between.
func tighten(all []anchor, grow float64) {
	slices.SortFunc(all, func(a, b anchor) int {
		switch {
		case a.at < b.at:
			return -1
		case a.at > b.at:
			return 1
		}
		return 0
	})
	for i := 1; i < len(all); i++ {
		all[i].bound = min(all[i].bound, all[i-1].bound+float64(grow*(all[i].at-all[i-1].at)))
	}
	for i := len(all) - 2; i >= 0; i-- {
		all[i].bound = min(all[i].bound, all[i+1].bound+float64(grow*(all[i+1].at-all[i].at)))
	}
}

// boundAt is what tightened bounds say of a time.
func boundAt(all []anchor, t, grow float64) float64 {
	i, _ := slices.BinarySearchFunc(all, t, func(a anchor, t float64) int {
		if a.at < t {
			return -1
		}
		return 1
	})
	w := math.Inf(1)
	if i < len(all) {
		w = all[i].bound + float64(grow*(all[i].at-t))
	}
	if i > 0 {
		w = min(w, all[i-1].bound+float64(grow*(t-all[i-1].at)))
	}
	return w
}

// arc is an edge at one time: b's offset is at most a's and weight.
type arc struct {
	a, b   int
	weight float64
}

// close returns the least and the greatest offset of each vertex at each time. Where bounds contradict each other they are widened until
// they do not; with all, for all times alike.
func (s *solver) close(times []float64, all bool) (low, high [][]float64) {
	s.prepare()
	low, high = make([][]float64, len(times)), make([][]float64, len(times))
	for again := true; again; {
		again = false
		for k, t := range times {
			arcs := s.arcs(t)
			for {
				var ok1, ok2 bool
				high[k], ok1 = s.shortest(arcs, false)
				low[k], ok2 = s.shortest(arcs, true)
				if ok1 && ok2 {
					break
				}
				again = again || (all && k > 0)
				s.slack = max(2*s.slack, 1)
			}
			for i := range low[k] {
				low[k][i] = -low[k][i]
			}
		}
	}
	return low, high
}

func (s *solver) arcs(t float64) []arc {
	arcs := make([]arc, 0, 2*len(s.edges))
	for i := range s.edges {
		e := &s.edges[i]
		grow := s.unsure[e.a] + s.unsure[e.b]
		if len(e.upper) > 0 {
			arcs = append(arcs, arc{e.a, e.b, boundAt(e.upper, t, grow)})
		}
		if len(e.lower) > 0 {
			arcs = append(arcs, arc{e.b, e.a, boundAt(e.lower, t, grow)})
		}
	}
	return arcs
}

// shortest returns the length of the shortest way from the reference to each vertex, or from each to it. It is false where there is none,
// because a circle leads ever lower.
func (s *solver) shortest(arcs []arc, back bool) ([]float64, bool) {
	dist := make([]float64, len(s.reached))
	for i := range dist {
		dist[i] = math.Inf(1)
	}
	dist[s.Reference] = 0
	for range len(dist) + 1 {
		changed := false
		for _, x := range arcs {
			from, to := x.a, x.b
			if back {
				from, to = to, from
			}
			if d := dist[from] + x.weight + s.slack; d < dist[to]-1e-3 {
				dist[to], changed = d, true
			}
		}
		if !changed {
			return dist, true
		}
		if dist[s.Reference] < 0 {
			return nil, false
		}
	}
	return nil, false
}

// learn takes out the rates that the bounds tell.
func (s *solver) learn() {
	times := s.knots(rateKnots)
	low, high := s.close(times, false)
	s.slack = 0
	for v := range s.reached {
		if v == s.Reference || !s.reached[v] {
			continue
		}
		middle := func(k int) float64 { return low[k][v] + (high[k][v]-low[k][v])/2 }
		half := func(k int) float64 { return (high[k][v] - low[k][v]) / 2 }
		unsure, turn, at := s.unsure[v], 0.0, 0
		for i := range times {
			if half(i) < half(at) {
				at = i
			}
			if s.changing(v) {
				continue
			}
			for j := i + 1; j < len(times); j++ {
				gap := times[j] - times[i]
				if u := (half(i)+half(j))/gap + wander; u < unsure {
					unsure, turn = u, (middle(j)-middle(i))/gap
				}
			}
		}
		if math.IsInf(half(at), 1) || math.IsNaN(half(at)) {
			continue
		}
		s.coarse[v] += int64(math.Round(middle(at) - float64(turn*times[at])))
		s.rate[v] += turn
		s.unsure[v] = unsure
	}
}

func (s *solver) changing(v int) bool { return v < len(s.Nodes) && s.Nodes[v].Changing }

// between returns the bounds of a node on one side, high or with sign -1 low, made tighter where the nearest times that are known well are far:
// at a constant rate a clock is between them where the line from one to the other is, but for what the rate wanders.
func (s *solver) between(i int, times []float64, bounds [][]float64, sign float64) []float64 {
	b := make([]float64, len(times))
	for k := range b {
		b[k] = sign * bounds[k][i]
		if math.IsInf(b[k], 0) || math.IsNaN(b[k]) {
			return nil
		}
	}
	var hull []int // convex from below
	for k := range b {
		for len(hull) > 1 {
			p, q := hull[len(hull)-2], hull[len(hull)-1]
			if (b[q]-b[p])*(times[k]-times[p]) < (b[k]-b[p])*(times[q]-times[p]) {
				break
			}
			hull = hull[:len(hull)-1]
		}
		hull = append(hull, k)
	}
	for n := 0; n+1 < len(hull) && !s.changing(i); n++ {
		p, q := hull[n], hull[n+1]
		for k := p + 1; k < q; k++ {
			before, behind, gap := times[k]-times[p], times[q]-times[k], times[q]-times[p]
			b[k] = min(b[k], b[p]+float64((b[q]-b[p])*before/gap)+float64(2*wander*before*behind/gap))
		}
	}
	for k := range b {
		b[k] *= sign
	}
	return b
}

// placed makes the outcome of a node.
func (s *solver) placed(i int, times, low, high []float64) Placed {
	if i == s.Reference {
		return Placed{Known: true, Map: &Map{}}
	}
	if low == nil || high == nil || !s.reached[i] {
		return Placed{}
	}
	x := Placed{Known: true}
	var points []Point
	gap := times[1] - times[0]
	from, to := s.Nodes[i].From, s.Nodes[i].To
	var begin, end float64 // bounds about the first time and the last
	for k, t := range times {
		half := (high[k] - low[k]) / 2
		offset := s.coarse[i] + int64(math.Round(float64(s.rate[i]*t)+low[k]+half))
		at := s.start + int64(t)
		own := at + offset
		points = append(points, Point{own, at})
		if own > from-int64(gap) && own < to+int64(gap) {
			x.Error = max(x.Error, half)
			if own < from+int64(gap) {
				begin = max(begin, half)
			}
			if own > to-int64(gap) {
				end = max(end, half)
			}
		}
	}
	x.Error = math.Ceil(x.Error + s.unsure[i]*gap/2 + 1)
	x.Map = newMap(points)
	x.Offset = from - x.Map.NS(from)
	if to > from {
		x.Drift = float64(to-x.Map.NS(to)-x.Offset) / float64(to-from)
		x.DriftError = (begin + end + s.unsure[i]*gap + 2) / float64(to-from)
		x.DriftError = min(x.DriftError, math.Abs(x.Drift-s.rate[i])+s.unsure[i]) // what is supposed of rates holds for a short run, too
	}
	return x
}
