package clock

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// simulation is a number of nodes whose clocks are known, exchanging messages and being calibrated.
type simulation struct {
	nodes   int
	seconds float64
	rate    float64 // messages a second, of each pair and direction
	peers   int     // of each node, besides the next: 0 a chain, nodes all
	delay   float64 // ns, of a round trip's half where both ways are alike
	queue   float64 // ns, mean of what a message waits on top
	burst   float64 // share of the time in which messages are sent; 0: all of it
	steps   int     // of each wall clock
	ptp     float64 // ns, mean path delay of PTP; 0: none
	jitter  float64 // ns, of its measurements
	every   float64 // seconds between calibrations
}

// simNode is the truth of one: ticks and wall clock as functions of true time in seconds.
type simNode struct {
	hz, phase, swing float64
	ahead            float64 // ns, of the wall clock
	slew             []float64
	steps            []float64 // when
	by               []float64
	clock            *Clock
	free             *Map
}

func (n *simNode) ticks(s float64) uint64 {
	return uint64(1e12 + n.hz*(s+n.swing*math.Sin(2*math.Pi*s/97+n.phase)))
}

// wall is the wall clock: it is steered anew every 16 seconds.
func (n *simNode) wall(s float64) int64 {
	ns := s*1e9 + n.ahead
	for i := range n.slew {
		from := float64(i) * 16
		if s > from {
			ns += n.slew[i] * (min(s, from+16) - from)
		}
	}
	for i, at := range n.steps {
		if s >= at {
			ns += n.by[i]
		}
	}
	return start + int64(ns)
}

func newSimNode(r *rand.Rand, sim *simulation) *simNode {
	n := &simNode{hz: 2e9 * (1 + 1e-4*(2*r.Float64()-1)), phase: 2 * math.Pi * r.Float64(), ahead: 3e10 * (2*r.Float64() - 1)}
	n.swing = 3e-7 * 97 / (2 * math.Pi) * r.Float64() // 0.3 ppm of the rate at most
	for range int(sim.seconds/16) + 1 {
		n.slew = append(n.slew, 20_000*(2*r.Float64()-1))
	}
	for range sim.steps {
		n.steps = append(n.steps, sim.seconds*(0.1+0.8*r.Float64()))
		n.by = append(n.by, 1e9*(2*r.Float64()-1))
	}
	var pairs []Pair
	stepped := 0.0
	for s := 0.001; s < sim.seconds+1; s += 1.3 {
		at, width := n.ticks(s), 60+r.Uint64N(400)
		read := s + float64(r.Uint64N(width))/n.hz
		wall := n.wall(read)
		stepped = 0
		for i, x := range n.steps {
			if read >= x {
				stepped += n.by[i]
			}
		}
		pairs = append(pairs, Pair{Before: at, After: at + width, Realtime: wall, Monotonic: wall - start - int64(stepped) + 1e11})
	}
	n.clock = Fit(pairs, 0, true, 0, 0)
	n.free = n.clock.Free()
	return n
}

// own is the free-running time that is recorded at a true time.
func (n *simNode) own(s float64) int64 { return n.free.NS(n.clock.NS(n.ticks(s))) }

// outcome of a simulation: errors and bounds at many times of all nodes, in ns.
type outcome struct {
	errors, bounds []float64
	outside        int
	drifts, wrong  int
	slack          float64
}

