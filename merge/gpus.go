package merge

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// GPUs is what a run tells of GPUs and kernels.
type GPUs struct {
	Devices       []GPU             `json:"devices"`
	Launches      uint64            `json:"launches"`       // of kernels, by the aggregate tables: in every mode
	GraphLaunches uint64            `json:"graph_launches"` // of graphs, likewise
	Kernels       int64             `json:"kernels"`        // of which it is known when they ran
	Lost          uint64            `json:"kernels_lost"`   // kernels that CUPTI had no room for, or no times of
	Unplaced      int64             `json:"unplaced"`       // kernels whose times cannot be placed, and which are not shown
	ClockErrorNS  *float64          `json:"clock_error_ns"` // the greatest bound of a process of how its node's clock and that of kernels' times stand; null where they were not read
	ExportTables  map[string]uint64 `json:"export_tables"`  // how often programs asked the driver for tables of functions, by their UUID: what is called by them is not seen
	LeftAlone     map[string]uint64 `json:"left_alone"`     // functions that programs asked for in a version that is not known: calls of them are not seen
}

// GPU is a GPU of a host.
type GPU struct {
	Host string `json:"host"`
	UUID string `json:"uuid"` // as nvidia-smi has it; empty: not known
	PCI  string `json:"pci"`
	Name string `json:"name"`
}

// gpus sums up the processes' GPUs and kernels; nil where there are none.
func (in *inventory) gpus() *GPUs {
	g := &GPUs{Devices: []GPU{}, ExportTables: map[string]uint64{}, LeftAlone: map[string]uint64{}}
	seen := map[GPU]bool{}
	for _, p := range in.processes {
		k := &p.topology.Kernels
		for _, d := range k.GPUs {
			x := GPU{p.header.Hostname, d.UUID, d.PCI, d.Name}
			if !seen[x] {
				seen[x] = true
				g.Devices = append(g.Devices, x)
			}
		}
		g.addKernels(p)
		for id, n := range k.Tables {
			g.ExportTables[id] += n
		}
		for name, n := range k.LeftAlone {
			g.LeftAlone[name] += n
		}
	}
	if len(g.Devices) == 0 && len(g.ExportTables) == 0 && len(g.LeftAlone) == 0 {
		return nil
	}
	slices.SortFunc(g.Devices, func(a, b GPU) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.PCI, b.PCI), cmp.Compare(a.UUID, b.UUID))
	})
	return g
}

func (g *GPUs) addKernels(p *process) {
	for _, t := range p.totals {
		switch t.event {
		case catalogue.EventGpuLaunch:
			g.Launches += t.count
		case catalogue.EventGpuGraphLaunch:
			g.GraphLaunches += t.count
		}
	}
	if n := len(p.counts.Events); n > catalogue.EventGpuKernel {
		g.Kernels += p.counts.Events[catalogue.EventGpuKernel]
	}
	k := &p.topology.Kernels
	g.Lost += k.Lost
	g.Unplaced += p.counts.Unplaced
	if k.Clock != nil {
		bound := k.Clock.ErrorNS()
		if g.ClockErrorNS != nil {
			bound = max(bound, *g.ClockErrorNS)
		}
		g.ClockErrorNS = &bound
	}
}

func (g *GPUs) summary(line func(string, ...any)) {
	if g == nil {
		return
	}
	text := fmt.Sprintf("%d launches of kernels", g.Launches)
	if g.Launches == 1 {
		text = "1 launch of a kernel"
	}
	if g.GraphLaunches > 0 {
		text += fmt.Sprintf(", %d of graphs", g.GraphLaunches)
	}
	if g.Kernels > 0 {
		text += fmt.Sprintf("; %d kernels timed", g.Kernels)
		if g.ClockErrorNS != nil {
			text += fmt.Sprintf(" by a clock that was read to within %v", time.Duration(*g.ClockErrorNS).Round(time.Nanosecond))
		}
	}
	line("GPUs: %d; %s", len(g.Devices), text)
	if g.Lost > 0 {
		line("GPUs: the times of %d kernels are missing", g.Lost)
	}
	if g.Unplaced > 0 {
		line("GPUs: %d kernels are not shown: their clock is not known", g.Unplaced)
	}
	if len(g.LeftAlone) > 0 {
		line("GPUs: not seen: calls of %s", strings.Join(slices.Sorted(maps.Keys(g.LeftAlone)), "; "))
	}
}
