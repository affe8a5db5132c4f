package merge_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	cat "github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// gpuProcess has a GPU whose clock runs 40 ppm too fast, a launch, and two kernels told long after they ran, the later one first.
func gpuProcess(r *rig, readings bool) *proc {
	p := r.process("a", 1, 0)
	p.pairs(3 * hz)
	device := p.define(1000, cat.DefGpuDevice, uint64(0), make([]byte, 16), "0000:18:00.0", "GPU")
	stream := p.define(1000, cat.DefGpuStream, device, uint64(0x10), uint64(0x20), uint64(1), uint64(7))
	function := p.define(1000, cat.DefGpuFunction, "_Z5sweepPfi")
	track := p.define(1000, cat.DefGpuThread, uint64(1))
	if readings {
		p.Define(2100, cat.DefGpuClock, uint64(2000), uint64(2100), uint64(1_000_000))
		p.Define(hz*2+2100, cat.DefGpuClock, uint64(hz*2+2000), uint64(hz*2+2100), uint64(2_001_080_000))
	}
	p.thread(0).Event(4000, cat.EventGpuLaunch, []uint64{track, stream, function, 8, 1, 1, 64, 1, 1, 0, 0, 5, 600})
	kernel := func(start, running, launch uint64) {
		p.thread(1).Event(hz*2+3000, cat.EventGpuKernel, []uint64{stream, function, 8, 1, 1, 64, 1, 1, 0, 0, 32, launch, start, running})
	}
	kernel(1_000_000+1_000_040_000, 100_004_000, 0)
	kernel(1_000_000+500_020_000, 100_004_000, 5)
	return p
}

func TestKernelsAreWhereTheGPUSaysTheyRan(t *testing.T) {
	r := newRig(t)
	gpuProcess(r, true)
	r.close()
	m := r.open(merge.Options{})
	var kernels []ops.Op
	var launch ops.Op
	for _, op := range all(t, m) {
		switch op.Event {
		case cat.EventGpuKernel:
			kernels = append(kernels, op)
		case cat.EventGpuLaunch:
			launch = op
		}
	}
	if len(kernels) != 2 {
		t.Fatalf("%d kernels", len(kernels))
	}
	for i, want := range []int64{ns(2050) + 500_000_000, ns(2050) + 1_000_000_000} {
		if k := kernels[i]; k.Post != want || k.Done != want+100_000_000 {
			t.Errorf("kernel %d from %d to %d, want %d and 100 ms", i, k.Post, k.Done, want)
		}
	}
	if launch.Flow == 0 || kernels[0].Flow != launch.Flow || kernels[1].Flow != 0 {
		t.Errorf("flows %d, %d and %d", launch.Flow, kernels[0].Flow, kernels[1].Flow)
	}
	if launch.Post != ns(4000) || launch.Done != ns(4600) {
		t.Errorf("launch from %d to %d", launch.Post, launch.Done)
	}
	names := m.Run().Processes[0].Objects
	if got := names[uint32(launch.Fields[cat.GpuLaunchFunction])]; got != "sweep" {
		t.Errorf("the function is called %q", got)
	}
	if e := m.Run().Endpoints; !slices.ContainsFunc(e, func(e ops.Endpoint) bool { return e.Name == "GPU 0 stream 7" && e.Layer == "gpu" }) {
		t.Errorf("endpoints %+v", e)
	}
	validate(t, m.Info(), m.Matrix())
	if g := m.Info().GPUs; g == nil || g.Kernels != 2 || g.Unplaced != 0 || g.ClockErrorNS == nil || *g.ClockErrorNS != 25 {
		t.Errorf("account %+v", g)
	}
}

// Kernels that no reading of their clock places are counted, and shown nowhere.
func TestKernelsWithoutAClock(t *testing.T) {
	r := newRig(t)
	gpuProcess(r, false)
	r.close()
	m := r.open(merge.Options{})
	for _, op := range all(t, m) {
		if op.Event == cat.EventGpuKernel {
			t.Errorf("a kernel at %d", op.Post)
		}
	}
	g := m.Info().GPUs
	if g == nil || g.Unplaced != 2 || g.ClockErrorNS != nil {
		t.Errorf("account %+v", g)
	}
	var text strings.Builder
	m.Info().Summary(&text)
	if !strings.Contains(text.String(), "GPUs: 2 kernels are not shown: their clock is not known\n") {
		t.Error(text.String())
	}
}
