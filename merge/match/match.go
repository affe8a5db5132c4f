package match

import (
	"context"

	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/spill"
)

// Causes why a message was not matched.
const (
	PeerNotTraced     = "peer not traced"
	NoReceiveRecorded = "no receive recorded"
	NoSendRecorded    = "no send recorded"
	LostRecords       = "lost records"
	LeftOut           = "left out by a window" // sorts before LostRecords, which counts for more
	Unfinished        = "unfinished"
	Failed            = "error"
	NoTagRecorded     = "sender's tag not recorded"
	Multicast         = "multicast"
)

// Halves and Results are the external sorts that matching works on.
type (
	Halves  = spill.Sorter[Half, *Half]
	Results = spill.Sorter[Result, *Result]
)

// NewHalves makes the sorter of a run's halves.
func NewHalves(file *spill.File, memory int64) *Halves {
	return spill.NewSorter[Half](file, halfBytes, memory)
}

// NewResults makes the sorter of a run's results.
func NewResults(file *spill.File, memory int64) *Results {
	return spill.NewSorter[Result](file, resultBytes, memory)
}

// Keep returns where in file results are, for other processes to read: they are written there unless they are.
func Keep(results *spill.Sorted[Result, *Result], file *spill.File) (spill.Run, error) {
	return results.Keep(file, resultBytes)
}

// KeepHalves does so with halves.
func KeepHalves(halves *spill.Sorted[Half, *Half], file *spill.File) (spill.Run, error) {
	return halves.Keep(file, halfBytes)
}

// ResultsAt are those that another process has kept.
func ResultsAt(file *spill.File, r spill.Run) *spill.Sorted[Result, *Result] {
	return spill.SortedAt[Result](file, resultBytes, r)
}

// Found counts what matching found at one layer.
type Found struct {
	Matched   int64
	Ambiguous int64 // of the matched
	Unmatched map[string]int64
}

// Summary counts what matching found.
type Summary struct {
	Layers            map[uint8]*Found
	ReceiveBeforeSend int64
	Unsure            int64 // of those, not surely matched
	WorstNS           int64 // by which a receive ended before its send was posted, at most
}

// matcher carries one pass over all halves.
type matcher struct {
	in      *spill.Sorted[Half, *Half]
	out     *Results
	batch   []Result
	known   Knowledge
	summary Summary
	found   *Found // of the group's layer
}

// Knowledge is what matching asks about processes.
type Knowledge struct {
	Missing func(process uint32) string // why records of a process are missing: LostRecords, LeftOut; "" where none are
	// Holes tells whether records of a half's object may be missing between those that are there, so that their order does not number
	// them. Where only what comes behind a hole is without a number, those halves say so themselves, by Ambiguous.
	Holes func(h *Half) bool
	// Displaced tells whether a receive's place in the order is not sure, because an earlier one that never ended may have taken a
	// message of its tag.
	Displaced func(receive *Half) bool
	// Clock takes a time of a process to the clock by which ambiguous halves are put together; nil: all are of one clock.
	Clock func(process uint32, ns int64) int64
	// Placed takes it to the run's, on which results are; nil: as Clock.
	Placed func(process uint32, ns int64) int64
	// Message, where not nil, is called with both halves of each matched message.
	Message func(send, receive *Half, sure bool) error
}

// Run matches all halves and adds the results to out, unless that is nil.
func Run(ctx context.Context, in *spill.Sorted[Half, *Half], out *Results, known Knowledge, progress func(done, total int64)) (*Summary, error) {
	if known.Clock == nil {
		known.Clock = func(_ uint32, ns int64) int64 { return ns }
	}
	if known.Placed == nil {
		known.Placed = known.Clock
	}
	m := &matcher{in: in, out: out, known: known, summary: Summary{Layers: map[uint8]*Found{}}}
	scan := in.From(0)
	more, err := scan.Next()
	for n := 0; more && err == nil; n++ {
		if n%1024 == 0 {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			progress(scan.Index(), in.Len())
		}
		var g group
		if g, more, err = m.survey(scan); err == nil {
			err = m.join(&g)
		}
	}
	if err == nil {
		err = m.flush(0)
	}
	progress(in.Len(), in.Len())
	return &m.summary, err
}

// group is one stream: its sends are records from to split, its receives split to to.
type group struct {
	from, split, to int64
	first           Half
	sources         bool   // several endpoints send on it
	directed        bool   // a receive on it knows its source
	missing         string // why records of a process of it are missing
	holes           bool   // and that they are between those that are there
}

// survey walks over the group that scan stands on, to the first record behind it.
func (m *matcher) survey(scan *spill.Cursor[Half, *Half]) (g group, more bool, err error) {
	g = group{from: scan.Index(), first: scan.Value}
	g.split = g.from
	process, object := ^uint32(0), ^uint32(0)
	for {
		h := &scan.Value
		if h.Side == Send {
			g.split = scan.Index() + 1
			g.sources = g.sources || !h.sameSource(&g.first)
		}
		g.directed = g.directed || (h.Side == Receive && h.Source != 0)
		if h.Process != process || h.Object != object {
			process, object = h.Process, h.Object
			g.missing = max(g.missing, m.known.Missing(process))
			g.holes = g.holes || m.known.Holes(h)
		}
		more, err = scan.Next()
		if err != nil || !more || scan.Value.Stream != g.first.Stream {
			g.to = scan.Index()
			if !more {
				g.to = m.in.Len()
			}
			return g, more, err
		}
	}
}

