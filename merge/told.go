package merge

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
	"github.com/sigmatrace/sigmatrace/merge/clock"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// told is what the account says of the run's clock.
type told struct {
	source    string
	nodes     []ops.Clock
	repaired  *Repaired
	triangles *Triangles
	slack     int64
	warnings  []string
}

// tell describes the run's clock, node by node.
func (c *clocks) tell() told {
	t := told{nodes: []ops.Clock{}, source: c.source()}
	if len(c.nodes) == 0 {
		t.source = ""
	}
	if c.solution != nil {
		t.slack = int64(math.Ceil(c.solution.SlackNS))
	}
	for i := range c.nodes {
		n := c.node(i)
		if limit := c.opts.ClockWarnAbove; limit > 0 && (n.ErrorNS == nil || *n.ErrorNS > float64(limit.Nanoseconds())) {
			n.Above = true
			t.warnings = append(t.warnings, c.warning(&n, limit))
		}
		if x := c.nodes[i].state.contradicted; x > 0 {
			t.warnings = append(t.warnings, fmt.Sprintf("%s: messages contradict its calibrations, by %v or more: these are not used", n.Host, time.Duration(x)))
		}
		t.nodes = append(t.nodes, n)
	}
	if t.slack > 0 {
		t.warnings = append(t.warnings, fmt.Sprintf("messages between nodes contradict each other by %v, which is in the bounds: a clock that did not go evenly, or a wrong match", time.Duration(t.slack)))
	}
	if c.repair != nil {
		t.repaired = &c.repair.Repaired
	}
	if c.solution != nil && c.solution.Triangles.Count > 0 {
		x := c.solution.Triangles
		t.triangles = &Triangles{Count: x.Count, MeanNS: math.Round(x.Mean*10) / 10, WorstNS: math.Round(x.Worst*10) / 10}
	}
	for _, w := range t.warnings {
		c.opts.Log.Warn("clock", "problem", w)
	}
	return t
}

func (c *clocks) warning(n *ops.Clock, limit time.Duration) string {
	if n.ErrorNS == nil {
		return fmt.Sprintf("%s: the error is not known, clock.warn_above is %v", n.Host, limit)
	}
	return fmt.Sprintf("%s: the error may be %v, clock.warn_above is %v", n.Host, time.Duration(*n.ErrorNS), limit)
}

// source names what places the run's times.
func (c *clocks) source() string {
	switch c.kind {
	case ClockMessages:
		return ClockMessages
	case ClockCalibration:
		name := c.sources[c.problem.Reference-len(c.nodes)]
		if strings.HasPrefix(name, "ptp ") {
			return string(calibration.PTP)
		}
		return c.otherSource()
	}
	return systemClock
}

// otherSource is the daemon whose word was taken: chrony where all have that.
func (c *clocks) otherSource() string {
	for i := range c.nodes {
		for _, r := range c.nodes[i].readings {
			if r.Source == calibration.NTP {
				return string(calibration.NTP)
			}
		}
	}
	return string(calibration.Chrony)
}

// node describes the clock of one.
func (c *clocks) node(i int) ops.Clock {
	n := &c.nodes[i]
	x := ops.Clock{Host: c.in.processes[n.first].header.Hostname, Source: systemClock, Problems: n.state.problems}
	if c.repair != nil {
		x.CorrectionNS = &c.repair.most[i]
	}
	own, reason := n.ownError(c.in)
	var placed *clock.Placed
	if c.solution != nil {
		placed = &c.solution.Nodes[i]
	}
	zero, still := int64(0), 0.0
	switch {
	case placed == nil && len(c.nodes) == 1: // times are those of its system clock
		x.ErrorNS, x.Reason, x.How = own, reason, "how the counter was read beside the system clock"
	case placed == nil:
		x.Reason = c.unplaced(n)
	case !placed.Known:
		x.Reason = c.unplaced(n)
	case i == c.problem.Reference:
		x.OffsetNS, x.DriftPPM = &zero, &still
		x.ErrorNS, x.Reason, x.How = own, reason, "the others' times are taken to those of its system clock: how its counter was read beside that"
	default:
		c.placed(i, placed, &x)
		if reason != "" {
			x.ErrorNS, x.Reason = nil, reason
		}
	}
	if x.Reason != "" {
		x.How = ""
	}
	return x
}

// placed describes a node that the solution places.
func (c *clocks) placed(i int, placed *clock.Placed, x *ops.Clock) {
	n := &c.nodes[i]
	m := n.free.Then(placed.Map).Then(c.back)
	offset := n.from - m.NS(n.from)
	x.OffsetNS = &offset
	if n.to > n.from {
		drift := float64(n.to-m.NS(n.to)-offset) / float64(n.to-n.from) * 1e6
		drift = math.Round(drift*1e4) / 1e4
		most := math.Ceil(placed.DriftError*1e10+1) / 1e4
		x.DriftPPM, x.DriftErrorPPM = &drift, &most
	}
	bound := placed.Error
	x.ErrorNS = &bound
	var residuals []clock.Reading
	for _, r := range c.problem.Readings {
		if r.Node == i {
			residuals = append(residuals, r)
		}
	}
	x.Readings = len(residuals)
	var how []string
	if x.Readings > 0 {
		x.Source = c.sourceOfNode(i)
		how = append(how, fmt.Sprintf("%d calibrations (%s)", x.Readings, n.state.how))
		if jitter, ok := clock.Jitter(residuals); ok {
			jitter = math.Round(jitter*10) / 10
			x.JitterNS = &jitter
		}
	} else {
		x.Source = ClockMessages
	}
	if c.problem.Bounds != nil {
		if messages := c.bounds.Of(uint32(i)); messages > 0 {
			how = append(how, fmt.Sprintf("%d matched messages with other nodes, each sent before it was received", messages))
		}
	}
	x.How = strings.Join(how, "; ") + "; in between by the rate that these tell, and 1 ppm"
}

func (c *clocks) sourceOfNode(i int) string {
	for _, r := range c.nodes[i].readings {
		if r.Source == calibration.PTP {
			return string(calibration.PTP)
		}
	}
	return string(c.nodes[i].readings[0].Source)
}

// ownError is the bound of the error against the node's own system clock.
func (n *clockNode) ownError(in *inventory) (*float64, string) {
	from, to := uint64(0), uint64(0)
	for _, p := range in.processes[n.first:n.end] {
		from, to = minTick(from, p.from), max(to, p.to)
	}
	ns, reason := n.clock.Error(from, to)
	if reason != "" {
		return nil, reason
	}
	ns = math.Ceil(ns)
	return &ns, ""
}

// unplaced is why nothing places a node.
func (c *clocks) unplaced(n *clockNode) string {
	switch {
	case n.state.contradicted > 0:
		return "messages contradict its calibrations"
	case n.state.reason != "":
		return n.state.reason
	case c.opts.ClockSource == ClockSystem:
		return "how the nodes' system clocks are synchronised is not looked at (clock.source = system)"
	case c.opts.ClockSource == ClockCalibration:
		return "no calibration of this node"
	}
	return "how the nodes' system clocks are synchronised is not known: no calibration, and no messages there and back with the other nodes"
}
