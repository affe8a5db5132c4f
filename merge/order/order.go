// Package order puts records of many streams in order of time. Streams are cut into windows of time; a window's records are sorted by
// radix on the nanoseconds since its start, which costs a few passes over small keys and beats a heap over the streams, whose every
// step is a cache miss and a mispredicted branch.
package order

import (
	"cmp"
	"slices"
)

// Ref is the key of a record: when, and where the record lies. Ties of Post go by the caller's rule.
type Ref struct {
	Post int64
	At   uint32
}

const (
	digitBits = 11
	digits    = 1 << digitBits
	smallSort = 64 // below this, insertion beats counting
)

// Sorter sorts refs. Its zero value is ready; it keeps its buffers.
type Sorter struct {
	other []Ref
	count [digits]uint32
}

// Sort puts refs in order of Post; those of one Post in the order that tie gives to their records.
func (s *Sorter) Sort(refs []Ref, tie func(a, b uint32) int) {
	switch {
	case len(refs) < 2:
		return
	case len(refs) <= smallSort:
		slices.SortFunc(refs, func(a, b Ref) int {
			if c := cmp.Compare(a.Post, b.Post); c != 0 {
				return c
			}
			return tie(a.At, b.At)
		})
		return
	}
	low, high := refs[0].Post, refs[0].Post
	for i := range refs {
		low, high = min(low, refs[i].Post), max(high, refs[i].Post)
	}
	if cap(s.other) < len(refs) {
		s.other = make([]Ref, len(refs)+len(refs)/4)
	}
	from, to := refs, s.other[:len(refs)]
	for shift, span := uint(0), uint64(high)-uint64(low); span>>shift != 0; shift += digitBits {
		if !s.pass(from, to, low, shift) {
			continue
		}
		from, to = to, from
		if shift+digitBits >= 64 {
			break
		}
	}
	if &from[0] != &refs[0] {
		copy(refs, from)
	}
	for i := 0; i < len(refs); {
		j := i + 1
		for j < len(refs) && refs[j].Post == refs[i].Post {
			j++
		}
		if j > i+1 {
			slices.SortFunc(refs[i:j], func(a, b Ref) int { return tie(a.At, b.At) })
		}
		i = j
	}
}

// pass distributes from into to by one digit of the time since low. It does nothing and returns false when all have the same.
func (s *Sorter) pass(from, to []Ref, low int64, shift uint) bool {
	clear(s.count[:])
	for i := range from {
		s.count[(uint64(from[i].Post)-uint64(low))>>shift&(digits-1)]++
	}
	if s.count[(uint64(from[0].Post)-uint64(low))>>shift&(digits-1)] == uint32(len(from)) {
		return false
	}
	sum := uint32(0)
	for i, n := range s.count {
		s.count[i] = sum
		sum += n
	}
	for i := range from {
		d := (uint64(from[i].Post) - uint64(low)) >> shift & (digits - 1)
		to[s.count[d]] = from[i]
		s.count[d]++
	}
	return true
}