func (m *matcher) join(g *group) error {
	m.found = m.summary.Layers[g.first.Layer]
	if m.found == nil {
		m.found = &Found{Unmatched: map[string]int64{}}
		m.summary.Layers[g.first.Layer] = m.found
	}
	if g.sources && g.directed && g.to-g.from <= maxBySource {
		return m.joinBySource(g)
	}
	var flags ops.Flag
	if g.first.Rule != Equal && (g.sources || g.holes || (g.first.Rule == RankLossy && g.split-g.from != g.to-g.split)) {
		flags = ops.Ambiguous
	}
	sends, receives := m.in.From(g.from), m.in.From(g.split)
	var haveSend, haveReceive bool
	step := func(c *spill.Cursor[Half, *Half], end int64) (bool, error) {
		if c.Index()+1 >= end {
			return false, nil
		}
		return c.Next()
	}
	var err error
	if haveSend, err = step(sends, g.split); err != nil {
		return err
	}
	if haveReceive, err = step(receives, g.to); err != nil {
		return err
	}
	for haveSend || haveReceive {
		takeSend, takeReceive := haveSend, haveReceive
		if haveSend && haveReceive {
			takeSend, takeReceive = m.next(g.first.Rule, &sends.Value, &receives.Value)
		}
		switch {
		case takeSend && takeReceive:
			err = m.pair(&sends.Value, &receives.Value, flags)
		case takeSend:
			m.alone(g, NoReceiveRecorded)
		case receives.Value.Flags&ops.Unfinished != 0:
			m.found.Unmatched[Unfinished]++
		default:
			m.alone(g, NoSendRecorded)
		}
		if takeSend && err == nil {
			haveSend, err = step(sends, g.split)
		}
		if takeReceive && err == nil {
			haveReceive, err = step(receives, g.to)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// next tells which of a send and a receive come next: both where they are one message.
func (m *matcher) next(rule Rule, s, r *Half) (send, receive bool) {
	if rule == Equal {
		return s.Order <= r.Order, r.Order <= s.Order
	}
	if rule != Rank || (s.Flags|r.Flags)&ops.Ambiguous == 0 || (s.Window == Unwindowed && r.Window == Unwindowed) {
		return true, true
	}
	// Behind what a window left out nothing numbers them. What is left of an earlier window had its partner outside of it, and a receive
	// that ended before a send was posted had another one.
	both := s.Window != Unwindowed && r.Window != Unwindowed
	switch {
	case both && s.Window < r.Window:
		return true, false
	case both && r.Window < s.Window, m.known.Clock(r.Process, r.Done) < m.known.Clock(s.Process, s.Post):
		return false, true
	}
	return true, true
}

func (m *matcher) alone(g *group, cause string) {
	if g.missing != "" {
		cause = g.missing
	}
	m.found.Unmatched[cause]++
}

func (m *matcher) pair(s, r *Half, flags ops.Flag) error {
	if r.Flags&ops.Unfinished != 0 {
		m.found.Unmatched[Unfinished] += 2
		return nil
	}
	flags |= (s.Flags | r.Flags) & ops.Ambiguous
	if (s.Bytes != r.Bytes && r.Bytes != UnknownBytes && r.Flags&ops.Failed == 0) || (r.Rule == Rank && m.known.Displaced(r)) {
		flags |= ops.Ambiguous // they may not be one message
	}
	m.found.Matched++
	if flags&ops.Ambiguous != 0 {
		m.found.Ambiguous++
	}
	if m.known.Message != nil {
		if err := m.known.Message(s, r, (flags|s.Flags|r.Flags)&(ops.Ambiguous|ops.Failed) == 0); err != nil {
			return err
		}
	}
	sent := m.known.Placed(s.Process, s.Post)
	if early := sent - m.known.Placed(r.Process, r.Done); early > 0 {
		m.summary.ReceiveBeforeSend++
		m.summary.WorstNS = max(m.summary.WorstNS, early)
		if flags&ops.Ambiguous != 0 {
			m.summary.Unsure++
		}
	}
	if m.out == nil {
		return nil
	}
	m.batch = append(m.batch,
		Result{sent, s.Sequence, s.Flow, s.Process, s.Thread, r.Process, r.Object, flags},
		Result{m.known.Placed(r.Process, r.Post), r.Sequence, s.Flow, r.Process, r.Thread, s.Process, s.Object, flags})
	return m.flush(1024)
}

func (m *matcher) flush(limit int) error {
	if len(m.batch) <= limit || m.out == nil {
		return nil
	}
	err := m.out.Add(m.batch)
	m.batch = m.batch[:0]
	return err
}
