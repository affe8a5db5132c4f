package clock

import (
	"cmp"
	"math/bits"
	"slices"
)

// Limits of what is kept of messages. They are fixed, so that what comes out does not depend on the memory that there is.
const (
	maxBuckets = 1 << 18 // stretches of time in which the tightest bounds of a pair of nodes are kept, of all pairs
	maxSlots   = 1 << 12 // stretches of time that one pair may have
	maxPairs   = 1 << 15 // pairs of nodes
)

// Bounds gathers what messages prove: one that a sends by its clock at s and b receives by its own at r says that b's clock is ahead of
// a's by no more than r-s. Of each pair of nodes, each direction and each stretch of time the tightest is kept. The outcome does not
// depend on the order in which messages are added.
type Bounds struct {
	origin []int64 // where the time of each node begins
	shift  uint    // log2 of the stretches' length, ns
	pairs  map[[2]uint32]*pairBounds
	used   int  // stretches
	hashed uint // pairs without node 0 are kept where so many bits of their hash are 0
	last   *pairBounds
	lastAt [2]uint32
	count  int64
}

// pairBounds are of nodes a < b: by a's clock.
type pairBounds struct {
	slots    []slot // ascending
	messages int64
}

// slot holds how far b's clock is ahead of a's: at most upper, at least lower.
type slot struct {
	index        int64
	upper, lower int64
	upperAt      int64 // by a's clock
	lowerAt      int64
}

const (
	noUpper = int64(1) << 62
	noLower = -noUpper
)

// NewBounds makes the bounds of nodes whose first times are origin, each by its own clock, over at most span ns.
func NewBounds(origin []int64, span int64) *Bounds {
	shift := uint(10) // about a microsecond
	if over := uint64(max(span, 1)) / maxSlots >> shift; over > 0 {
		shift += uint(bits.Len64(over))
	}
	return &Bounds{origin: origin, shift: shift, pairs: map[[2]uint32]*pairBounds{}}
}

// Add takes a message from one node to another, sent and received by each one's own clock.
func (b *Bounds) Add(from, to uint32, sent, received int64) {
	if from == to {
		return
	}
	b.count++
	s := slot{upper: noUpper, lower: noLower}
	key, at := [2]uint32{from, to}, sent
	if from < to {
		s.upper, s.upperAt = received-sent, sent
	} else {
		key, at = [2]uint32{to, from}, received
		s.lower, s.lowerAt = sent-received, received
	}
	s.index = (at - b.origin[key[0]]) >> b.shift
	p := b.of(key)
	if p == nil {
		return
	}
	p.messages++
	b.used += p.add(s)
	for b.used > maxBuckets {
		b.coarsen()
	}
}

func (b *Bounds) of(key [2]uint32) *pairBounds {
	if b.last != nil && b.lastAt == key {
		return b.last
	}
	p := b.pairs[key]
	if p == nil {
		if !b.keeps(key) {
			return nil
		}
		p = &pairBounds{}
		b.pairs[key] = p
		for len(b.pairs) > maxPairs && b.hashed < 32 {
			b.hashed++
			for k, q := range b.pairs {
				if !b.keeps(k) {
					b.used -= len(q.slots)
					delete(b.pairs, k)
				}
			}
		}
		if !b.keeps(key) {
			b.last = nil
			return nil
		}
	}
	b.last, b.lastAt = p, key
	return p
}

// keeps says whether there is room for a pair: those of node 0 lead everywhere.
func (b *Bounds) keeps(key [2]uint32) bool {
	if b.hashed == 0 || key[0] == 0 {
		return true
	}
	h := (uint64(key[0])<<32 | uint64(key[1])) * 0x9e3779b97f4a7c15
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	return h>>32<<(32+32-b.hashed) == 0
}

// add puts a slot's bounds in and returns by how many slots there are more.
func (p *pairBounds) add(s slot) int {
	n := len(p.slots)
	i := n
	if n > 0 && s.index <= p.slots[n-1].index {
		i, _ = slices.BinarySearchFunc(p.slots, s.index, func(x slot, at int64) int { return cmp.Compare(x.index, at) })
	}
	if i < n && p.slots[i].index == s.index {
		p.slots[i].tighten(&s)
		return 0
	}
	p.slots = slices.Insert(p.slots, i, s)
	return 1
}

// tighten takes the tighter bounds, of equal ones the earlier.
func (s *slot) tighten(o *slot) {
	if o.upper < s.upper || (o.upper == s.upper && o.upperAt < s.upperAt) {
		s.upper, s.upperAt = o.upper, o.upperAt
	}
	if o.lower > s.lower || (o.lower == s.lower && o.lowerAt < s.lowerAt) {
		s.lower, s.lowerAt = o.lower, o.lowerAt
	}
}

// coarsen makes the stretches twice as long.
func (b *Bounds) coarsen() {
	b.shift++
	b.used = 0
	for _, p := range b.pairs {
		kept := p.slots[:0]
		for _, s := range p.slots {
			s.index >>= 1
			if n := len(kept); n > 0 && kept[n-1].index == s.index {
				kept[n-1].tighten(&s)
			} else {
				kept = append(kept, s)
			}
		}
		p.slots = slices.Clip(kept)
		b.used += len(kept)
	}
}

// Messages returns how many were added.
func (b *Bounds) Messages() int64 { return b.count }
