package clock

import (
	"math"
	"math/rand/v2"
	"testing"
)

const start = int64(1_700_000_000_000_000_000)

// truth is a counter and the wall clock beside it: hz ticks a second, and a wall clock that another second lasts slew longer.
type truth struct {
	hz    float64
	slew  float64 // ns a second
	steps map[int]int64
}

func (c truth) real(ticks uint64) int64 {
	s := float64(ticks) / c.hz
	ns := start + int64(s*(1e9+c.slew))
	for at, step := range c.steps {
		if s >= float64(at) {
			ns += step
		}
	}
	return ns
}

func (c truth) monotonic(ticks uint64) int64 {
	s := float64(ticks) / c.hz
	return int64(s*(1e9+c.slew)) + 5_000_000_000
}

// pair is a reading with a bracket of width ticks; the wall clock was read anywhere in it.
func (c truth) pair(r *rand.Rand, at, width uint64) Pair {
	read := at + r.Uint64N(width+1)
	return Pair{Before: at, After: at + width, Realtime: c.real(read), Monotonic: c.monotonic(at + width + 20)}
}

func worst(c *Clock, t truth, from, to uint64) float64 {
	w := 0.0
	for at := from; at <= to; at += (to-from)/1009 + 1 {
		w = max(w, math.Abs(float64(c.NS(at)-t.real(at))))
	}
	return w
}

// F57, F58: whatever the rates, the clock is within the bound that it states, between the pairs and beyond them.
func TestErrorIsWithinTheBound(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, hz := range []float64{1e9, 2.4454e9, 24e6} {
		for _, slew := range []float64{0, 30_000, -200_000} {
			c := truth{hz: hz, slew: slew}
			var pairs []Pair
			for s := range 30 {
				for range 3 {
					pairs = append(pairs, c.pair(r, uint64((float64(s)+r.Float64())*hz)+1000, 40+r.Uint64N(4000)))
				}
			}
			fit := Fit(pairs, 0, true, 0, 0)
			from, to := uint64(0), uint64(33*hz)
			bound, reason := fit.Error(from, to)
			if reason != "" {
				t.Fatal(reason)
			}
			if w := worst(fit, c, from, to); w > bound {
				t.Errorf("hz %g slew %g: off by %g ns, the bound is %g", hz, slew, w, bound)
			}
			if limit := 4000/hz*1e9 + 100; bound > 4*limit {
				t.Errorf("hz %g slew %g: the bound is %g, brackets are %g", hz, slew, bound, limit)
			}
			last := fit.NS(from)
			for at := from; at < to; at += uint64(hz / 50) {
				if n := fit.NS(at); n < last {
					t.Fatalf("hz %g: time goes back at %d", hz, at)
				} else {
					last = n
				}
			}
		}
	}
}

// F60: a step of the wall clock does not tear the run apart: times are those of the clock after it.
func TestStepsAreTakenOut(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 1))
	c := truth{hz: 2e9, steps: map[int]int64{7: 3_000_000_000, 15: -1_200_000_000}}
	flat := truth{hz: 2e9, steps: map[int]int64{0: 1_800_000_000}}
	var pairs []Pair
	for s := range 20 {
		pairs = append(pairs, c.pair(r, uint64(s)*2e9+5e8, 100))
	}
	late := pairs[3] // its monotonic clock was read 4 ms late, as after a preemption
	late.Before, late.After, late.Realtime, late.Monotonic = late.Before+1000, late.After+1000, late.Realtime+500, late.Monotonic+4_000_000
	pairs = append(pairs, late)
	fit := Fit(pairs, 2e9, true, 0, 0)
	if fit.Steps != 2 || math.Abs(float64(fit.StepNS-1_800_000_000)) > 1000 {
		t.Errorf("%d steps of %d ns", fit.Steps, fit.StepNS)
	}
	bound, _ := fit.Error(0, 20*2e9)
	if w := worst(fit, flat, 0, 20*2e9); w > bound || bound > 1000 {
		t.Errorf("off by %g ns, the bound is %g", w, bound)
	}
}

// F58, F59: what is not known is said, with the reason, and times still make sense.
func TestUnknownErrors(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	c := truth{hz: 2e9}
	one := []Pair{c.pair(r, 1e9, 50)}
	many := []Pair{c.pair(r, 1e9, 50), c.pair(r, 5e9, 50), c.pair(r, 9e9, 50)}
	for _, x := range []struct {
		name      string
		pairs     []Pair
		hz        uint64
		invariant bool
		known     bool
	}{
		{"nothing", nil, 0, true, false}, {"a frequency", nil, 2e9, true, false}, {"one pair", one, 0, true, false},
		{"one pair and a frequency", one, 2e9, true, true}, {"pairs", many, 0, true, true}, {"a counter of changing rate", many, 0, false, false},
		{"pairs that cannot be", []Pair{{Before: 5, After: 1, Realtime: 1}, {Realtime: -1}, {After: 1 << 50, Realtime: 5}}, 0, true, false},
	} {
		fit := Fit(append([]Pair(nil), x.pairs...), x.hz, x.invariant, 1e9, start+500_000_000)
		bound, reason := fit.Error(0, 10e9)
		if known := reason == ""; known != x.known || (known && bound <= 0) {
			t.Errorf("%s: bound %g, reason %q", x.name, bound, reason)
		}
		if a, b := fit.NS(1e9), fit.NS(2e9); b <= a || (x.hz > 0 && (b-a < 499_999_999 || b-a > 500_000_001)) {
			t.Errorf("%s: a second's half lasts %d ns", x.name, b-a)
		}
		fit.NS(0)
		fit.NS(math.MaxUint64)
	}
	// A nominal frequency may be off by 100 ppm: the bound grows with the distance from the only pair.
	fit := Fit(one, 2e9, true, 0, 0)
	near, _ := fit.Error(1e9, 1e9+1000)
	far, _ := fit.Error(1e9, 3e9)
	if far < near+90_000 {
		t.Errorf("a second away the bound is %g, beside the pair %g", far, near)
	}
}
