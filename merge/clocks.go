package merge

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
	"github.com/sigmatrace/sigmatrace/merge/clock"
	"github.com/sigmatrace/sigmatrace/merge/match"
	"github.com/sigmatrace/sigmatrace/merge/spill"
)

// What places the times of a run's nodes.
const (
	ClockAuto        = "auto"        // calibrations by PTP, else messages, else other calibrations, else the system clocks
	ClockCalibration = "calibration" // calibrations alone
	ClockMessages    = "messages"    // messages alone
	ClockSystem      = "system"      // nothing: the nodes' system clocks
)

// ClockSources are the values of Options.ClockSource.
var ClockSources = []string{ClockAuto, ClockCalibration, ClockMessages, ClockSystem}

// systemClock is the source of a node whose times nothing places.
const systemClock = "system clock"

// clockNode is a node of the run with what is known of its clock.
type clockNode struct {
	name     string
	first    int // its processes in the inventory: first to end
	end      int
	clock    *clock.Clock
	free     *clock.Map // from its times to those of its counter alone
	from, to int64      // times of interest
	readings []*calibration.Record
	state    calibrations
}

// clocks puts the nodes of a run on one clock.
type clocks struct {
	in    *inventory
	nodes []clockNode
	of    []uint32 // node of each process
	opts  *Options

	bounds   *clock.Bounds
	solution *clock.Solution
	problem  *clock.Problem
	sources  []string // of the problem
	kind     string   // what the solution is made of: ClockCalibration, ClockMessages or ClockSystem
	back     *clock.Map
	repair   *repairs
}

// clocksOf lists the nodes. It is called when all processes are paired: their times are known then.
func clocksOf(in *inventory, o *Options) *clocks {
	c := &clocks{in: in, opts: o, of: make([]uint32, len(in.processes)), kind: ClockSystem}
	for first := 0; first < len(in.processes); {
		n := clockNode{name: in.processes[first].node, first: first, end: first, from: math.MaxInt64, to: math.MinInt64}
		n.clock = in.clocks[n.name]
		n.free = n.clock.Free()
		for ; n.end < len(in.processes) && in.processes[n.end].node == n.name; n.end++ {
			p := in.processes[n.end]
			c.of[n.end] = uint32(len(c.nodes))
			if p.shown != (span{}) {
				n.from, n.to = min(n.from, p.shown.from), max(n.to, p.shown.to)
			}
		}
		if n.from > n.to { // it has no operation
			for _, p := range in.processes[n.first:n.end] {
				n.from, n.to = min(n.from, p.first), max(n.to, p.last)
			}
		}
		c.nodes = append(c.nodes, n)
		first = n.end
	}
	return c
}

// place finds out how the nodes' clocks lead to the run's, and tells matching.
func (c *clocks) place(ctx context.Context, sorted *spill.Sorted[match.Half, *match.Half], file *spill.File, b budget, run string, known *match.Knowledge) error {
	if c.opts.ClockSource != ClockSystem && c.opts.ClockSource != ClockMessages {
		if err := c.readCalibrations(run); err != nil {
			return err
		}
	}
	if len(c.nodes) > 1 && c.opts.ClockSource != ClockSystem {
		if err := c.gather(ctx, sorted, *known); err != nil {
			return err
		}
	}
	c.solve()
	c.maps()
	known.Clock = c.in.placed
	if c.opts.ClockRepair {
		c.repair = &repairs{most: make([]int64, len(c.nodes))}
	}
	if c.opts.ClockRepair && len(c.nodes) > 1 {
		if err := c.mend(ctx, sorted, file, b, known); err != nil {
			return err
		}
	}
	c.in.told = c.tell()
	return nil
}

// placed takes a time of a process to the run's clock.
func (in *inventory) placed(process uint32, ns int64) int64 {
	return in.processes[process].place.NS(ns)
}

