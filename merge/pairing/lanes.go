package pairing

import "math/bits"

const (
	overflowLane = 1<<16 - 1
	maxLanes     = overflowLane
)

// lanes hands out lanes so that what shares one never overlaps: the lowest that is free and was so at the time asked for.
type lanes struct {
	free  []uint64 // a bit for each lane that is free
	ended []int64  // when the lane became free, for all lanes made
	low   int      // no word below it has a free lane
}

// take returns a lane for a request of time ns, false where limit lanes are made and none is free.
func (l *lanes) take(ns int64, limit int) (uint16, bool) {
	first := -1
	for w := l.low; w < len(l.free); w++ {
		if l.free[w] != 0 && first < 0 {
			first = w
			l.low = w
		}
		for m := l.free[w]; m != 0; m &= m - 1 {
			lane := w<<6 | bits.TrailingZeros64(m)
			if l.ended[lane] <= ns { // a call is recorded when it returns, so requests may come late
				l.free[w] &^= 1 << (lane & 63)
				return uint16(lane), true
			}
		}
	}
	if first < 0 {
		l.low = len(l.free)
	}
	lane := len(l.ended)
	if lane >= limit {
		return 0, false
	}
	l.ended = append(l.ended, 0)
	if lane>>6 == len(l.free) {
		l.free = append(l.free, 0)
	}
	return uint16(lane), true
}

// release frees a lane at time ns.
func (l *lanes) release(lane uint16, ns int64) {
	w := int(lane) >> 6
	l.ended[lane] = max(l.ended[lane], ns)
	l.free[w] |= 1 << (lane & 63)
	l.low = min(l.low, w)
}

// reserve makes sure that there are n lanes, for what takes them by number.
func (l *lanes) reserve(n int) {
	for len(l.ended) < n {
		if len(l.ended)>>6 == len(l.free) {
			l.free = append(l.free, 0)
		}
		l.ended = append(l.ended, 0)
	}
}

// count returns how many lanes were needed.
func (l *lanes) count() int { return len(l.ended) }
