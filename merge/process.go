package merge

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/match"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/pairing"
	"github.com/sigmatrace/sigmatrace/merge/spill"
	"github.com/sigmatrace/sigmatrace/merge/topology"
)

// paired is what pairing leaves of a process.
type paired struct {
	blocks      []spill.Block
	counts      pairing.Counts
	operations  int64
	lanes       []int // by an object's number among those that carry operations
	totals      []total
	shared      map[uint32]bool // objects that several threads posted on
	first, last int64           // ns
	shown       span            // of its operations, phases and marks
}

// total is the sum of the aggregate tables for an object, a kind of event, a peer and an epoch.
type total struct {
	object uint32
	event  uint16
	epoch  uint32
	peer   uint64
	first  uint64 // ticks
	count  uint64
	bytes  uint64
}

// pass is what pairing needs beside a process.
type pass struct {
	in                    *inventory
	top                   *topology.Map
	cat                   *catalogue.Catalogue
	file                  *spill.File
	halves                *match.Halves
	blockOps, outstanding int
	progress              *progress
}

// pairAll pairs all processes here.
func (ps *pass) pairAll(ctx context.Context, workers int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	for _, p := range ps.in.processes {
		group.Go(func() error { return ps.pair(ctx, p) })
	}
	return group.Wait()
}

func (ps *pass) pair(ctx context.Context, p *process) error {
	if err := p.pair(ctx, ps.top, ps.cat, ps.file, ps.halves, ps.blockOps, ps.outstanding, ps.progress); err != nil {
		return fmt.Errorf("merging %s: %w", p.path, err)
	}
	return nil
}

// pair decodes a capture and makes its operations.
func (p *process) pair(ctx context.Context, top *topology.Map, cat *catalogue.Catalogue, file *spill.File, halves *match.Halves, blockOps, outstanding int, progress *progress) error {
	f, err := capture.Open(p.path)
	if err != nil {
		return err // it could be read a moment ago
	}
	defer f.Close()
	if err := p.sumTables(f, cat); err != nil {
		return err
	}
	sink := &sink{writer: spill.NewWriter(file, cat, blockOps), halves: halves}
	pairer := pairing.New(p.topology, top, cat, sink, outstanding, p.missing(), p.survey.Windows)
	if err := p.decode(ctx, f, cat, pairer, progress); err != nil {
		return err
	}
	p.first = p.topology.Clock.NS(p.from)
	if p.from == 0 {
		p.first = int64(p.header.RealtimeNS)
	}
	last := max(p.first, p.topology.Clock.NS(p.to))
	if err := pairer.Finish(last); err != nil {
		return err
	}
	p.last, p.counts, p.lanes = pairer.Last(), pairer.Counts, pairer.Lanes()
	if err := sink.flush(0); err != nil {
		return err
	}
	p.operations = sink.writer.Count
	if p.operations > 0 {
		p.first = min(p.first, sink.writer.First)
		p.last = max(p.last, sink.writer.LastKnown)
		p.shown = span{sink.writer.First, max(sink.writer.First, sink.writer.LastKnown)}
	}
	p.blocks, err = sink.writer.Finish()
	return err
}

// displaced tells whether a receive that never ended, and was posted before a receive, may have taken a message of its tag.
func (p *process) displaced(h *match.Half) bool {
	for _, o := range p.counts.Open {
		if o.Worker == h.Object && o.Post <= h.Post && h.Tag&o.Mask == o.Tag&o.Mask {
			return true
		}
	}
	return false
}

// sumTables adds the aggregate tables up. They count in every mode, and on when recording has stopped.
func (p *process) sumTables(f *capture.File, cat *catalogue.Catalogue) error {
	type key struct {
		object, epoch uint32
		event         uint16
		peer          uint64
	}
	sums := map[key]total{}
	poster := map[uint32]uint32{}
	p.shared = map[uint32]bool{}
	err := f.Aggregates(func(a *capture.Aggregate) error {
		k := key{a.Object, a.Epoch, a.Event, a.Peer}
		t := sums[k]
		t.first = minTick(t.first, a.First)
		t.count += a.Count
		t.bytes += a.Bytes
		sums[k] = t
		if e := cat.Event(a.Event); e != nil && e.Kind == catalogue.Request {
			if thread, ok := poster[a.Object]; ok && thread != a.Thread {
				p.shared[a.Object] = true
			}
			poster[a.Object] = a.Thread
		}
		return nil
	})
	p.problem(err)
	for k, t := range sums {
		p.totals = append(p.totals, total{k.object, k.event, k.epoch, k.peer, t.first, t.count, t.bytes})
	}
	slices.SortFunc(p.totals, func(a, b total) int {
		return cmp.Or(cmp.Compare(a.object, b.object), cmp.Compare(a.event, b.event), cmp.Compare(a.peer, b.peer), cmp.Compare(a.epoch, b.epoch))
	})
	return nil
}

