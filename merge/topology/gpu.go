package topology

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/ianlancetaylor/demangle"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/clock"
)

// GPU is a GPU as a process knows it.
type GPU struct {
	Ordinal uint32
	UUID    string // as nvidia-smi has it; "" not known
	PCI     string
	Name    string
}

// Kernels is what a process tells of its GPUs and of how it recorded kernels.
type Kernels struct {
	GPUs      map[uint32]*GPU   // by object
	Names     map[uint32]string // of functions and streams, by object
	Clock     *clock.GPU        // of kernels' times; nil where they cannot be placed
	Version   uint64            // of CUPTI, where kernels were timed
	Lost      uint64            // kernels that CUPTI had no room for, or no times of
	Tables    map[string]uint64 // export tables that the program asked the driver for, by UUID
	LeftAlone map[string]uint64 // functions that it asked for in a version that is not known, and which were not replaced
	readings  []clock.GPUReading
}

// defineKernels takes what concerns GPUs. It returns an object where operations may be of one.
func (p *Process) defineKernels(d *capture.Definition, now int64) *Object {
	u := func(i int) uint32 { return uint32(d.Uint(i)) }
	text := func(i int) string { return strings.ToValidUTF8(d.String(i), "\ufffd") }
	k := &p.Kernels
	switch d.ID {
	case catalogue.DefGpuDevice:
		g := &GPU{Ordinal: u(catalogue.DefGpuDeviceOrdinal), PCI: text(catalogue.DefGpuDevicePci), Name: text(catalogue.DefGpuDeviceName)}
		if id := d.Bytes(catalogue.DefGpuDeviceUuid); len(id) == 16 {
			g.UUID = uuid(id)
		}
		set(&k.GPUs, u(catalogue.DefGpuDeviceObject), g)
	case catalogue.DefGpuFunction:
		name := text(catalogue.DefGpuFunctionName)
		set(&k.Names, u(catalogue.DefGpuFunctionObject), demangle.Filter(name, demangle.NoParams))
	case catalogue.DefGpuStream:
		o := &Object{ID: u(catalogue.DefGpuStreamObject), Kind: GPUStream, Created: now, Ended: Forever, Label: p.streamName(d)}
		set(&k.Names, o.ID, o.Label)
		return o
	case catalogue.DefGpuThread:
		return &Object{ID: u(catalogue.DefGpuThreadObject), Kind: GPUThread, Created: now, Ended: Forever, Label: fmt.Sprintf("launches of thread %d", u(catalogue.DefGpuThreadThread))}
	case catalogue.DefGpuClock:
		before, after := d.Uint(catalogue.DefGpuClockBefore), d.Uint(catalogue.DefGpuClockAfter)
		if after >= before {
			width := after - before
			half := float64(p.Clock.Duration(before, width)) / 2
			k.readings = append(k.readings, clock.GPUReading{GPU: d.Uint(catalogue.DefGpuClockTime), NS: p.Clock.NS(before + width/2), HalfWidth: half})
		}
	case catalogue.DefGpuNote:
		p.kernelsNote(d.Uint(catalogue.DefGpuNoteTopic), d.Uint(catalogue.DefGpuNoteNumber), text(catalogue.DefGpuNoteText))
	}
	return nil
}

func (p *Process) kernelsNote(topic, number uint64, text string) {
	k := &p.Kernels
	switch topic {
	case catalogue.GpuTopicTimes:
		k.Version = number
	case catalogue.GpuTopicNoTimes:
		p.Off = append(p.Off, Off{"gpu", "kernels are not timed: " + text})
	case catalogue.GpuTopicTimesEnded:
		p.Off = append(p.Off, Off{"gpu", "kernels are not timed to the end: " + text})
	case catalogue.GpuTopicKernelsLost:
		k.Lost += number
	case catalogue.GpuTopicExportTable:
		set(&k.Tables, text, number)
	case catalogue.GpuTopicLeftAlone:
		set(&k.LeftAlone, text, number)
	}
}

func set[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[key] = value
}

func (p *Process) streamName(d *capture.Definition) string {
	gpu := "GPU not known"
	if g := p.Kernels.GPUs[uint32(d.Uint(catalogue.DefGpuStreamDevice))]; g != nil {
		gpu = fmt.Sprintf("GPU %d", g.Ordinal)
	}
	handle, number := d.Uint(catalogue.DefGpuStreamStream), d.Uint(catalogue.DefGpuStreamStreamNumber)
	switch {
	case number != 0:
		return fmt.Sprintf("%s stream %d", gpu, number)
	case handle == 1:
		return gpu + " default stream"
	case handle == 2:
		return gpu + " default stream of a thread"
	}
	return fmt.Sprintf("%s stream %#x", gpu, handle)
}

func uuid(b []byte) string {
	h := hex.EncodeToString(b)
	return "GPU-" + h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
