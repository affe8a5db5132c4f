package clock

import (
	"math"
	"slices"
	"sort"
)

// Map takes times of one clock to those of another, ns to ns: piecewise linear through its points, and on in the direction of the
// outermost two. It never goes back. nil is the map that changes nothing. It is safe for concurrent use.
type Map struct {
	points []Point // ascending in both
	jumps  []Jump  // added to what the points give
}

// Point is one instant by both clocks.
type Point struct{ From, To int64 }

// Jump is a delay of all times from At on, on the clock that the points lead to. Later ones hold in place of earlier ones.
type Jump struct{ At, By int64 }

// newMap makes a map through points. Those that would let it go back, or turn it steeper than a factor of two, are left out.
func newMap(points []Point) *Map {
	slices.SortStableFunc(points, func(a, b Point) int {
		switch {
		case a.From < b.From:
			return -1
		case a.From > b.From:
			return 1
		}
		return 0
	})
	m := &Map{}
	for _, p := range points {
		if n := len(m.points); n > 0 {
			dx, dy := p.From-m.points[n-1].From, p.To-m.points[n-1].To
			if dx <= 0 || dy < dx-dx/2 || dy-dx > dx {
				continue
			}
		}
		m.points = append(m.points, p)
	}
	return m
}

// NS returns the time of the other clock.
func (m *Map) NS(ns int64) int64 {
	if m == nil {
		return ns
	}
	return m.delay(m.smooth(ns))
}

func (m *Map) smooth(ns int64) int64 {
	n := len(m.points)
	switch n {
	case 0:
		return ns
	case 1:
		return ns + m.points[0].To - m.points[0].From
	}
	i := sort.Search(n, func(i int) bool { return m.points[i].From > ns })
	i = min(max(i-1, 0), n-2)
	a, b := m.points[i], m.points[i+1]
	d, dx, dy := ns-a.From, b.From-a.From, b.To-a.To
	y := a.To + d + int64(math.Round(float64(d)*float64(dy-dx)/float64(dx)))
	if ns < b.From {
		return min(y, b.To) // rounding must not let the end of a piece pass the begin of the next
	}
	return y
}

func (m *Map) delay(ns int64) int64 {
	if len(m.jumps) == 0 {
		return ns
	}
	i := sort.Search(len(m.jumps), func(i int) bool { return m.jumps[i].At > ns })
	if i == 0 {
		return ns
	}
	return ns + m.jumps[i-1].By
}

// Inverse leads back, but for the jumps.
func (m *Map) Inverse() *Map {
	if m == nil {
		return nil
	}
	r := &Map{points: make([]Point, len(m.points))}
	for i, p := range m.points {
		r.points[i] = Point{p.To, p.From}
	}
	return r
}

// Then is the map that takes m's outcome on by next. Both are without jumps.
func (m *Map) Then(next *Map) *Map {
	switch {
	case next == nil || len(next.points) == 0:
		return m
	case m == nil || len(m.points) == 0:
		return next
	}
	back := m.Inverse()
	at := make([]int64, 0, len(m.points)+len(next.points)+2)
	for _, p := range m.points {
		at = append(at, p.From)
	}
	for _, p := range next.points {
		at = append(at, back.smooth(p.From))
	}
	slices.Sort(at)
	const second = int64(1e9) // where the direction of the ends is taken from
	at = append(append([]int64{at[0] - second}, at...), at[len(at)-1]+second)
	points := make([]Point, 0, len(at))
	for _, x := range at {
		if n := len(points); n > 0 && x-points[n-1].From < 1000 {
			continue // so close together rounding would turn the piece
		}
		points = append(points, Point{x, next.smooth(m.smooth(x))})
	}
	return newMap(points)
}

// WithJumps is m with delays on top.
func (m *Map) WithJumps(jumps []Jump) *Map {
	if len(jumps) == 0 {
		return m
	}
	r := &Map{jumps: jumps}
	if m != nil {
		r.points = m.points
	}
	return r
}

// Free is the map from the times of the clock to those of its counter alone, which keeps one rate over the whole run: what the wall
// clock was steered by in between is not in it. nil where the counter does not promise that, or one piece is all there is.
func (c *Clock) Free() *Map {
	n := len(c.knots)
	if c.changing || n < 2 || c.last <= c.first {
		return nil
	}
	first, last := c.NS(c.first), c.NS(c.last)
	whole := knot{c.first, first, rateOf(float64(last-first), c.last-c.first)}
	points := make([]Point, 0, n+1)
	for _, k := range c.knots {
		points = append(points, Point{k.base, whole.ns(k.at)})
	}
	return newMap(append(points, Point{last, whole.ns(c.last)}))
}

// Changing says that the counter does not promise a constant rate.
func (c *Clock) Changing() bool { return c.changing }
