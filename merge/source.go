package merge

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"
	"sync"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/match"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/order"
	"github.com/sigmatrace/sigmatrace/merge/pairing"
	"github.com/sigmatrace/sigmatrace/merge/spill"
	"github.com/sigmatrace/sigmatrace/merge/topology"
)

const (
	partitionOps = 64 << 10 // operations that a partition is cut after
	sliceOps     = 2 << 10  // operations handed on at a time
)

// blockSize returns how many operations a block of a run holds: less where many processes share a partition.
func blockSize(processes int) int {
	return min(max(2*partitionOps/max(processes, 1), 64), 1024)
}

// place is where an operation stands in the run's order.
type place struct {
	post     int64
	process  uint32
	thread   uint32
	sequence uint64
}

func (a place) compare(b place) int {
	return cmp.Or(cmp.Compare(a.post, b.post), cmp.Compare(a.process, b.process), cmp.Compare(a.thread, b.thread), cmp.Compare(a.sequence, b.sequence))
}

func placeOf(op *ops.Op) place { return place{op.Post, op.Process, op.Thread, op.Sequence} }

func placeAt(process uint32, k spill.Key) place { return place{k.Post, process, k.Thread, k.Sequence} }

// blockRef is a block with its process.
type blockRef struct {
	process uint32
	block   *spill.Block
}

// Source gives the run's operations in order. It implements ops.Source.
type Source struct {
	run   ops.Run
	top   *topology.Map
	cat   *catalogue.Catalogue
	file  *spill.File
	flows *spill.Sorted[match.Result, *match.Result]
	base  []uint32 // of each process's endpoints in run.Endpoints
	cuts  []place  // where partitions begin
	parts [][]blockRef
	slots chan struct{} // partitions read at the same time
	pool  sync.Pool
}

// Run describes the run.
func (s *Source) Run() *ops.Run { return &s.run }

func newSource(name string, in *inventory, top *topology.Map, cat *catalogue.Catalogue, file *spill.File, flows *spill.Sorted[match.Result, *match.Result], workers int) *Source {
	s := &Source{top: top, cat: cat, file: file, flows: flows, slots: make(chan struct{}, workers)}
	s.run.Name = name
	var blocks []blockRef
	for i, p := range in.processes {
		s.base = append(s.base, uint32(len(s.run.Endpoints)))
		s.run.Processes = append(s.run.Processes, ops.Process{
			Host: p.header.Hostname, Node: p.node, Pid: p.header.Pid, Image: p.header.Image, Rank: max(p.header.Rank, -1),
			Executable: p.header.Executable, File: p.path, First: p.first, Last: p.last, Threads: p.survey.Threads,
		})
		for _, o := range p.topology.Carry {
			lanes := 0
			if int(o.Local) < len(p.lanes) {
				lanes = p.lanes[o.Local]
			}
			s.run.Endpoints = append(s.run.Endpoints, ops.Endpoint{Process: uint32(i), Object: o.ID, Layer: o.Layer, Kind: o.Kind.String(), Lanes: lanes})
		}
		for j := range p.blocks {
			blocks = append(blocks, blockRef{uint32(i), &p.blocks[j]})
		}
		s.run.Operations += p.operations
		if i == 0 || p.first < s.run.First {
			s.run.First = p.first
		}
		s.run.Last = max(s.run.Last, p.last)
	}
	for i, p := range in.processes {
		for _, o := range p.topology.Carry {
			e := &s.run.Endpoints[s.base[i]+o.Local]
			e.Name, e.Peer = in.nameOf(top, o), s.endpoint(top.OnlyPeer(o))
		}
	}
	s.run.ClockSource, s.run.Clocks = in.clock()
	s.cut(blocks)
	s.run.Partitions = len(s.parts)
	return s
}

// endpoint returns 1 + the index of an object's endpoint, 0 where there is none.
func (s *Source) endpoint(r topology.Ref) uint32 {
	o := s.top.Object(r)
	if o == nil || !o.Carries() {
		return 0
	}
	return 1 + s.base[r.Process] + o.Local
}

// nameOf makes an object's name with its peer.
func (in *inventory) nameOf(top *topology.Map, o *topology.Object) string {
	name := o.Name()
	peer := top.OnlyPeer(o)
	if peer.Object == 0 {
		return name
	}
	p := in.processes[peer.Process]
	if p.header.Rank >= 0 {
		return fmt.Sprintf("%s -> rank %d", name, p.header.Rank)
	}
	return fmt.Sprintf("%s -> %s pid %d", name, p.header.Hostname, p.header.Pid)
}

