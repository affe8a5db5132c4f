package spill

import (
	"container/heap"
	"slices"
	"sort"
	"sync"
)

// Record is a fixed-size record of an external sort.
type Record[T any] interface {
	*T
	Put(b []byte) // encodes into b, of the size given to NewSorter
	Get(b []byte)
	Compare(o *T) int // a total order: records that compare equal are alike
}

// Sorter sorts any number of records in a bounded amount of memory. Add may be called from several goroutines at once.
type Sorter[T any, P Record[T]] struct {
	file  *File
	size  int
	limit int

	mu   sync.Mutex
	buf  []T
	runs []run
}

type run struct {
	Run
	file *File
}

// Run is a sorted run without the file that it is in, as other processes are told of it.
type Run struct{ Offset, Count int64 }

// Limits of the external sort.
const (
	cursorBytes = 32 << 10
	fanIn       = 256
)

// NewSorter makes a sorter of records of size bytes that holds up to memory bytes of them before it writes a run.
func NewSorter[T any, P Record[T]](file *File, size int, memory int64) *Sorter[T, P] {
	return &Sorter[T, P]{file: file, size: size, limit: int(max(memory/int64(size), 1024))}
}

// Add takes a batch of records; they are copied.
func (s *Sorter[T, P]) Add(batch []T) error {
	s.mu.Lock()
	s.buf = append(s.buf, batch...)
	var full []T
	if len(s.buf) >= s.limit {
		full, s.buf = s.buf, make([]T, 0, s.limit)
	}
	s.mu.Unlock()
	if full == nil {
		return nil
	}
	return s.write(full)
}

// inOrder sorts in place: a comparison function on values would move each record to the heap to take its address.
type inOrder[T any, P Record[T]] []T

func (r inOrder[T, P]) Len() int           { return len(r) }
func (r inOrder[T, P]) Less(i, j int) bool { return P(&r[i]).Compare(&r[j]) < 0 }
func (r inOrder[T, P]) Swap(i, j int)      { r[i], r[j] = r[j], r[i] }

func (s *Sorter[T, P]) write(recs []T) error {
	sort.Sort(inOrder[T, P](recs))
	r := run{Run{s.file.reserve(int64(len(recs)) * int64(s.size)), int64(len(recs))}, s.file}
	w := runWriter[T, P]{file: s.file, size: s.size, offset: r.Offset}
	for i := range recs {
		if err := w.add(&recs[i]); err != nil {
			return err
		}
	}
	if err := w.flush(); err != nil {
		return err
	}
	s.mu.Lock()
	s.runs = append(s.runs, r)
	s.mu.Unlock()
	return nil
}

type runWriter[T any, P Record[T]] struct {
	file   *File
	size   int
	offset int64
	buf    []byte
}

func (w *runWriter[T, P]) add(v *T) error {
	n := len(w.buf)
	w.buf = slices.Grow(w.buf, w.size)[:n+w.size]
	P(v).Put(w.buf[n:])
	if len(w.buf) < cursorBytes {
		return nil
	}
	return w.flush()
}

func (w *runWriter[T, P]) flush() error {
	err := w.file.write(w.buf, w.offset)
	w.offset += int64(len(w.buf))
	w.buf = w.buf[:0]
	return err
}

// Sorted is the outcome of a Sorter.
type Sorted[T any, P Record[T]] struct {
	size int
	mem  []T // all of them, where no run was written
	run  run
}

// Finish ends the adding and returns all records in order.
func (s *Sorter[T, P]) Finish() (*Sorted[T, P], error) {
	if len(s.runs) == 0 {
		sort.Sort(inOrder[T, P](s.buf))
		return &Sorted[T, P]{mem: s.buf}, nil
	}
	if len(s.buf) > 0 {
		if err := s.write(s.buf); err != nil {
			return nil, err
		}
	}
	s.buf = nil
	for len(s.runs) > 1 {
		var next []run
		for part := range slices.Chunk(s.runs, fanIn) {
			merged, err := s.merge(part)
			if err != nil {
				return nil, err
			}
			next = append(next, merged)
		}
		s.runs = next
	}
	return &Sorted[T, P]{size: s.size, run: s.runs[0]}, nil
}

