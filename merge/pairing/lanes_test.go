package pairing

import "testing"

// A lane is taken again only when it was free at the time asked for, the lowest first; at the limit there is none.
func TestLanes(t *testing.T) {
	var l lanes
	for i, c := range []struct {
		take    bool
		lane    uint16 // to release, or expected
		ns      int64
		limit   int
		refused bool
	}{
		{take: true, ns: 10, limit: 3, lane: 0},
		{take: true, ns: 11, limit: 3, lane: 1},
		{lane: 0, ns: 20},
		{take: true, ns: 15, limit: 3, lane: 2},       // lane 0 was not yet free then
		{take: true, ns: 16, limit: 3, refused: true}, // nor now, and there are no more
		{take: true, ns: 20, limit: 3, lane: 0},       // but at the time it ended
		{lane: 2, ns: 30}, {lane: 1, ns: 31},
		{take: true, ns: 40, limit: 3, lane: 1},
		{take: true, ns: 40, limit: 3, lane: 2},
		{take: true, ns: 40, limit: 3, refused: true},
	} {
		if !c.take {
			l.release(c.lane, c.ns)
			continue
		}
		lane, ok := l.take(c.ns, c.limit)
		if ok == c.refused || ok && lane != c.lane {
			t.Errorf("step %d: lane %d, %t; not %d", i, lane, ok, c.lane)
		}
	}
	if l.count() != 3 {
		t.Errorf("%d lanes", l.count())
	}
}

// With thousands of lanes, as of a queue full of receives, no two requests share one.
func TestManyLanes(t *testing.T) {
	var l lanes
	used := map[uint16]bool{}
	for i := range 5000 {
		lane, ok := l.take(int64(i), maxLanes)
		if !ok || used[lane] {
			t.Fatalf("request %d: lane %d, %t", i, lane, ok)
		}
		used[lane] = true
	}
	l.release(4321, 6000)
	l.release(77, 6000)
	for _, want := range []uint16{77, 4321, 5000} {
		if lane, ok := l.take(6000, maxLanes); !ok || lane != want {
			t.Errorf("lane %d, %t, not %d", lane, ok, want)
		}
	}
}
