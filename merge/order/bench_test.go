package order_test

import (
	"cmp"
	"container/heap"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/capture/capturetest"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/order"
)

const (
	benchStreams = 64
	benchRecords = 40_000 // of each stream
)

// captures makes one capture of a bandwidth test for each stream: bursts of four writes and their completion, all at the same rate,
// none in step with another.
func captures(tb testing.TB) []*capture.File {
	tb.Helper()
	var files []*capture.File
	for i := range benchStreams {
		r := rand.New(rand.NewPCG(uint64(i), 7))
		var file capturetest.Memory
		w := capturetest.New(&file, capture.Header{Pid: uint32(i + 1), Rank: -1, World: -1}, catalogue.Default)
		t := w.Thread()
		write := []uint64{5, 0, 4096, 0, 0, 1, 0x7f0000000000, 0x1234, 0x7e0000000000, 0xabcdef, 0, 0}
		done := []uint64{5, 0, 2, 0, 1, 0, 0, 0, 0}
		time := 1_000_000 + r.Uint64N(5000)
		for n := range uint64(benchRecords / 5) {
			for k := range uint64(4) {
				time += 300 + r.Uint64N(400)
				write[catalogue.VerbsRequestWrId] = 4*n + k
				write[catalogue.VerbsRequestFlags] = catalogue.VerbsSendFlagsSignaled * (k / 3)
				t.Event(time, catalogue.EventVerbsWrite, write)
			}
			time += 500
			done[catalogue.VerbsCompletionWrId] = 4*n + 3
			t.Event(time, catalogue.EventVerbsCompletion, done)
		}
		if err := w.Close(); err != nil {
			tb.Fatal(err)
		}
		f, err := capture.New("memory", &reader{file}, int64(len(file)))
		if err != nil {
			tb.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

type reader struct{ b []byte }

func (r *reader) ReadAt(b []byte, offset int64) (int, error) {
	if offset < 0 || offset > int64(len(r.b)) {
		return 0, errors.New("outside")
	}
	return copy(b, r.b[offset:]), nil
}

// stream reads a capture's records.
type stream struct {
	f       *capture.File
	chunk   int
	open    bool
	decoder capture.Decoder
	index   int
	head    capture.Event // of the heap
}

func (s *stream) Next(ev *capture.Event) (bool, error) {
	for {
		if !s.open {
			if s.chunk == len(s.f.Chunks()) {
				return false, nil
			}
			s.decoder.Reset(s.f, &s.f.Chunks()[s.chunk], catalogue.Default)
			s.open = true
		}
		ok, err := s.decoder.Next(ev)
		if err != nil {
			return false, err
		}
		if ok && ev.ID != 0 {
			return true, nil
		}
		if !ok {
			s.chunk++
			s.open = false
		}
	}
}

// check is what both benchmarks do with a record: it must come in order.
type check struct {
	last, n uint64
	sum     uint64
}

func (c *check) take(tb testing.TB, ev *capture.Event) {
	if ev.Time < c.last {
		tb.Fatalf("record %d at %d comes after %d", c.n, ev.Time, c.last)
	}
	c.last = ev.Time
	c.sum += ev.Fields[catalogue.VerbsRequestWrId]
	c.n++
}

func (c *check) end(tb testing.TB) {
	tb.Helper()
	if c.n != benchStreams*benchRecords {
		tb.Fatalf("%d records of %d", c.n, benchStreams*benchRecords)
	}
}

// BenchmarkMerge decodes and orders the records of 64 captures, by windows, as the merger does.
func BenchmarkMerge(b *testing.B) {
	files := captures(b)
	m := order.Merger[capture.Event]{
		Time: func(ev *capture.Event) int64 { return int64(ev.Time) },
		Tie:  func(x, y *capture.Event) int { return cmp.Compare(x.Sequence, y.Sequence) },
	}
	streams := make([]*stream, len(files))
	for i := range streams {
		streams[i] = &stream{}
	}
	for b.Loop() {
		var c check
		var inputs []order.Input[capture.Event]
		for i, f := range files {
			s := streams[i]
			s.f, s.chunk, s.open = f, 0, false
			inputs = append(inputs, order.Input[capture.Event]{From: int64(f.Chunks()[0].First), Stream: s})
		}
		if err := m.Merge(inputs, func(ev *capture.Event) error { c.take(b, ev); return nil }); err != nil {
			b.Fatal(err)
		}
		c.end(b)
	}
	b.ReportMetric(float64(b.N)*benchStreams*benchRecords/b.Elapsed().Seconds()/1e6, "Mrecords/s")
}

type streamHeap []*stream

func (h streamHeap) Len() int { return len(h) }
func (h streamHeap) Less(i, j int) bool {
	a, b := h[i], h[j]
	return a.head.Time < b.head.Time || (a.head.Time == b.head.Time && a.index < b.index)
}
func (h streamHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *streamHeap) Push(x any)   { *h = append(*h, x.(*stream)) }
func (h *streamHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// BenchmarkMergeHeap does the same with container/heap, the way it is mostly done.
func BenchmarkMergeHeap(b *testing.B) {
	files := captures(b)
	streams := make([]*stream, len(files))
	for i := range streams {
		streams[i] = &stream{index: i}
	}
	for b.Loop() {
		var c check
		var h streamHeap
		for i, f := range files {
			s := streams[i]
			s.f, s.chunk, s.open = f, 0, false
			if ok, err := s.Next(&s.head); err != nil || !ok {
				b.Fatal(ok, err)
			}
			h = append(h, s)
		}
		heap.Init(&h)
		for len(h) > 0 {
			s := h[0]
			c.take(b, &s.head)
			ok, err := s.Next(&s.head)
			if err != nil {
				b.Fatal(err)
			}
			if ok {
				heap.Fix(&h, 0)
			} else {
				heap.Pop(&h)
			}
		}
		c.end(b)
	}
	b.ReportMetric(float64(b.N)*benchStreams*benchRecords/b.Elapsed().Seconds()/1e6, "Mrecords/s")
}

// BenchmarkDecode is what both pay: reading the records, in no order.
func BenchmarkDecode(b *testing.B) {
	files := captures(b)
	var s stream
	var ev capture.Event
	for b.Loop() {
		n := 0
		for _, f := range files {
			s.f, s.chunk, s.open = f, 0, false
			for {
				ok, err := s.Next(&ev)
				if err != nil {
					b.Fatal(err)
				}
				if !ok {
					break
				}
				n++
			}
		}
		if n != benchStreams*benchRecords {
			b.Fatal(n)
		}
	}
	b.ReportMetric(float64(b.N)*benchStreams*benchRecords/b.Elapsed().Seconds()/1e6, "Mrecords/s")
}
