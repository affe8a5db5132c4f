package topology

import (
	"slices"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// Region is memory that others may address, as they do.
type Region struct {
	from, to uint64
	GPU      uint32 // 1 + ordinal; 0: the host's, or not known
}

// GPUs of a process, as it counts them.
type gpus struct {
	uuids   map[uint32]string
	used    map[uint32]bool
	byKey   map[uint64][]*Region // by remote key, hashed
	regions map[uint32]*Region   // by object
	rings   map[uint32]uint32    // 1 + ordinal, by object: memory of GPUs for queues
}

func newGPUs() gpus {
	return gpus{map[uint32]string{}, map[uint32]bool{}, map[uint64][]*Region{}, map[uint32]*Region{}, map[uint32]uint32{}}
}

// defineGPU takes definitions of GPUs, and of memory regions.
func (p *Process) defineGPU(d *capture.Definition) {
	g := &p.gpus
	u := func(i int) uint32 { return uint32(d.Uint(i)) }
	switch d.ID {
	case catalogue.DefVerbsMr:
		// Where a region begins at an address of its own, that is what others use.
		from := d.Uint(catalogue.DefVerbsMrIova)
		r := &Region{from: from, to: from + d.Uint(catalogue.DefVerbsMrLength)}
		key := d.Uint(catalogue.DefVerbsMrRemoteKey)
		g.byKey[key] = append(g.byKey[key], r)
		g.regions[uint32(d.Uint(catalogue.DefVerbsMrObject))] = r
	case catalogue.DefMemoryGpu:
		if r := g.regions[u(catalogue.DefMemoryGpuRegion)]; r != nil {
			gpu := u(catalogue.DefMemoryGpuGpu)
			r.GPU = g.use(gpu)
			g.name(gpu, d.Bytes(catalogue.DefMemoryGpuUuid))
		}
	case catalogue.DefMlx5Umem:
		if d.Uint(catalogue.DefMlx5UmemOfGpu) != 0 {
			gpu := u(catalogue.DefMlx5UmemGpu)
			g.rings[u(catalogue.DefMlx5UmemObject)] = gpu + 1
			g.name(gpu, d.Bytes(catalogue.DefMlx5UmemUuid))
		}
	case catalogue.DefMlx5Ring:
		if q := p.Objects[u(catalogue.DefMlx5RingQueue)]; q != nil && q.Kind == QueuePair && g.rings[u(catalogue.DefMlx5RingMemory)] != 0 {
			q.GPU = g.use(g.rings[u(catalogue.DefMlx5RingMemory)] - 1)
		}
	}
}

// use notes that the process communicates for a GPU, and returns 1 + its ordinal.
func (g *gpus) use(ordinal uint32) uint32 {
	g.used[ordinal] = true
	return ordinal + 1
}

// name notes a GPU's UUID.
func (g *gpus) name(ordinal uint32, id []byte) {
	if len(id) == 16 && [16]byte(id) != [16]byte{} {
		g.uuids[ordinal] = uuid(id)
	}
}

// RegionAt returns the region that a remote key, hashed, and an address mean: the last registered; nil where none is known.
func (p *Process) RegionAt(key, address uint64) *Region {
	for _, r := range slices.Backward(p.gpus.byKey[key]) {
		if address >= r.from && address < r.to {
			return r
		}
	}
	return nil
}

// GPUs returns the ordinals of the GPUs that the process communicates for, in order.
func (p *Process) GPUs() []uint32 {
	var all []uint32
	for ordinal := range p.gpus.used {
		all = append(all, ordinal)
	}
	slices.Sort(all)
	return all
}

// UUID is a GPU's, "" where it is not known.
func (p *Process) UUID(ordinal uint32) string {
	for _, g := range p.Kernels.GPUs {
		if g.Ordinal == ordinal && g.UUID != "" {
			return g.UUID
		}
	}
	return p.gpus.uuids[ordinal]
}

// OnlyGPU returns 1 + the ordinal of the one GPU that the process communicates for, 0 where it has none or several.
func (p *Process) OnlyGPU() uint32 {
	for ordinal := range p.gpus.used {
		if len(p.gpus.used) == 1 {
			return ordinal + 1
		}
	}
	return 0
}