func (s *Sorter[T, P]) merge(runs []run) (run, error) {
	if len(runs) == 1 {
		return runs[0], nil
	}
	var total int64
	var h cursorHeap[T, P]
	for _, r := range runs {
		total += r.Count
		c := (&Sorted[T, P]{size: s.size, run: r}).From(0)
		ok, err := c.Next()
		if err != nil {
			return run{}, err
		}
		if ok {
			h = append(h, c)
		}
	}
	heap.Init(&h)
	out := run{Run{s.file.reserve(total * int64(s.size)), total}, s.file}
	w := runWriter[T, P]{file: s.file, size: s.size, offset: out.Offset}
	for len(h) > 0 {
		if err := w.add(&h[0].Value); err != nil {
			return run{}, err
		}
		ok, err := h[0].Next()
		if err != nil {
			return run{}, err
		}
		if ok {
			heap.Fix(&h, 0)
		} else {
			heap.Pop(&h)
		}
	}
	return out, w.flush()
}

type cursorHeap[T any, P Record[T]] []*Cursor[T, P]

func (h cursorHeap[T, P]) Len() int           { return len(h) }
func (h cursorHeap[T, P]) Less(i, j int) bool { return P(&h[i].Value).Compare(&h[j].Value) < 0 }
func (h cursorHeap[T, P]) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *cursorHeap[T, P]) Push(x any)        { *h = append(*h, x.(*Cursor[T, P])) }
func (h *cursorHeap[T, P]) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// Len returns the number of records.
func (s *Sorted[T, P]) Len() int64 {
	if s.run.file == nil {
		return int64(len(s.mem))
	}
	return s.run.Count
}

// At reads record i.
func (s *Sorted[T, P]) At(i int64) (T, error) {
	if s.run.file == nil {
		return s.mem[i], nil
	}
	var v T
	b := make([]byte, s.size)
	if err := s.run.file.read(b, s.run.Offset+i*int64(s.size)); err != nil {
		return v, err
	}
	P(&v).Get(b)
	return v, nil
}

// Search returns the index of the first record for which f is true, as sort.Search does.
func (s *Sorted[T, P]) Search(f func(*T) bool) (int64, error) {
	var failed error
	i := sort.Search(int(s.Len()), func(i int) bool {
		v, err := s.At(int64(i))
		if err != nil {
			failed = err
			return true
		}
		return f(&v)
	})
	return int64(i), failed
}

// Cursor walks over sorted records. Value is the current one after Next returned true.
type Cursor[T any, P Record[T]] struct {
	Value T
	in    *Sorted[T, P]
	next  int64
	bytes int // of buf
	buf   []byte
	left  []byte
}

// From returns a cursor whose first Next gives record i.
func (s *Sorted[T, P]) From(i int64) *Cursor[T, P] { return s.FromBuffered(i, cursorBytes) }

// FromBuffered is From for many cursors at once: bytes is what each one's buffer takes.
func (s *Sorted[T, P]) FromBuffered(i int64, bytes int) *Cursor[T, P] {
	return &Cursor[T, P]{in: s, next: i, bytes: bytes}
}

// Index returns the index of Value.
func (c *Cursor[T, P]) Index() int64 { return c.next - 1 }

// Next steps on. It returns false at the end.
func (c *Cursor[T, P]) Next() (bool, error) {
	n := c.in.Len()
	if c.next >= n {
		return false, nil
	}
	if c.in.run.file == nil {
		c.Value = c.in.mem[c.next]
		c.next++
		return true, nil
	}
	if len(c.left) == 0 {
		per := int64(max(c.bytes/c.in.size, 1))
		if c.buf == nil {
			c.buf = make([]byte, per*int64(c.in.size))
		}
		c.left = c.buf[:min(per, n-c.next)*int64(c.in.size)]
		if err := c.in.run.file.read(c.left, c.in.run.Offset+c.next*int64(c.in.size)); err != nil {
			return false, err
		}
	}
	P(&c.Value).Get(c.left)
	c.left = c.left[c.in.size:]
	c.next++
	return true, nil
}
