package merge

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sort"
	"sync"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/clock"
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

// placeAt is the place of a block's first or last operation. Operations that the run's clock puts at one time may be in another order in the block.
func (s *Source) placeAt(b blockRef, k spill.Key) place {
	return place{s.place[b.process].NS(k.Post), b.process, k.Thread, k.Sequence}
}

// from and to are the places that the operations of a block lie between.
func (s *Source) from(b blockRef) place {
	return place{post: s.place[b.process].NS(b.block.First.Post), process: b.process}
}

func (s *Source) to(b blockRef) place {
	return place{s.place[b.process].NS(b.block.Last.Post), b.process, math.MaxUint32, math.MaxUint64}
}

// blockRef is a block with its process.
type blockRef struct {
	process uint32
	block   *spill.Block
}

// Source gives the run's operations in order. It implements ops.Source.
type Source struct {
	place []*clock.Map // of each process, to the run's clock
	run   ops.Run
	top   *topology.Map
	cat   *catalogue.Catalogue
	flows *spill.Sorted[match.Result, *match.Result]
	base  []uint32 // of each process's endpoints in run.Endpoints
	gpus  *owners

	remotes []*remote // by event id

	cuts  []place // where partitions begin
	parts [][]blockRef
	slots chan struct{} // partitions read at the same time
	pool  sync.Pool
}

// Run describes the run.
func (s *Source) Run() *ops.Run { return &s.run }

func newSource(name string, in *inventory, top *topology.Map, cat *catalogue.Catalogue, flows *spill.Sorted[match.Result, *match.Result], workers int) *Source {
	s := &Source{top: top, cat: cat, flows: flows, gpus: in.owners(), remotes: remotes(cat), slots: make(chan struct{}, workers)}
	s.run.GPUs = s.gpus.all
	s.run.Name = name
	var blocks []blockRef
	for i, p := range in.processes {
		s.place = append(s.place, p.place)
		s.base = append(s.base, uint32(len(s.run.Endpoints)))
		s.run.Processes = append(s.run.Processes, ops.Process{
			Host: p.header.Hostname, Node: p.node, Pid: p.header.Pid, Image: p.header.Image, Rank: max(p.header.Rank, -1),
			Executable: p.header.Executable, File: p.path, First: p.place.NS(p.first), Last: p.place.NS(p.last),
			TickNS: float64(p.topology.Clock.Duration(p.from, 1e9)) / 1e9, Threads: p.survey.Threads, Names: p.names(), Objects: p.topology.Kernels.Names,
		})
		for _, o := range p.topology.Carry {
			lanes := 0
			if int(o.Local) < len(p.lanes) {
				lanes = p.lanes[o.Local]
			}
			s.run.Endpoints = append(s.run.Endpoints, ops.Endpoint{Process: uint32(i), Object: o.ID, Layer: o.Layer, Kind: o.Kind.String(), Lanes: lanes, GPU: s.gpus.of(uint32(i), p.topology, o, o.Layer == bell)})
		}
		for j := range p.blocks {
			blocks = append(blocks, blockRef{uint32(i), &p.blocks[j]})
		}
		s.run.Operations += p.operations
		if first := p.place.NS(p.first); i == 0 || first < s.run.First {
			s.run.First = first
		}
		s.run.Last = max(s.run.Last, p.place.NS(p.last))
	}
	for i, p := range in.processes {
		for _, o := range p.topology.Carry {
			e := &s.run.Endpoints[s.base[i]+o.Local]
			e.Name, e.Peer = in.nameOf(top, o), s.endpoint(top.OnlyPeer(o))
		}
	}
	s.run.ClockSource, s.run.Clocks = in.told.source, in.told.nodes
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
	name, by := o.Name(), ""
	if o.Fabric != nil && o.Fabric.Provider != "" {
		by = " (" + o.Fabric.Provider + ")"
	}
	peer := top.OnlyPeer(o)
	if peer.Object == 0 {
		return name + by
	}
	p := in.processes[peer.Process]
	if p.header.Rank >= 0 {
		return fmt.Sprintf("%s -> rank %d%s", name, p.header.Rank, by)
	}
	return fmt.Sprintf("%s -> %s pid %d%s", name, p.header.Hostname, p.header.Pid, by)
}

