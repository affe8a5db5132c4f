package topology

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// Communicator is what NCCL says of one, as a process of it sees it.
type Communicator struct {
	Hash         uint64 // the same in all its processes
	Name         string // given by the program; "" none
	Rank         int64
	Ranks, Nodes int64 // 0 not told
	Unrecorded   uint64
	Unrelated    uint64 // proxy operations whose task was not known
}

// String is its name for people.
func (c *Communicator) String() string {
	of := ""
	if c.Ranks > 0 {
		of = fmt.Sprintf(" of %d", c.Ranks)
	}
	return fmt.Sprintf("communicator %s, rank %d%s", cmp.Or(c.Name, fmt.Sprintf("%#x", c.Hash)), c.Rank, of)
}

// Plugin is how NCCL found the recorder as its profiler plugin.
type Plugin struct {
	Interface uint64 // version
	Events    uint64
	Chained   string // the plugin that is called too; "" none
	Refused   int64  // what its init returned, where that was no success
}

// RanksIn are a process's ranks in the communicator of a hash: one for each GPU that it uses with it.
func (p *Process) RanksIn(hash uint64) []int64 { return p.groups[hash] }

// defineGroup takes the definitions of NCCL.
func (p *Process) defineGroup(d *capture.Definition, now int64) *Object {
	text := func(i int) string { return strings.ToValidUTF8(d.String(i), "\ufffd") }
	switch d.ID {
	case catalogue.DefNcclCommunicator:
		c := &Communicator{Hash: d.Uint(catalogue.DefNcclCommunicatorHash), Name: text(catalogue.DefNcclCommunicatorName), Rank: d.Int(catalogue.DefNcclCommunicatorRank),
			Ranks: int64(d.Uint(catalogue.DefNcclCommunicatorRanks)), Nodes: int64(d.Uint(catalogue.DefNcclCommunicatorNodes))}
		p.groups[c.Hash] = append(p.groups[c.Hash], c.Rank)
		return &Object{ID: uint32(d.Uint(catalogue.DefNcclCommunicatorObject)), Kind: Group, Created: now, Ended: Forever, Communicator: c}
	case catalogue.DefNcclCommunicatorEnd:
		if o := p.Objects[uint32(d.Uint(catalogue.DefNcclCommunicatorEndCommunicator))]; o != nil && o.Communicator != nil {
			o.Communicator.Unrecorded, o.Communicator.Unrelated = d.Uint(catalogue.DefNcclCommunicatorEndUnrecorded), d.Uint(catalogue.DefNcclCommunicatorEndUnrelated)
		}
	case catalogue.DefNcclPlugin:
		x := Plugin{d.Uint(catalogue.DefNcclPluginInterface), d.Uint(catalogue.DefNcclPluginEvents), text(catalogue.DefNcclPluginChained), d.Int(catalogue.DefNcclPluginRefused)}
		for _, y := range p.Plugins {
			if x == y {
				return nil
			}
		}
		p.Plugins = append(p.Plugins, x)
	}
	return nil
}
