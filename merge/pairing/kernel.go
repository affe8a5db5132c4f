package pairing

import (
	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// kernel takes a kernel, whose record tells when it ran by the clock of GPUs. Where that clock cannot be placed, neither can the kernel: it is counted.
func (p *Pairer) kernel(ev *capture.Event) {
	placed := p.process.Kernels.Clock
	if placed == nil {
		p.Counts.Unplaced++
		return
	}
	start := ev.Fields[catalogue.GpuKernelStart]
	post, done := placed.NS(start), placed.NS(start+ev.Fields[catalogue.GpuKernelRunning])
	s := p.state(uint32(ev.Fields[catalogue.GpuKernelStream]), gpu)
	i, ok := p.postAt(ev, s, ops.Local, 0, post)
	p.nextLocal(i, s)
	if !ok {
		p.overflow(i)
		return
	}
	p.last = max(p.last, done)
	p.complete(i, done, 0, 0)
}

// Correlation is the number of the launch that an event tells of, which the kernels it led to carry too; 0 where there is none.
func Correlation(event uint16, fields *[16]uint64) uint64 {
	switch event {
	case catalogue.EventGpuLaunch:
		return fields[catalogue.GpuLaunchCorrelation]
	case catalogue.EventGpuGraphLaunch:
		return fields[catalogue.GpuGraphLaunchCorrelation]
	case catalogue.EventGpuKernel:
		return fields[catalogue.GpuKernelCorrelation]
	}
	return 0
}

// launches keeps the flows of launches apart from those of objects, whose numbers are less.
const launches = 1 << 40

// LaunchFlow returns the flow from a launch to its kernels.
func LaunchFlow(process, correlation uint64) uint64 { return FlowOf(process+launches, correlation) }