// decode gives the pairer the records of all threads in order of time.
func (p *process) decode(ctx context.Context, f *capture.File, cat *catalogue.Catalogue, pairer *pairing.Pairer, progress *progress) error {
	threads := map[uint32]*thread{}
	var heap threadHeap
	for _, ch := range f.Chunks() {
		if ch.Domain != 0 {
			continue // no event of this catalogue has another clock
		}
		t := threads[ch.Thread]
		if t == nil {
			t = &thread{p: p, f: f, cat: cat, pairer: pairer, progress: progress}
			threads[ch.Thread] = t
			heap = append(heap, t)
		}
		t.chunks = append(t.chunks, ch)
	}
	slices.SortFunc(heap, func(a, b *thread) int { return cmp.Compare(a.chunks[0].Thread, b.chunks[0].Thread) })
	live := heap[:0]
	for _, t := range heap {
		if t.next() {
			live = append(live, t)
		}
	}
	heap = live
	for i := len(heap)/2 - 1; i >= 0; i-- {
		heap.down(i)
	}
	for n := 0; len(heap) > 0; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		t := heap[0]
		if err := pairer.Event(&t.ev); err != nil {
			return err
		}
		if !t.next() {
			last := len(heap) - 1
			heap[0] = heap[last]
			heap = heap[:last]
		}
		if len(heap) > 1 {
			heap.down(0)
		}
	}
	return nil
}

// thread reads the chunks of one thread one after the other.
type thread struct {
	p        *process
	f        *capture.File
	cat      *catalogue.Catalogue
	pairer   *pairing.Pairer
	progress *progress
	chunks   []capture.Chunk
	open     bool
	decoder  *capture.Decoder
	ev       capture.Event
}

// next reads the thread's next record. A damaged chunk is told and its rest left out.
func (t *thread) next() bool {
	for {
		if !t.open {
			if len(t.chunks) == 0 {
				t.decoder = nil
				return false
			}
			if t.decoder == nil {
				t.decoder = &capture.Decoder{}
			}
			t.decoder.Reset(t.f, &t.chunks[0], t.cat)
			t.open = true
		}
		ok, err := t.decoder.Next(&t.ev)
		if err != nil {
			t.p.problem(err)
			t.pairer.Lossy()
		}
		if ok && err == nil {
			if t.ev.ID != 0 {
				t.p.to = max(t.p.to, t.ev.Time)
				t.p.from = minTick(t.p.from, t.ev.Time)
			}
			return true
		}
		t.progress.add(int64(t.chunks[0].Committed) + chunkHeader)
		t.chunks, t.open = t.chunks[1:], false
	}
}

// threadHeap has the thread with the earliest record at its top.
type threadHeap []*thread

func (h threadHeap) less(i, j int) bool {
	a, b := &h[i].ev, &h[j].ev
	return a.Time < b.Time || (a.Time == b.Time && a.Thread < b.Thread)
}

func (h threadHeap) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h.less(c+1, c) {
			c++
		}
		if !h.less(c, i) {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

// sink takes what pairing makes.
type sink struct {
	writer *spill.Writer
	halves *match.Halves
	batch  []match.Half
}

func (s *sink) Op(op *ops.Op) error { return s.writer.Add(op) }

func (s *sink) Half(h *match.Half) error {
	s.batch = append(s.batch, *h)
	return s.flush(1023)
}

func (s *sink) flush(keep int) error {
	if len(s.batch) <= keep {
		return nil
	}
	err := s.halves.Add(s.batch)
	s.batch = s.batch[:0]
	return err
}
