package clock

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

// Reading of the clock that GPU kernels are timed by: its time, and when it was read by the node's clock, in ns. HalfWidth is half of how long the reading took.
type GPUReading struct {
	GPU       uint64
	NS        int64
	HalfWidth float64
}

// GPU leads from the clock that a process's kernels are timed by to the node's: straight on between two readings, as the nearest two say beyond them.
type GPU struct {
	readings []GPUReading
	errorNS  float64
}

// NewGPU makes it of readings in any order; nil where there is none. Of two that contradict each other's order the wider one is left out.
func NewGPU(readings []GPUReading) *GPU {
	all := slices.Clone(readings)
	slices.SortStableFunc(all, func(a, b GPUReading) int {
		return cmp.Or(cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.HalfWidth, b.HalfWidth))
	})
	g := &GPU{}
	for _, r := range all {
		for n := len(g.readings); n > 0 && (r.NS <= g.readings[n-1].NS || r.GPU == g.readings[n-1].GPU) && r.HalfWidth < g.readings[n-1].HalfWidth; n-- {
			g.readings = g.readings[:n-1]
		}
		if n := len(g.readings); n == 0 || (r.NS > g.readings[n-1].NS && r.GPU > g.readings[n-1].GPU) {
			g.readings = append(g.readings, r)
		}
	}
	if len(g.readings) == 0 {
		return nil
	}
	g.bound()
	return g
}

// bound is the widest half of a reading, and by how much one lies beside the line of its neighbours: what the clocks wander between readings.
func (g *GPU) bound() {
	wander := 0.0
	for i, r := range g.readings {
		g.errorNS = max(g.errorNS, r.HalfWidth)
		if i > 0 && i+1 < len(g.readings) {
			wander = max(wander, math.Abs(float64(along(g.readings[i-1], g.readings[i+1], r.GPU)-r.NS)))
		}
	}
	g.errorNS += wander
}

func along(a, b GPUReading, at uint64) int64 {
	rate := float64(b.NS-a.NS) / float64(b.GPU-a.GPU)
	return a.NS + int64(math.Round(float64(int64(at-a.GPU))*rate))
}

// NS is a GPU time by the node's clock.
func (g *GPU) NS(at uint64) int64 {
	n := len(g.readings)
	if n == 1 {
		return g.readings[0].NS + int64(at-g.readings[0].GPU)
	}
	i := min(max(sort.Search(n, func(i int) bool { return g.readings[i].GPU > at }), 1), n-1)
	return along(g.readings[i-1], g.readings[i], at)
}

// ErrorNS is the bound of the error of NS between the first reading and the last, as far as the readings tell.
func (g *GPU) ErrorNS() float64 { return g.errorNS }
