package clock

import (
	"math"
	"testing"
)

func TestGPUReadings(t *testing.T) {
	if NewGPU(nil) != nil {
		t.Error("a clock without a reading")
	}
	one := NewGPU([]GPUReading{{GPU: 1000, NS: 5000, HalfWidth: 30}})
	if one.NS(1700) != 5700 || one.NS(400) != 4400 || one.ErrorNS() != 30 {
		t.Errorf("one reading: %d, %d, within %v", one.NS(1700), one.NS(400), one.ErrorNS())
	}
	// the GPU's clock runs 100 ppm too fast, then 300 ppm
	g := NewGPU([]GPUReading{{GPU: 2_000_400, NS: 2_000_000, HalfWidth: 20}, {GPU: 0, NS: 0, HalfWidth: 10}, {GPU: 1_000_100, NS: 1_000_000, HalfWidth: 40}})
	for gpu, want := range map[uint64]int64{0: 0, 500_050: 500_000, 1_000_100: 1_000_000, 1_500_250: 1_500_000, 2_000_400: 2_000_000, 3_000_700: 3_000_000} {
		if got := g.NS(gpu); got != want {
			t.Errorf("%d is at %d, want %d", gpu, got, want)
		}
	}
	// the middle one lies 100 ns beside the line of its neighbours: 1,000,100 of 2,000,400 in 2,000,000 is 999,900
	if math.Abs(g.ErrorNS()-140) > 1 {
		t.Errorf("within %v", g.ErrorNS())
	}
}

// Of readings that contradict each other's order the tighter ones stay, in whichever order they come.
func TestGPUReadingsInOrder(t *testing.T) {
	good := []GPUReading{{100, 1000, 1}, {200, 1100, 1}, {300, 1200, 1}}
	for i, bad := range []GPUReading{{150, 5000, 9}, {250, 10, 9}, {200, 1150, 9}} {
		g := NewGPU(append([]GPUReading{bad}, good...))
		for _, r := range good {
			if g.NS(r.GPU) != r.NS {
				t.Errorf("with the bad reading %d, %d is at %d", i, r.GPU, g.NS(r.GPU))
			}
		}
	}
}

func FuzzGPU(f *testing.F) {
	f.Add(uint64(1), int64(2), uint64(3), int64(4), uint64(5))
	f.Add(uint64(1<<63), int64(math.MinInt64), uint64(0), int64(math.MaxInt64), uint64(1<<62))
	f.Fuzz(func(t *testing.T, a uint64, b int64, c uint64, d int64, at uint64) {
		g := NewGPU([]GPUReading{{a, b, 1}, {c, d, 2}})
		if g == nil {
			t.Fatal("no clock of two readings")
		}
		g.NS(at)
	})
}