// gather collects what the messages between nodes prove.
func (c *clocks) gather(ctx context.Context, sorted *spill.Sorted[match.Half, *match.Half], known match.Knowledge) error {
	var origin []int64
	span := int64(0)
	for i := range c.nodes {
		n := &c.nodes[i]
		origin, span = append(origin, n.free.NS(n.from)), max(span, n.to-n.from)
	}
	c.bounds = clock.NewBounds(origin, span)
	known.Message = func(s, r *match.Half, sure bool) error {
		if from, to := c.of[s.Process], c.of[r.Process]; sure && from != to {
			c.bounds.Add(from, to, c.nodes[from].free.NS(s.Post), c.nodes[to].free.NS(r.Done))
		}
		return nil
	}
	_, err := match.Run(ctx, sorted, nil, known, func(done, total int64) { c.opts.Progress(StageClocks, done, total) })
	return err
}

// solve tries what there is, and takes the first that places all nodes, else the one that places most.
func (c *clocks) solve() {
	best := 0
	try := func(kind string, byPTP, byOthers, messages bool) {
		if best == len(c.nodes) {
			return
		}
		p, sources := c.pose(byPTP, byOthers, messages)
		if p == nil {
			return
		}
		s := c.agree(p)
		if s == nil {
			return
		}
		placed := 0
		for i := range s.Nodes {
			if s.Nodes[i].Known {
				placed++
			}
		}
		if kind == ClockMessages && placed < 2 {
			return
		}
		if placed > best {
			best, c.solution, c.problem, c.sources, c.kind = placed, s, p, sources, kind
		}
	}
	switch c.opts.ClockSource {
	case ClockCalibration:
		try(ClockCalibration, true, false, false)
		try(ClockCalibration, true, true, false)
	case ClockMessages:
		try(ClockMessages, false, false, true)
	case ClockAuto:
		try(ClockCalibration, true, false, true)
		try(ClockMessages, false, false, true)
		try(ClockCalibration, true, true, true)
	}
}

// pose makes the problem; nil where there is nothing to solve.
func (c *clocks) pose(byPTP, byOthers, messages bool) (*clock.Problem, []string) {
	p := &clock.Problem{}
	for i := range c.nodes {
		n := &c.nodes[i]
		p.Nodes = append(p.Nodes, clock.Node{From: n.free.NS(n.from), To: n.free.NS(n.to), Changing: n.clock.Changing()})
	}
	if messages && c.bounds != nil && c.bounds.Messages() > 0 {
		p.Bounds = c.bounds
	}
	sources := c.readingsOf(p, byPTP, byOthers)
	switch {
	case len(p.Readings) > 0:
		nodes := make([]int, p.Sources)
		seen := map[[2]int]bool{}
		for _, r := range p.Readings {
			if key := [2]int{r.Node, r.Source}; !seen[key] {
				seen[key] = true
				nodes[r.Source]++
			}
		}
		p.Reference = len(p.Nodes) + slices.Index(nodes, slices.Max(nodes))
	case byPTP || byOthers || p.Bounds == nil:
		return nil, nil
	default:
		p.Reference = c.reference()
	}
	return p, sources
}

// reference is the node of the lowest rank, else the first.
func (c *clocks) reference() int {
	best := -1
	for i, p := range c.in.processes {
		if p.header.Rank >= 0 && (best < 0 || p.header.Rank < c.in.processes[best].header.Rank) {
			best = i
		}
	}
	return int(c.of[max(best, 0)])
}

// maxBlamed is the most calibrated nodes of which each is looked at on its own.
const maxBlamed = 64

