package merge

import (
	"github.com/sigmatrace/sigmatrace/merge/clock"
	"github.com/sigmatrace/sigmatrace/merge/pairing"
	"github.com/sigmatrace/sigmatrace/merge/spill"
)

// pairedUnit is what a worker says of a unit of processes that it has paired.
type pairedUnit struct {
	Processes []pairedProcess
	Halves    spill.Run
}

// pairedProcess is what pairing leaves of a process, as other processes are told of it.
type pairedProcess struct {
	Places                          []spill.Place
	Counts                          pairing.Counts
	Operations                      int64
	Lanes                           []int
	Totals                          []toldTotal
	Shared                          map[uint32]bool
	First, Last, ShownFrom, ShownTo int64
	From, To                        uint64
	Problems                        []toldProblem
	Place                           *clock.Map // once the merge knows it
}

type toldTotal struct {
	Object              uint32
	Event               uint16
	Epoch               uint32
	Peer                uint64
	First, Count, Bytes uint64
}

type toldProblem struct {
	Text   string
	File   string
	At     int64
	HasAt  bool
	Reason string
}

// seen is an error that another process has seen.
type seen struct {
	text   string
	damage Damage
}

func (t *seen) Error() string { return t.text }

// pairedOf tells of a process that has been paired, with the problems that were found in it meanwhile.
func pairedOf(p *process, problems []error) pairedProcess {
	x := pairedProcess{
		Places: spill.Places(p.blocks), Counts: p.counts, Operations: p.operations, Lanes: p.lanes, Shared: p.shared,
		First: p.first, Last: p.last, ShownFrom: p.shown.from, ShownTo: p.shown.to, From: p.from, To: p.to, Place: p.place,
	}
	for _, t := range p.totals {
		x.Totals = append(x.Totals, toldTotal{t.object, t.event, t.epoch, t.peer, t.first, t.count, t.bytes})
	}
	for _, e := range problems {
		d := damageOf(p.path, e)
		y := toldProblem{Text: e.Error(), File: d.File, Reason: d.Reason}
		if d.Offset != nil {
			y.At, y.HasAt = *d.Offset, true
		}
		x.Problems = append(x.Problems, y)
	}
	return x
}

// give makes p what the process was that x tells of; its blocks are in file.
func (x *pairedProcess) give(p *process, file *spill.File) {
	p.paired = paired{blocks: spill.BlocksAt(file, x.Places), counts: x.Counts, operations: x.Operations, lanes: x.Lanes, shared: x.Shared,
		first: x.First, last: x.Last, shown: span{x.ShownFrom, x.ShownTo}}
	if p.shared == nil {
		p.shared = map[uint32]bool{}
	}
	p.from, p.to, p.place = x.From, x.To, x.Place
	for _, t := range x.Totals {
		p.totals = append(p.totals, total{t.Object, t.Event, t.Epoch, t.Peer, t.First, t.Count, t.Bytes})
	}
	for _, y := range x.Problems {
		d := Damage{File: y.File, Reason: y.Reason}
		if y.HasAt {
			at := y.At
			d.Offset = &at
		}
		p.problems = append(p.problems, &seen{y.Text, d})
	}
}