func (sim *simulation) run(seed uint64, o *outcome) {
	r := rand.New(rand.NewPCG(seed, 77))
	var nodes []*simNode
	for range sim.nodes {
		nodes = append(nodes, newSimNode(r, sim))
	}
	p := &Problem{}
	var origin []int64
	for _, n := range nodes {
		p.Nodes = append(p.Nodes, Node{From: n.own(0.01), To: n.own(sim.seconds)})
		origin = append(origin, n.own(0.01))
	}
	if sim.rate > 0 {
		p.Bounds = NewBounds(origin, int64(sim.seconds*1e9))
		for a := range nodes {
			for b := a + 1; b < len(nodes); b++ {
				if b != a+1 && b > a+sim.peers {
					continue
				}
				asymmetry := 2*r.Float64() - 1
				for _, way := range []float64{1, -1} {
					for s := 0.01; s < sim.seconds; s += r.ExpFloat64() / sim.rate {
						if sim.burst > 0 && math.Mod(s, 1) > sim.burst {
							continue
						}
						arrival := s + (sim.delay*(1+way*asymmetry)+sim.queue*r.ExpFloat64())/1e9
						if way > 0 {
							p.Bounds.Add(uint32(a), uint32(b), nodes[a].own(s), nodes[b].own(arrival))
						} else {
							p.Bounds.Add(uint32(b), uint32(a), nodes[b].own(s), nodes[a].own(arrival))
						}
					}
				}
			}
		}
	}
	truth := func(s float64) int64 { return nodes[0].own(s) }
	if sim.ptp > 0 {
		p.Sources, p.Reference = 1, len(nodes)
		truth = func(s float64) int64 { return start + int64(s*1e9) }
		for i, n := range nodes {
			asymmetry := 2*r.Float64() - 1
			for s := 0.005; s < sim.seconds+sim.every; s += sim.every {
				off := sim.ptp*asymmetry/2 + sim.jitter*(2*r.Float64()-1)
				p.Readings = append(p.Readings, Reading{Node: i, At: n.own(s), Offset: n.own(s) - truth(s) + int64(off), Error: int64(sim.ptp/2 + sim.jitter + 2)})
			}
		}
	}
	result := Solve(p)
	o.slack = max(o.slack, result.SlackNS)
	for i, n := range nodes {
		x := &result.Nodes[i]
		if i == p.Reference || !x.Known {
			continue
		}
		from, to := p.Nodes[i].From, p.Nodes[i].To
		drift := float64(to-truth(sim.seconds)-from+truth(0.01)) / float64(to-from)
		o.drifts++
		if math.Abs(x.Drift-drift) > x.DriftError {
			o.wrong++
		}
		for range 300 {
			s := 0.01 + r.Float64()*(sim.seconds-0.02)
			e := math.Abs(float64(x.Map.NS(n.own(s)) - truth(s)))
			o.errors, o.bounds = append(o.errors, e), append(o.bounds, x.Error)
			if e > x.Error {
				o.outside++
			}
		}
	}
}

// The true offset lies within the bound in at least 99.9 % of cases, and the bound is not a bound by being wide: at most three times what
// 99.9 % of the true errors are below.
func TestBoundsHoldAndAreNarrow(t *testing.T) {
	for _, x := range []struct {
		name string
		sim  simulation
	}{
		{"messages, two nodes", simulation{nodes: 2, seconds: 30, rate: 200, delay: 2000, queue: 3000}},
		{"messages, all pairs of five", simulation{nodes: 5, seconds: 20, rate: 50, peers: 5, delay: 5000, queue: 2000}},
		{"messages, a chain of four", simulation{nodes: 4, seconds: 20, rate: 100, delay: 5000, queue: 2000}},
		{"messages, in bursts", simulation{nodes: 2, seconds: 60, rate: 2000, burst: 0.05, delay: 10_000, queue: 3000}},
		{"messages, steps", simulation{nodes: 3, seconds: 40, rate: 100, peers: 3, delay: 5000, queue: 1000, steps: 2}},
		{"ptp", simulation{nodes: 4, seconds: 60, ptp: 2000, jitter: 100, every: 1}},
		{"ptp at begin and end", simulation{nodes: 4, seconds: 20, ptp: 20_000, jitter: 500, every: 20}},
		{"ptp, steps", simulation{nodes: 4, seconds: 60, ptp: 4000, jitter: 200, every: 2, steps: 3}},
		{"ptp and messages", simulation{nodes: 4, seconds: 30, ptp: 8000, jitter: 300, every: 1, rate: 100, peers: 4, delay: 5000, queue: 2000}},
	} {
		t.Run(x.name, func(t *testing.T) {
			var o outcome
			for seed := range uint64(40) {
				x.sim.run(seed, &o)
			}
			if o.slack > 0 {
				t.Errorf("true bounds are said to contradict each other, by %g ns", o.slack)
			}
			if len(o.errors) == 0 {
				t.Fatal("nothing is known")
			}
			slices.Sort(o.errors)
			slices.Sort(o.bounds)
			high := o.errors[int(float64(len(o.errors))*0.999)]
			within := 1 - float64(o.outside)/float64(len(o.errors))
			middle, most := o.bounds[len(o.bounds)/2], o.bounds[len(o.bounds)-1]
			t.Logf("%d cases, %.4f %% within; 99.9 %% of errors below %.0f ns; bounds: median %.0f ns (%.2f times), greatest %.0f ns (%.2f times)",
				len(o.errors), 100*within, high, middle, middle/high, most, most/high)
			if within < 0.999 {
				t.Errorf("%d of %d outside of their bound", o.outside, len(o.errors))
			}
			if o.wrong > o.drifts/1000 {
				t.Errorf("%d of %d drifts outside of their bound", o.wrong, o.drifts)
			}
			if most > 3*high {
				t.Errorf("bounds are up to %.0f ns, more than 3 times %.0f ns", most, high)
			}
		})
	}
}
