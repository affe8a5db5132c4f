// Package clock turns ticks of a node's counter into nanoseconds since the Unix epoch, from the pairs of readings that the processes
// of the node left, and says how far off that may be.
package clock

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"sort"
)

// Pair is one reading: the wall clock was read between two reads of the counter.
type Pair struct {
	Before, After uint64 // ticks
	Realtime      int64  // CLOCK_REALTIME, ns since the Unix epoch
	Monotonic     int64  // CLOCK_MONOTONIC, ns, read right after
}

func (p Pair) mid() uint64 { return p.Before + (p.After-p.Before)/2 }

// Limits of the fit, in nanoseconds.
const (
	knotSpacing  = int64(1e9) // knots closer than this would turn a reading's error into an error of rate
	minSpan      = int64(1e8) // pairs further apart than this tell the rate better than a nominal frequency
	stepLimit    = int64(1e6) // a smaller change between wall clock and monotonic clock is a delayed reading
	fractionBits = 32
)

// Clock maps ticks to nanoseconds, piecewise linear. It is safe for concurrent use.
type Clock struct {
	Steps    int     // steps of the wall clock that were taken out
	StepNS   int64   // their sum; times are those of the wall clock after the last
	errorNS  float64 // between the outermost pairs
	reason   string  // why the error is not known
	changing bool    // the counter does not promise a constant rate
	ends     float64 // relative error of the rate beyond the outermost pairs
	first    uint64  // the outermost pairs
	last     uint64
	knots    []knot
}

// knot is where a piece begins: ns = base + (ticks-at)*rate/2^32.
type knot struct {
	at   uint64
	base int64
	rate uint64
}

// Error returns the bound of the error against the node's wall clock, in nanoseconds, for times from one tick to another, or why
// none is known. It grows with the distance from the outermost pairs.
func (c *Clock) Error(from, to uint64) (ns float64, reason string) {
	if c.reason != "" {
		return 0, c.reason
	}
	beyond := int64(0)
	if from < c.first {
		beyond = c.NS(c.first) - c.NS(from)
	}
	if to > c.last {
		beyond = max(beyond, c.NS(to)-c.NS(c.last))
	}
	return c.errorNS + c.ends*float64(beyond), ""
}

// NS returns the time of a tick. Before the first and behind the last knot the nearest piece is continued.
func (c *Clock) NS(ticks uint64) int64 {
	i := sort.Search(len(c.knots), func(i int) bool { return c.knots[i].at > ticks })
	return c.knots[max(i-1, 0)].ns(ticks)
}

func (k *knot) ns(ticks uint64) int64 {
	if ticks < k.at {
		return k.base - scale(k.at-ticks, k.rate)
	}
	return k.base + scale(ticks-k.at, k.rate)
}

// Duration returns how long a number of ticks from a time on lasts.
func (c *Clock) Duration(from, ticks uint64) int64 { return c.NS(from+ticks) - c.NS(from) }

// scale returns d*rate/2^32, at most the largest int64.
func scale(d, rate uint64) int64 {
	hi, lo := bits.Mul64(d, rate)
	if hi >= 1<<(fractionBits-1) {
		return math.MaxInt64 / 4
	}
	return int64(hi<<(64-fractionBits) | lo>>fractionBits)
}

// Fit makes the clock of a node from all pairs of its processes. hz is the counter's nominal frequency, 0 where not known;
// invariant says whether the counter keeps its rate; fallback is a wall-clock time for nodes without any pair, taken as that of
// tick fallbackTicks.
func Fit(pairs []Pair, hz uint64, invariant bool, fallbackTicks uint64, fallback int64) *Clock {
	pairs = usable(pairs)
	c := &Clock{changing: !invariant}
	if len(pairs) == 0 {
		rate := uint64(1) << fractionBits
		c.reason = "no clock pair and no frequency"
		if hz > 0 {
			rate = rateOf(1e9, hz)
			c.reason = "no clock pair"
		}
		c.knots = []knot{{fallbackTicks, fallback, rate}}
		return c
	}
	pairs = c.takeOutSteps(pairs)
	kept := thin(pairs, spacing(pairs))
	c.fit(kept, hz)
	if c.reason == "" && !invariant {
		c.reason = "the counter does not promise a constant rate"
	}
	c.bound(pairs, kept)
	return c
}

// usable sorts the pairs by time and drops those that no reading can have given.
func usable(pairs []Pair) []Pair {
	var ok []Pair
	for _, p := range pairs {
		if p.After >= p.Before && p.After-p.Before < 1<<40 && p.Realtime > 0 && p.Realtime < math.MaxInt64/2 && p.Monotonic >= 0 {
			ok = append(ok, p)
		}
	}
	slices.SortFunc(ok, func(a, b Pair) int {
		return cmp.Or(cmp.Compare(a.mid(), b.mid()), cmp.Compare(a.After-a.Before, b.After-b.Before), cmp.Compare(a.Realtime, b.Realtime))
	})
	return ok
}

