package merge

import (
	"fmt"
	"math"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// summary writes what is known of the clock of each node.
func (c *ClockInfo) summary(line func(string, ...any)) {
	for _, n := range c.Nodes {
		switch {
		case n.ErrorNS == nil:
			line("clock of %s: error not known: %s", n.Host, n.Reason)
		case n.OffsetNS == nil:
			line("clock of %s: within %v of its system clock", n.Host, time.Duration(*n.ErrorNS))
		case n.Source == systemClock:
			line("clock of %s: within %v of its system clock, which the run's times follow", n.Host, time.Duration(*n.ErrorNS))
		default:
			line("clock of %s: within %v by %s; its system clock was %v off%s", n.Host, time.Duration(*n.ErrorNS), n.Source, time.Duration(*n.OffsetNS), drift(&n))
		}
	}
	for _, n := range c.Nodes {
		for _, p := range n.Problems {
			line("clock of %s: %s", n.Host, p)
		}
	}
	for _, w := range c.Warnings {
		line("warning: clock: %s", w)
	}
	if r := c.Repaired; r != nil && r.Count > 0 {
		line("clock: times were moved, by up to %v, so that %d messages are not received before they were sent", time.Duration(r.MostNS), r.Count)
	}
}

func drift(n *ops.Clock) string {
	switch most := n.DriftErrorPPM; {
	case n.DriftPPM == nil || most == nil:
		return ""
	case math.Abs(*n.DriftPPM) <= *most: // nothing but the bound is known of it
		return fmt.Sprintf(" and gained or lost no more than %.3g ppm", math.Abs(*n.DriftPPM)+*most)
	}
	return fmt.Sprintf(" and gained %.3g ppm", *n.DriftPPM)
}
