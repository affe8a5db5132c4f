package pairing

import (
	"slices"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// Phase sums up the phases of one name.
type Phase struct {
	Count   int64
	NS      int64           // from begin to end, nested ones included
	Traffic map[uint8]Count // by layer's index: what was posted meanwhile by the thread, or for ranges across threads by any
}

// Count is a number of requests and their payload.
type Count struct{ Requests, Bytes uint64 }

// phases are those that are open.
type phases struct {
	threads map[uint32][]open // what nests, by thread, the outermost first
	ranges  map[uint64]open   // what may end in another thread, by id
	open    int               // how many in all
}

// open is a phase that has begun.
type open struct {
	entry int32
	name  uint32
	kept  bool // there was room for its entry
	begin int64
}

// maxOpenPhases bounds the phases that are followed at a time, in a thread and across threads.
const maxOpenPhases = 4096

func (p *Pairer) phase(ev *capture.Event) {
	s := p.state(uint32(ev.Fields[catalogue.AppPhaseTrack]), app)
	if p.phases.threads == nil {
		p.phases = phases{threads: map[uint32][]open{}, ranges: map[uint64]open{}}
	}
	switch ev.ID {
	case catalogue.EventAppMark:
		i, ok := p.post(ev, s, ops.Local, 0)
		p.nextLocal(i, s)
		p.endAt(i, ok, 0)
	case catalogue.EventAppPhaseBegin:
		p.beginPhase(ev, s)
	case catalogue.EventAppPhaseEnd:
		p.endPhase(ev)
	}
}

// nextLocal numbers an operation that no other side counts.
func (p *Pairer) nextLocal(i int32, s *state) {
	p.slab.at(i).op.Ordinal = s.locals
	s.locals++
}

func (p *Pairer) beginPhase(ev *capture.Event, s *state) {
	thread, id := ev.Thread, ev.Fields[catalogue.AppPhaseRange]
	if len(p.phases.threads[thread]) >= maxOpenPhases || len(p.phases.ranges) >= maxOpenPhases {
		p.Counts.Overflow++
		return
	}
	i, ok := p.post(ev, s, ops.Local, 0)
	p.nextLocal(i, s)
	o := open{entry: i, name: uint32(ev.Fields[catalogue.AppPhaseName]), kept: ok, begin: p.slab.at(i).op.Post}
	if !ok {
		p.overflow(i)
	}
	p.phases.open++
	if id != 0 {
		p.phases.ranges[id] = o
	} else {
		p.phases.threads[thread] = append(p.phases.threads[thread], o)
	}
}

// endPhase ends the innermost phase of the name, or the range of the id. One that began before the window opened is not known.
func (p *Pairer) endPhase(ev *capture.Event) {
	thread, id, name := ev.Thread, ev.Fields[catalogue.AppPhaseRange], uint32(ev.Fields[catalogue.AppPhaseName])
	var o open
	if id != 0 {
		var found bool
		if o, found = p.phases.ranges[id]; !found {
			return
		}
		delete(p.phases.ranges, id)
	} else {
		stack := p.phases.threads[thread]
		at := len(stack) - 1
		for at >= 0 && stack[at].name != name && name != 0 {
			at--
		}
		if at < 0 {
			return
		}
		o = stack[at]
		p.phases.threads[thread] = append(stack[:at], stack[at+1:]...)
	}
	p.phases.open--
	ns := p.process.Clock.NS(ev.Time)
	x := p.phaseNamed(o.name)
	x.Count++
	x.NS += max(ns-o.begin, 0)
	if o.kept {
		p.complete(o.entry, ns, 0, 0)
	}
}

func (p *Pairer) phaseNamed(name uint32) *Phase {
	x := p.Counts.Phases[name]
	if x == nil {
		x = &Phase{Traffic: map[uint8]Count{}}
		p.Counts.Phases[name] = x
	}
	return x
}

// inPhases counts what a thread posts in the phases that it is in, once for each name.
func (p *Pairer) inPhases(ev *capture.Event, s *state, bytes uint64) {
	if p.phases.open == 0 {
		return
	}
	requests := uint64(1)
	switch e := p.catalogue.Event(ev.ID); e.Kind {
	case catalogue.Request:
	case catalogue.Call:
		if p.receives(s.layer, ev.Fields[catalogue.CallOperation]) {
			return
		}
		requests = ev.Fields[catalogue.CallRequests]
	default:
		return
	}
	stack := p.phases.threads[ev.Thread]
	for i, o := range stack {
		if !hasName(stack[:i], o.name) {
			p.phaseNamed(o.name).add(s.layer, requests, bytes)
		}
	}
	if len(p.phases.ranges) == 0 {
		return
	}
	seen := map[uint32]bool{}
	for _, o := range p.phases.ranges {
		if !seen[o.name] && !hasName(stack, o.name) {
			p.phaseNamed(o.name).add(s.layer, requests, bytes)
		}
		seen[o.name] = true
	}
}

// receives says whether an event, by its number, posts a receive, which only cross-checks.
func (p *Pairer) receives(layer uint8, event uint64) bool {
	e := p.catalogue.Event(uint16(event))
	return e != nil && slices.Contains(p.catalogue.Layers[layer].Targets, e.Operation)
}

func hasName(stack []open, name uint32) bool {
	for _, o := range stack {
		if o.name == name {
			return true
		}
	}
	return false
}

func (x *Phase) add(layer uint8, requests, bytes uint64) {
	c := x.Traffic[layer]
	c.Requests += requests
	c.Bytes += bytes
	x.Traffic[layer] = c
}
