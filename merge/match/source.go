package match

import "github.com/sigmatrace/sigmatrace/merge/ops"

// maxBySource is the most messages of a stream that are put together source by source: they are held in memory.
const maxBySource = 1 << 18

// joinBySource matches a stream on which several endpoints send and receives tell their source: the k-th send of a source belongs to the
// k-th receive from it. A receive that does not know its source takes the earliest send that is left; it may have been another one, so
// what follows is flagged.
func (m *matcher) joinBySource(g *group) error {
	var sends []Half
	var taken []bool
	queues := map[uint64][]int{} // by source, in order
	c := m.in.From(g.from)
	more, err := c.Next()
	for ; more && err == nil && c.Index() < g.split; more, err = c.Next() {
		queues[c.Value.Source] = append(queues[c.Value.Source], len(sends))
		sends = append(sends, c.Value)
	}
	taken = make([]bool, len(sends))
	first := 0
	var flags ops.Flag
	if g.holes {
		flags = ops.Ambiguous
	}
	for ; more && err == nil && c.Index() < g.to; more, err = c.Next() {
		r := &c.Value
		at := -1
		if r.Source != 0 {
			q := queues[r.Source]
			for len(q) > 0 && taken[q[0]] {
				q = q[1:]
			}
			if len(q) > 0 {
				at = q[0]
				q = q[1:]
			}
			queues[r.Source] = q
		} else if r.Flags&ops.Unfinished == 0 {
			for first < len(sends) && taken[first] {
				first++
			}
			if first < len(sends) {
				at = first
			}
			flags = ops.Ambiguous
		}
		switch {
		case at >= 0:
			taken[at] = true
			if err = m.pair(&sends[at], r, flags); err != nil {
				return err
			}
		case r.Flags&ops.Unfinished != 0:
			m.found.Unmatched[Unfinished]++
		default:
			m.alone(g, NoSendRecorded)
		}
	}
	for _, t := range taken {
		if !t {
			m.alone(g, NoReceiveRecorded)
		}
	}
	return err
}