// cut divides the operations into partitions of about partitionOps, by the places where blocks begin, and lists each one's blocks.
func (s *Source) cut(blocks []blockRef) {
	slices.SortFunc(blocks, func(a, b blockRef) int {
		return cmp.Or(placeAt(a.process, a.block.First).compare(placeAt(b.process, b.block.First)), placeAt(a.process, a.block.Last).compare(placeAt(b.process, b.block.Last)))
	})
	n := partitionOps
	for _, b := range blocks {
		if n >= partitionOps {
			if at := placeAt(b.process, b.block.First); len(s.cuts) == 0 || at.compare(s.cuts[len(s.cuts)-1]) > 0 {
				s.cuts = append(s.cuts, at)
				n = 0
			}
		}
		n += int(b.block.Count)
	}
	s.parts = make([][]blockRef, len(s.cuts))
	for _, b := range blocks {
		for i := s.partOf(placeAt(b.process, b.block.First)); i <= s.partOf(placeAt(b.process, b.block.Last)); i++ {
			s.parts[i] = append(s.parts[i], b)
		}
	}
}

// partOf returns the partition of a place.
func (s *Source) partOf(at place) int {
	return sort.Search(len(s.cuts), func(i int) bool { return s.cuts[i].compare(at) > 0 }) - 1
}

// window holds what reading a partition takes; it is used again and again.
type window struct {
	arena  []ops.Op
	refs   []order.Ref
	out    []ops.Op
	sorter order.Sorter
	reader *spill.Reader
}

// Partition calls fn with the operations of partition i in order.
func (s *Source) Partition(ctx context.Context, i int, fn func([]ops.Op) error) error {
	if i < 0 || i >= len(s.parts) {
		return fmt.Errorf("reading partition %d of %d: there is none", i, len(s.parts))
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	w, _ := s.pool.Get().(*window)
	if w == nil {
		w = &window{reader: spill.NewReader(s.file, s.cat)}
	}
	defer s.pool.Put(w)
	if err := s.load(ctx, i, w); err != nil {
		return err
	}
	from, err := s.flows.Search(func(r *match.Result) bool { return placeOfResult(r).compare(s.cuts[i]) >= 0 })
	if err != nil {
		return err
	}
	flows := s.flows.From(from)
	more, err := flows.Next()
	if err != nil {
		return err
	}
	for start := 0; start < len(w.refs); start += sliceOps {
		if err := ctx.Err(); err != nil {
			return err
		}
		w.out = w.out[:0]
		for _, r := range w.refs[start:min(start+sliceOps, len(w.refs))] {
			w.out = append(w.out, w.arena[r.At])
			op := &w.out[len(w.out)-1]
			at := placeOf(op)
			for more && placeOfResult(&flows.Value).compare(at) < 0 {
				if more, err = flows.Next(); err != nil {
					return err
				}
			}
			var result *match.Result
			if more && placeOfResult(&flows.Value) == at {
				result = &flows.Value
			}
			s.complete(op, result)
		}
		if err := fn(w.out); err != nil {
			return err
		}
	}
	return nil
}

func placeOfResult(r *match.Result) place { return place{r.Post, r.Process, r.Thread, r.Sequence} }

// load reads the blocks of a partition and sorts what belongs to it.
func (s *Source) load(ctx context.Context, i int, w *window) error {
	w.arena, w.refs = w.arena[:0], w.refs[:0]
	for _, b := range s.parts[i] {
		if err := ctx.Err(); err != nil {
			return err
		}
		start := len(w.arena)
		var err error
		if w.arena, err = w.reader.Read(b.block, w.arena); err != nil {
			return err
		}
		// Blocks reach over cuts: what belongs to a neighbour goes.
		kept := w.arena[:start]
		for j := start; j < len(w.arena); j++ {
			op := &w.arena[j]
			op.Process = b.process
			if at := placeOf(op); at.compare(s.cuts[i]) < 0 || (i+1 < len(s.cuts) && at.compare(s.cuts[i+1]) >= 0) {
				continue
			}
			w.refs = append(w.refs, order.Ref{Post: op.Post, At: uint32(len(kept))})
			kept = append(kept, *op)
		}
		w.arena = kept
	}
	w.sorter.Sort(w.refs, func(a, b uint32) int { return placeOf(&w.arena[a]).compare(placeOf(&w.arena[b])) })
	return nil
}

// complete adds what pairing could not know: peer, flow, and the endpoint's number in the run.
func (s *Source) complete(op *ops.Op, r *match.Result) {
	p := s.top.Processes[op.Process]
	o := p.Carry[op.Endpoint]
	switch {
	case r != nil:
		op.Flow = r.Flow
		op.Flags |= r.Flags
		op.Peer = s.endpoint(topology.Ref{Process: r.PeerProcess, Object: r.PeerObject})
	case op.Event == catalogue.EventVerbsDatagram:
		op.Peer = s.endpoint(s.top.Datagram(op.Process, uint32(op.Fields[catalogue.VerbsDatagramAddressHandle]), uint32(op.Fields[catalogue.VerbsDatagramRemoteQpn]), op.Post))
	default:
		op.Peer = s.endpoint(s.top.Peer(o, op.Post))
	}
	if op.Role == ops.OneSided && op.Flags&(ops.Unfinished|ops.Immediate|ops.Failed) == 0 {
		op.Flow = pairing.FlowOf(p.Identify(o.ID), op.Ordinal)
	}
	op.Endpoint += s.base[op.Process]
}