// cut divides the operations into partitions of about partitionOps, by the places where blocks begin, and lists each one's blocks.
func (s *Source) cut(blocks []blockRef) {
	slices.SortFunc(blocks, func(a, b blockRef) int {
		return cmp.Or(s.placeAt(a, a.block.First).compare(s.placeAt(b, b.block.First)), s.placeAt(a, a.block.Last).compare(s.placeAt(b, b.block.Last)))
	})
	n := partitionOps
	for _, b := range blocks {
		if n >= partitionOps {
			if at := s.placeAt(b, b.block.First); len(s.cuts) == 0 || at.compare(s.cuts[len(s.cuts)-1]) > 0 {
				s.cuts = append(s.cuts, at)
				n = 0
			}
		}
		n += int(b.block.Count)
	}
	s.parts = make([][]blockRef, len(s.cuts))
	for _, b := range blocks {
		for i := max(s.partOf(s.from(b)), 0); i <= s.partOf(s.to(b)); i++ {
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
	merger  order.Merger[ops.Op]
	inputs  []order.Input[ops.Op]
	readers []*spill.Reader // not in use
	out     []ops.Op
}

// blockStream is what of a block belongs to a partition.
type blockStream struct {
	s      *Source
	w      *window
	b      blockRef
	from   place
	end    *place
	reader *spill.Reader
}

// Next implements order.Stream.
func (b *blockStream) Next(op *ops.Op) (bool, error) {
	if b.reader == nil {
		if n := len(b.w.readers); n > 0 {
			b.reader, b.w.readers = b.w.readers[n-1], b.w.readers[:n-1]
		} else {
			b.reader = spill.NewReader(b.s.cat)
		}
		if err := b.reader.Open(b.b.block); err != nil {
			return false, err
		}
	}
	for {
		ok, err := b.reader.Next(op)
		if err != nil {
			return false, err
		}
		if ok {
			b.s.bring(op, b.b.process)
			if placeOf(op).compare(b.from) < 0 {
				continue
			}
			if b.end == nil || placeOf(op).compare(*b.end) < 0 {
				return true, nil
			}
			if op.Post == b.end.post {
				continue // another of that time may be on this side of the cut
			}
		}
		b.w.readers = append(b.w.readers, b.reader)
		return false, nil
	}
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
		w = &window{merger: order.Merger[ops.Op]{
			Time: func(op *ops.Op) int64 { return op.Post },
			Tie:  func(a, b *ops.Op) int { return placeOf(a).compare(placeOf(b)) },
		}}
	}
	defer s.pool.Put(w)
	from, err := s.flows.Search(func(r *match.Result) bool { return placeOfResult(r).compare(s.cuts[i]) >= 0 })
	if err != nil {
		return err
	}
	j := joiner{s: s, flows: s.flows.From(from)}
	if j.more, err = j.flows.Next(); err != nil {
		return err
	}
	var end *place
	if i+1 < len(s.cuts) {
		end = &s.cuts[i+1]
	}
	w.inputs = w.inputs[:0]
	for _, b := range s.parts[i] {
		in := order.Input[ops.Op]{From: max(s.from(b).post, s.cuts[i].post), Stream: &blockStream{s: s, w: w, b: b, from: s.cuts[i], end: end}}
		w.inputs = append(w.inputs, in)
	}
	w.out = w.out[:0]
	hand := func() error {
		defer func() { w.out = w.out[:0] }()
		if err := ctx.Err(); err != nil || len(w.out) == 0 {
			return err
		}
		return fn(w.out)
	}
	err = w.merger.Merge(w.inputs, func(op *ops.Op) error {
		w.out = append(w.out, *op)
		if err := j.complete(&w.out[len(w.out)-1]); err != nil || len(w.out) < sliceOps {
			return err
		}
		return hand()
	})
	if err != nil {
		return err
	}
	return hand()
}

func placeOfResult(r *match.Result) place { return place{r.Post, r.Process, r.Thread, r.Sequence} }

// joiner walks over the results of matching beside the operations: both are in the same order.
type joiner struct {
	s     *Source
	flows *spill.Cursor[match.Result, *match.Result]
	more  bool
}

func (j *joiner) complete(op *ops.Op) error {
	at := placeOf(op)
	for j.more && placeOfResult(&j.flows.Value).compare(at) < 0 {
		var err error
		if j.more, err = j.flows.Next(); err != nil {
			return err
		}
	}
	if j.more && placeOfResult(&j.flows.Value) == at {
		j.s.complete(op, &j.flows.Value)
	} else {
		j.s.complete(op, nil)
	}
	return nil
}

// bring takes an operation of a process to the run: to its clock, and with the peer as far as the topology tells, which is by the process's own.
func (s *Source) bring(op *ops.Op, process uint32) {
	op.Process = process
	switch op.Event {
	case catalogue.EventVerbsDatagram:
		op.Peer = s.endpoint(s.top.Datagram(op.Process, uint32(op.Fields[catalogue.VerbsDatagramAddressHandle]), uint32(op.Fields[catalogue.VerbsDatagramRemoteQpn]), op.Post))
	case catalogue.EventDoorbellSend, catalogue.EventDoorbellWrite, catalogue.EventDoorbellWriteImm, catalogue.EventDoorbellRead, catalogue.EventDoorbellAtomic, catalogue.EventDoorbellSignal:
		if target := uint32(op.Fields[catalogue.DoorbellRequestTarget]); target != 0 {
			op.Peer = s.endpoint(s.top.Target(op.Process, target, op.Post))
			break
		}
		fallthrough
	default:
		op.Peer = s.endpoint(s.top.Peer(s.top.Processes[process].Carry[op.Endpoint], op.Post))
	}
	op.PeerGPU = s.peerGPU(op)
	if at := s.place[process]; at != nil {
		op.Post, op.Done = at.NS(op.Post), at.NS(op.Done)
	}
}

// complete adds what matching found out: peer, flow, and the endpoint's number in the run.
func (s *Source) complete(op *ops.Op, r *match.Result) {
	p := s.top.Processes[op.Process]
	o := p.Carry[op.Endpoint]
	if r != nil {
		op.Flow = r.Flow
		op.Flags |= r.Flags
		op.Peer = s.endpoint(topology.Ref{Process: r.PeerProcess, Object: r.PeerObject})
	}
	if op.Role == ops.OneSided && op.Flags&(ops.Unfinished|ops.Immediate|ops.Failed) == 0 && (op.Flags&ops.Unseen == 0 || op.PeerGPU != 0) {
		op.Flow = pairing.FlowOf(p.Identify(o.ID), op.Ordinal)
	}
	if n := pairing.Correlation(op.Event, &op.Fields); n != 0 {
		op.Flow = pairing.LaunchFlow(p.Identity, n)
	}
	op.Endpoint += s.base[op.Process]
	if op.For.Communicator > 0 {
		op.For.Communicator += s.base[op.Process]
	}
}