// takeOutSteps moves what came before a step of the wall clock to the wall clock after it. The monotonic clock tells a step: it
// does not take part. One pair alone that disagrees with its neighbours was read late, and is dropped.
func (c *Clock) takeOutSteps(pairs []Pair) []Pair {
	offset := func(i int) int64 { return pairs[i].Realtime - pairs[i].Monotonic }
	apart := func(i, j int) bool { d := offset(i) - offset(j); return d > stepLimit || d < -stepLimit }
	var kept []Pair
	for i := range pairs {
		if i > 0 && i+1 < len(pairs) && apart(i, i-1) && apart(i, i+1) && !apart(i-1, i+1) {
			continue
		}
		kept = append(kept, pairs[i])
	}
	pairs = kept
	shift := int64(0)
	for i := len(pairs) - 1; i >= 0; i-- {
		before := shift
		if i > 0 && apart(i, i-1) {
			step := offset(i) - offset(i-1)
			c.Steps++
			c.StepNS += step
			before += step
		}
		pairs[i].Realtime += shift
		pairs[i].Monotonic += shift // keeps offset(i) as it was read
		shift = before
	}
	return pairs
}

// spacing returns how many ticks knots are to be apart: knotSpacing, or a third of a shorter run.
func spacing(pairs []Pair) uint64 {
	first, last := pairs[0], pairs[len(pairs)-1]
	ticks, ns := last.mid()-first.mid(), last.Realtime-first.Realtime
	if ns <= 0 || ns < 3*knotSpacing {
		return max(ticks/3, 1)
	}
	return uint64(float64(ticks) / float64(ns) * float64(knotSpacing))
}

// thin keeps the tightest pair of each stretch of spacing ticks. Kept pairs are at least half of that apart.
func thin(pairs []Pair, spacing uint64) []Pair {
	var kept []Pair
	for i := 0; i < len(pairs); {
		best, end := i, i
		for ; end < len(pairs) && pairs[end].mid()-pairs[i].mid() < spacing; end++ {
			if pairs[end].After-pairs[end].Before < pairs[best].After-pairs[best].Before {
				best = end
			}
		}
		p := pairs[best]
		if n := len(kept); n == 0 || (p.mid()-kept[n-1].mid() >= spacing/2 && p.Realtime > kept[n-1].Realtime) {
			kept = append(kept, p)
		}
		i = end
	}
	return kept
}

// nominalError is how far a nominal frequency may be off, relatively.
const nominalError = 1e-4

// fit draws the pieces through the knots. Where they are too few or too close, the rate is the nominal one.
func (c *Clock) fit(kept []Pair, hz uint64) {
	n := len(kept)
	if n == 1 || (hz > 0 && kept[n-1].Realtime-kept[0].Realtime < minSpan) {
		rate := uint64(1) << fractionBits
		c.ends = nominalError
		if hz > 0 {
			rate = rateOf(1e9, hz)
		} else {
			c.reason = "one clock pair and no frequency"
		}
		c.knots = []knot{{kept[0].mid(), kept[0].Realtime, rate}}
		return
	}
	for i := 0; i+1 < n; i++ {
		a, b := kept[i], kept[i+1]
		rate := rateOf(float64(b.Realtime-a.Realtime), b.mid()-a.mid())
		c.knots = append(c.knots, knot{a.mid(), a.Realtime, rate})
	}
}

// rateOf returns ns per tick as a fraction of 2^32, at least 1.
func rateOf(ns float64, ticks uint64) uint64 {
	if ticks == 0 {
		return 1 << fractionBits
	}
	r := ns / float64(ticks) * (1 << fractionBits)
	return uint64(min(max(r, 1), 1<<52))
}

// bound sets the error: half a bracket's width where the line goes through a reading, and what readings lie off the line beyond
// the half width of their own bracket.
func (c *Clock) bound(pairs, kept []Pair) {
	half := func(p Pair) float64 { return max(float64(c.Duration(p.Before, p.After-p.Before))/2, 1) }
	for _, p := range kept {
		c.errorNS = max(c.errorNS, half(p))
	}
	for _, p := range pairs {
		c.errorNS = max(c.errorNS, math.Abs(float64(c.NS(p.mid())-p.Realtime))-half(p))
	}
	c.first, c.last = pairs[0].mid(), pairs[len(pairs)-1].mid()
	if n := len(kept); n > 1 && c.ends == 0 {
		ends := func(a, b Pair) float64 { return (half(a) + half(b)) / float64(b.Realtime-a.Realtime) }
		c.ends = max(ends(kept[0], kept[1]), ends(kept[n-2], kept[n-1]))
	}
}
