package order

import "math"

// Stream gives records in order of time. Next fills v with the next one and returns false at the end.
type Stream[T any] interface {
	Next(v *T) (bool, error)
}

// Input is a stream and the time that none of its records precedes. Its Stream is not asked for anything before that time has come.
type Input[T any] struct {
	From   int64
	Stream Stream[T]
}

// windowRecords is how many records a window is to hold: what fits the caches.
const windowRecords = 8 << 10

// Merger puts the records of any number of streams in order. It keeps its buffers from one Merge to the next.
type Merger[T any] struct {
	Time func(*T) int64
	Tie  func(a, b *T) int // orders records of one time

	arena  []T
	refs   []Ref
	active []input[T]
	sorter Sorter
	span   int64 // of a window, as far as the density is known
}

type input[T any] struct {
	Input[T]
	ahead T // the next record, where known
	known bool
}

// Merge calls emit with all records of the inputs in order. A record is valid during the call only.
func (m *Merger[T]) Merge(inputs []Input[T], emit func(*T) error) error {
	m.active = m.active[:0]
	for _, in := range inputs {
		m.active = append(m.active, input[T]{Input: in})
	}
	m.span = max(m.span, 1)
	for len(m.active) > 0 {
		start := int64(math.MaxInt64)
		for i := range m.active {
			start = min(start, m.active[i].From)
		}
		end := start + m.span
		if end < start {
			end = math.MaxInt64
		}
		if err := m.fill(end); err != nil {
			return err
		}
		m.sorter.Sort(m.refs, func(a, b uint32) int { return m.Tie(&m.arena[a], &m.arena[b]) })
		for _, r := range m.refs {
			if err := emit(&m.arena[r.At]); err != nil {
				return err
			}
		}
		m.adapt(len(m.refs))
	}
	return nil
}

// adapt sets the span so that the next window holds about windowRecords, if the density stays.
func (m *Merger[T]) adapt(n int) {
	switch {
	case n < windowRecords/8:
		m.span = min(m.span*4, math.MaxInt64/8)
	case n < windowRecords*3/4 || n > windowRecords*3/2:
		m.span = max(int64(float64(m.span)*windowRecords/float64(n)), 1)
	}
}

// fill reads what precedes end into the arena. From of what is left becomes the time of its next record.
func (m *Merger[T]) fill(end int64) error {
	m.arena, m.refs = m.arena[:0], m.refs[:0]
	for i := 0; i < len(m.active); {
		in := &m.active[i]
		if in.From >= end && end != math.MaxInt64 {
			i++
			continue
		}
		more, err := m.read(in, end)
		if err != nil {
			return err
		}
		if more {
			i++
			continue
		}
		last := len(m.active) - 1
		m.active[i] = m.active[last]
		m.active[last] = input[T]{}
		m.active = m.active[:last]
	}
	return nil
}

// read takes one stream's records up to end. It returns false at the stream's end.
func (m *Merger[T]) read(in *input[T], end int64) (bool, error) {
	if in.known {
		m.push(&in.ahead, in.From)
		in.known = false
	}
	for {
		n := len(m.arena)
		if n == cap(m.arena) {
			grown := make([]T, n, max(2*n, windowRecords))
			copy(grown, m.arena)
			m.arena = grown
		}
		v := &m.arena[:n+1][n]
		ok, err := in.Stream.Next(v)
		if !ok || err != nil {
			return false, err
		}
		t := m.Time(v)
		if t >= end && end != math.MaxInt64 {
			in.ahead, in.From, in.known = *v, t, true
			return true, nil
		}
		m.arena = m.arena[:n+1]
		m.refs = append(m.refs, Ref{t, uint32(n)})
	}
}

func (m *Merger[T]) push(v *T, t int64) {
	m.refs = append(m.refs, Ref{t, uint32(len(m.arena))})
	m.arena = append(m.arena, *v)
}
