package clock

import (
	"math"
	"slices"
)

// maxTriangles bounds the triples of nodes that are looked at.
const maxTriangles = 1 << 16

// Of returns how many messages a node has with others of which something is kept.
func (b *Bounds) Of(node uint32) (n int64) {
	for key, p := range b.pairs {
		if key[0] == node || key[1] == node {
			n += p.messages
		}
	}
	return n
}

// Triangles is the triangle error of triples of nodes of which each two have messages both ways: by how much the offset of the first and the
// third, as their own messages tell it, is another than those of both to the second together.
type Triangles struct {
	Count       int
	Mean, Worst float64 // ns
}

// triangles looks at three times of the run. Offsets and rates that were taken out of the bounds add up to nothing around a triangle.
func (s *solver) triangles(times []float64) (out Triangles) {
	for _, k := range []int{len(times) / 4, len(times) / 2, len(times) - len(times)/4} {
		middles := map[[2]int]float64{}
		near := map[int][]int{}
		var nodes []int
		for i := range s.edges {
			e := &s.edges[i]
			if len(e.upper) == 0 || len(e.lower) == 0 || e.b >= len(s.Nodes) {
				continue
			}
			grow := s.unsure[e.a] + s.unsure[e.b]
			middles[[2]int{e.a, e.b}] = (boundAt(e.upper, times[k], grow) - boundAt(e.lower, times[k], grow)) / 2
			if near[e.a] == nil {
				nodes = append(nodes, e.a)
			}
			near[e.a] = append(near[e.a], e.b)
		}
		for _, i := range nodes {
			for x, j := range near[i] {
				for _, k := range near[i][x+1:] {
					jk, ok := middles[[2]int{j, k}]
					if !ok || out.Count >= maxTriangles {
						continue
					}
					e := math.Abs(middles[[2]int{i, k}] - middles[[2]int{i, j}] - jk)
					out.Count++
					out.Mean += e
					out.Worst = max(out.Worst, e)
				}
			}
		}
	}
	out.Mean /= float64(max(out.Count, 1))
	return out
}

// Jitter returns the mean change of the offset from one reading of a node to the next, drift taken out. It takes three to tell.
func Jitter(readings []Reading) (ns float64, ok bool) {
	n := len(readings)
	if n < 3 {
		return 0, false
	}
	readings = slices.Clone(readings)
	slices.SortFunc(readings, func(a, b Reading) int { return int(min(max(a.At-b.At, -1), 1)) })
	first := readings[0]
	var st, so, stt, sto float64
	for _, r := range readings {
		t, o := float64(r.At-first.At)/1e9, float64(r.Offset-first.Offset)
		st, so, stt, sto = st+t, so+o, stt+t*t, sto+t*o
	}
	turn := 0.0
	if d := float64(n)*stt - st*st; d > 0 {
		turn = (float64(n)*sto - st*so) / d
	}
	for i := 1; i < n; i++ {
		change := float64(readings[i].Offset-readings[i-1].Offset) - turn*float64(readings[i].At-readings[i-1].At)/1e9
		ns += math.Abs(change)
	}
	return ns / float64(n-1), true
}