// agree solves a problem. Calibrations that contradict the messages, which prove what they say, are left out, node by node; all of them where
// it cannot be told whose are wrong: the outcome is nil then.
func (c *clocks) agree(p *clock.Problem) *clock.Solution {
	s := clock.Solve(p)
	if s.SlackNS == 0 || len(p.Readings) == 0 || p.Bounds == nil {
		return s
	}
	alone := *p
	alone.Readings, alone.Sources, alone.Reference = nil, 0, c.reference()
	own := clock.Solve(&alone)
	if own.SlackNS >= s.SlackNS {
		return s // the messages contradict themselves
	}
	for s.SlackNS > own.SlackNS {
		nodes := map[int]bool{}
		for _, r := range p.Readings {
			nodes[r.Node] = true
		}
		worst, tied, least := -1, false, s
		for i := range c.nodes {
			if !nodes[i] || len(nodes) > maxBlamed {
				continue
			}
			q := *p
			q.Readings = slices.DeleteFunc(slices.Clone(p.Readings), func(r clock.Reading) bool { return r.Node == i })
			if x := clock.Solve(&q); x.SlackNS < least.SlackNS {
				worst, tied, least = i, false, x
			} else if worst >= 0 && x.SlackNS == least.SlackNS {
				tied = true
			}
		}
		blamed := func(r clock.Reading) bool { return r.Node == worst || worst < 0 || tied }
		for _, r := range p.Readings {
			if blamed(r) {
				state := &c.nodes[r.Node].state
				state.contradicted = max(state.contradicted, int64(math.Ceil(s.SlackNS)))
			}
		}
		if worst < 0 || tied {
			return nil
		}
		p.Readings = slices.DeleteFunc(p.Readings, blamed)
		s = least
	}
	return s
}

// maps makes of the solution how the times of each process lead to the run's clock.
func (c *clocks) maps() {
	if c.solution == nil {
		return
	}
	if r := c.problem.Reference; r < len(c.nodes) {
		c.back = c.nodes[r].free.Inverse()
	}
	for i := range c.nodes {
		n, x := &c.nodes[i], &c.solution.Nodes[i]
		if !x.Known || i == c.problem.Reference {
			continue
		}
		c.set(i, n.free.Then(x.Map).Then(c.back))
	}
}

func (c *clocks) set(node int, m *clock.Map) {
	for _, p := range c.in.processes[c.nodes[node].first:c.nodes[node].end] {
		p.place = m
	}
}

// repairs is what --clock-repair did.
type repairs struct {
	Repaired
	most []int64 // by node
}

// mend removes what is still received before it was sent.
func (c *clocks) mend(ctx context.Context, sorted *spill.Sorted[match.Half, *match.Half], file *spill.File, b budget, known *match.Knowledge) error {
	messages := spill.NewSorter[clock.Message](file, clock.MessageBytes, b.sort)
	var batch []clock.Message
	early := int64(0)
	look := *known
	look.Message = func(s, r *match.Half, sure bool) error {
		m := clock.Message{From: c.of[s.Process], To: c.of[r.Process], Sent: c.in.placed(s.Process, s.Post), Received: c.in.placed(r.Process, r.Done)}
		if !sure || m.From == m.To {
			return nil
		}
		if m.Received < m.Sent {
			early++
		}
		if batch = append(batch, m); len(batch) < 1024 {
			return nil
		}
		err := messages.Add(batch)
		batch = batch[:0]
		return err
	}
	if _, err := match.Run(ctx, sorted, nil, look, func(done, total int64) { c.opts.Progress(StageClocks, done, total) }); err != nil {
		return err
	}
	if err := messages.Add(batch); err != nil {
		return err
	}
	all, err := messages.Finish()
	if err != nil || early == 0 {
		return err
	}
	buffer := int(min(max(b.sort/int64(len(c.nodes)), clock.MessageBytes), 32<<10))
	jumps, err := clock.Repair(all, len(c.nodes), buffer)
	if err != nil {
		return err
	}
	// Which halves belong together is looked up by the clocks that it was found by.
	before := make([]*clock.Map, len(c.in.processes))
	for i, p := range c.in.processes {
		before[i] = p.place
	}
	known.Clock = func(process uint32, ns int64) int64 { return before[process].NS(ns) }
	known.Placed = c.in.placed
	left, err := clock.Left(all, jumps)
	if err != nil {
		return err
	}
	c.repair.Count = early - left
	for i, x := range jumps {
		if len(x) == 0 {
			continue
		}
		c.set(i, before[c.nodes[i].first].WithJumps(x))
		c.repair.most[i] = slices.MaxFunc(x, func(a, b clock.Jump) int { return cmp.Compare(a.By, b.By) }).By
		c.repair.MostNS = max(c.repair.MostNS, c.repair.most[i])
	}
	return nil
}
