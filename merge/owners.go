package merge

import (
	"fmt"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/topology"
)

// owners are the GPUs that a run communicates for: whose queues and memory it is.
type owners struct {
	all     []ops.GPU
	numbers []map[uint32]uint32 // of each process: by ordinal, 1 + index into all
}

// owners lists the GPUs that the processes communicate for. Several processes may have one, each by an ordinal of its own: its UUID tells. One without is that
// process's own.
func (in *inventory) owners() *owners {
	g := &owners{numbers: make([]map[uint32]uint32, len(in.processes))}
	byUUID := map[string]uint32{}
	for i, p := range in.processes {
		g.numbers[i] = map[uint32]uint32{}
		for _, ordinal := range p.topology.GPUs() {
			uuid := p.topology.UUID(ordinal)
			number := byUUID[uuid]
			if uuid == "" || number == 0 {
				g.all = append(g.all, ops.GPU{Host: p.header.Hostname, Node: p.node, UUID: uuid, Ordinal: ordinal, Process: uint32(i), Name: p.gpuName(ordinal)})
				number = uint32(len(g.all))
			}
			if uuid != "" {
				byUUID[uuid] = number
			}
			g.numbers[i][ordinal] = number
		}
	}
	return g
}

// gpuName names a GPU to people. Its ordinal says something for the process only.
func (p *process) gpuName(ordinal uint32) string {
	who := fmt.Sprintf("pid %d", p.header.Pid)
	if p.header.Rank >= 0 {
		who = fmt.Sprintf("rank %d", p.header.Rank)
	}
	return fmt.Sprintf("GPU %d of %s on %s", ordinal, who, p.header.Hostname)
}

// of returns 1 + the number of the GPU that an object of a process belongs to, 0 where it is not known. What GPUs ring, and is rung for them, belongs to
// the only one that its process has where it says no more.
func (g *owners) of(process uint32, p *topology.Process, o *topology.Object, rung bool) uint32 {
	ordinal := o.GPU
	if ordinal == 0 && rung {
		ordinal = p.OnlyGPU()
	}
	return g.number(process, ordinal)
}

// number is that of a GPU in the run, plus 1, of its ordinal in a process, plus 1; 0 for none.
func (g *owners) number(process, ordinal uint32) uint32 {
	if ordinal == 0 {
		return 0
	}
	return g.numbers[process][ordinal-1]
}

// party is the GPU of an end, as matrices have it.
func (g *owners) party(e *End) Party {
	if e.gpu == 0 {
		return nil
	}
	x := &g.all[e.gpu-1]
	if x.UUID == "" {
		return x.Name
	}
	return x.Node + " " + x.UUID
}

// remote are the fields of an event that say what is addressed at the other side.
type remote struct{ key, address int }

// remotes finds them, by event id; nil where an event has none.
func remotes(cat *catalogue.Catalogue) []*remote {
	var all []*remote
	for _, e := range cat.Events {
		for int(e.ID) >= len(all) {
			all = append(all, nil)
		}
		if r := (remote{e.Layout.FieldIndex("remote_key"), e.Layout.FieldIndex("remote_address")}); (e.Layer == bell || e.Layer == verbs) && r.key > 0 && r.address > 0 {
			all[e.ID] = &r
		}
	}
	return all
}

// Layers whose requests name the memory that they address by a key of the device.
const (
	bell  = "doorbell"
	verbs = "verbs"
)

// peerGPU returns 1 + the number of the GPU whose memory an operation addresses, or, of an element that a GPU rang for, that of the queue at the other side;
// 0 where that is not known, or is the host's memory.
func (s *Source) peerGPU(op *ops.Op) uint32 {
	if len(s.run.GPUs) == 0 || op.Peer == 0 {
		return 0
	}
	process := s.run.Endpoints[op.Peer-1].Process
	peer := s.top.Processes[process]
	if at := s.remotes[op.Event]; at != nil && op.Fields[at.key] != 0 {
		if r := peer.RegionAt(op.Fields[at.key], op.Fields[at.address]); r != nil {
			return s.gpus.number(process, r.GPU)
		}
	}
	if s.cat.Event(op.Event).Layer != bell {
		return 0
	}
	return s.gpus.of(process, peer, peer.Carry[op.Peer-1-s.base[process]], true)
}
