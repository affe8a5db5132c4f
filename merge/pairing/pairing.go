// Package pairing makes operations of a process's records: it puts requests and completions together, numbers the requests of each
// object, and spreads them over lanes. Records come in order of time; what they leave behind is bounded by what the process itself
// had outstanding.
package pairing

import (
	"cmp"
	"container/heap"
	"maps"
	"slices"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/match"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/topology"
)

// Sink takes what pairing makes. Both are valid during the call only.
type Sink interface {
	Op(op *ops.Op) error
	Half(h *match.Half) error
}

// Counts of a process.
type Counts struct {
	Events     []int64                    // records by event id
	Unmatched  map[uint8]map[string]int64 // two-sided operations that cannot have a partner, by layer's index and cause
	Surplus    int64                      // completions whose request was not found
	Overflow   int64                      // requests beyond the limit of outstanding ones: kept as points in time
	Unfinished int64
	Unplaced   int64 // kernels whose times cannot be placed
	Open       []OpenReceive
	Holes      map[uint32]bool     // objects of which requests or receives are missing before recorded ones
	Phases     map[uint32]*Phase   // of the application, by the number of their name
	Groups     map[GroupKey]*Group // NCCL: by communicator and function
}

// Layers, as the catalogue names them.
const (
	ucp   = "ucp"
	uct   = "uct"
	verbs = "verbs"
	ofi   = "ofi"
	app   = "app"
	bell  = "doorbell"
	gpu   = "gpu"
	nccl  = "nccl"
)

// Pairer is the state of one process.
type Pairer struct {
	Counts Counts

	process   *topology.Process
	topology  *topology.Map
	catalogue *catalogue.Catalogue
	sink      Sink
	limit     int
	missing   string // why records are missing, as match names it; "" where none are
	lossy     bool   // some are
	phases    phases
	groups    groups
	ncclLayer uint8
	appLayer  uint8
	windows   []topology.Window

	err       error
	states    map[key]*state
	latest    *state // of latestKey: records come in bursts of one object
	latestKey key
	slab      slab
	ends      endHeap          // immediate requests, by the time they end
	requests  map[uint64]int32 // pending UCP and UCT requests by id
	fabric    fabric
	doorbells map[uint32]*doorbell // whose elements are being recorded, by thread
	early     map[uint64]early     // completions of those that came before their request's record
	flushing  []*state             // endpoints and workers that had requests for a flush to complete, in order of the first
	resets    []topology.Reset     // still to come
	last      int64                // latest time known
	now       uint64               // ticks of the latest record
}

// New makes a pairer. It holds at most limit outstanding requests; missing says why records may be missing, so that
// counters records have to be followed; "" where none are. windows: the changes of the process's window.
func New(p *topology.Process, m *topology.Map, c *catalogue.Catalogue, sink Sink, limit int, missing string, windows []topology.Window) *Pairer {
	n := 0
	if len(c.Events) > 0 {
		n = int(c.Events[len(c.Events)-1].ID)
	}
	x := &Pairer{
		Counts:  Counts{Events: make([]int64, n+1), Unmatched: map[uint8]map[string]int64{}, Phases: map[uint32]*Phase{}, Groups: map[GroupKey]*Group{}, Holes: map[uint32]bool{}},
		process: p, topology: m, catalogue: c, sink: sink, limit: limit, missing: missing, lossy: missing != "",
		states: map[key]*state{}, requests: map[uint64]int32{}, early: map[uint64]early{}, fabric: newFabric(), doorbells: map[uint32]*doorbell{}, resets: p.Resets, windows: windows,
	}
	x.ncclLayer, x.appLayer = x.layer(nccl), x.layer(app)
	return x
}

// Lossy says that records are missing from here on.
func (p *Pairer) Lossy() { p.missing, p.lossy = match.LostRecords, true }

// Event takes a record. Errors are the sink's.
func (p *Pairer) Event(ev *capture.Event) error {
	if ev.ID == 0 {
		if ev.Form == capture.FormCounters {
			p.counters(ev)
		}
		return p.err
	}
	p.advance(ev.Time)
	p.Counts.Events[ev.ID]++
	switch e := p.catalogue.Event(ev.ID); e.Layout.Name {
	case "ucp_request":
		p.ucpRequest(ev, e)
	case "ucp_completion":
		p.ucpCompletion(ev)
	case "uct_request":
		p.uctRequest(ev, e)
	case "uct_completion":
		p.uctCompletion(ev)
	case "call":
		if e.Layer == bell {
			p.doorbellCall(ev)
		} else {
			p.call(ev, e.Layer)
		}
	case "verbs_request", "verbs_datagram", "verbs_atomic":
		p.verbsRequest(ev, e)
	case "verbs_receive":
		p.verbsReceive(ev)
	case "verbs_completion":
		p.verbsCompletion(ev)
	case "verbs_empty_polls":
		p.polls(ev, ev.Fields[catalogue.VerbsEmptyPollsCount], ev.Fields[catalogue.VerbsEmptyPollsDuration])
	case "doorbell_request":
		p.doorbellRequest(ev, e)
	case "ofi_message", "ofi_access":
		p.ofiRequest(ev, e)
	case "ofi_completion":
		p.ofiCompletion(ev)
	case "ofi_error":
		p.ofiError(ev)
	case "ofi_counter":
		p.ofiCounter(ev)
	case "ofi_empty_polls":
		p.polls(ev, ev.Fields[catalogue.OfiEmptyPollsCount], ev.Fields[catalogue.OfiEmptyPollsDuration])
	case "app_phase":
		p.phase(ev)
	case "gpu_launch":
		p.local(ev, gpu, 0, 1, ev.Fields[catalogue.GpuLaunchDuration], 0)
	case "gpu_graph_launch":
		p.local(ev, gpu, 0, 1, ev.Fields[catalogue.GpuGraphLaunchDuration], 0)
	case "gpu_kernel":
		p.kernel(ev)
	case "nccl_task", "nccl_task_end", "nccl_proxy", "nccl_proxy_state", "nccl_step":
		p.nccl(ev)
	case "verbs_notify":
		p.polls(ev, 1, 0)
	}
	return p.err
}

// Finish ends what is outstanding at the last time known of the process, at least notBefore.
func (p *Pairer) Finish(notBefore int64) error {
	for _, thread := range slices.Sorted(maps.Keys(p.doorbells)) {
		p.rung(p.doorbells[thread])
	}
	for len(p.resets) > 0 {
		p.reset(p.resets[0])
		p.resets = p.resets[1:]
	}
	for len(p.ends) > 0 {
		p.popEnd()
	}
	p.last = max(p.last, notBefore)
	for i := range p.slab.used {
		if e := p.slab.at(i); e.live {
			p.unfinished(i, p.last)
		}
	}
	return p.err
}

// Last returns the latest time known.
func (p *Pairer) Last() int64 { return p.last }

// advance lets happen what was to happen by ticks.
func (p *Pairer) advance(ticks uint64) {
	for len(p.resets) > 0 && p.resets[0].Ticks <= ticks {
		p.until(p.process.Clock.NS(p.resets[0].Ticks))
		p.reset(p.resets[0])
		p.resets = p.resets[1:]
	}
	p.now = max(p.now, ticks)
	ns := p.process.Clock.NS(ticks)
	p.last = max(p.last, ns)
	p.until(ns)
}

func (p *Pairer) until(ns int64) {
	for len(p.ends) > 0 && p.ends[0].done <= ns {
		p.popEnd()
	}
}

func (p *Pairer) popEnd() {
	end := heap.Pop(&p.ends).(ending)
	p.complete(end.entry, end.done, 0, 0)
}

// reset ends all requests of a queue that was destroyed or reset. A closed UCP endpoint still completes what it had; what an endpoint of
// libfabric had is in its completion queue.
func (p *Pairer) reset(r topology.Reset) {
	s := p.states[key{r.Object, verbs}]
	if s == nil || s.outstanding == 0 || (s.object.Kind != topology.QueuePair && s.object.Kind != topology.SharedQueue) {
		return
	}
	ns := p.process.Clock.NS(r.Ticks)
	p.last = max(p.last, ns)
	for i := range p.slab.used {
		if e := p.slab.at(i); e.live && e.state == s && !e.ending {
			p.unfinished(i, ns)
		}
	}
	s.sends, s.receives, s.implicit = queue{}, queue{}, queue{}
	clear(s.byID)
}

// call takes one communication call of simple mode.
func (p *Pairer) call(ev *capture.Event, layer string) {
	p.local(ev, layer, ops.CallRecord, ev.Fields[catalogue.CallRequests], ev.Fields[catalogue.CallDuration], ev.Fields[catalogue.CallBytes])
}

func (p *Pairer) polls(ev *capture.Event, count, ticks uint64) {
	flag := ops.PollRecord
	if ev.ID == catalogue.EventVerbsNotify || ev.ID == catalogue.EventOfiCounter {
		flag = ops.Immediate
	}
	p.local(ev, p.catalogue.Event(ev.ID).Layer, flag, count, ticks, 0)
}

// local makes an operation that is whole in one record.
func (p *Pairer) local(ev *capture.Event, layer string, flags ops.Flag, requests, ticks, bytes uint64) {
	s := p.state(uint32(ev.Fields[0]), layer)
	i, ok := p.post(ev, s, ops.Local, bytes)
	e := p.slab.at(i)
	e.op.Requests = uint32(min(requests, 1<<32-1))
	e.op.Flags |= flags
	e.op.Ordinal = s.locals
	s.locals++
	p.endAt(i, ok, ticks)
}

// endAt lets a request end a number of ticks after its post.
func (p *Pairer) endAt(i int32, ok bool, ticks uint64) {
	if !ok {
		p.overflow(i)
		return
	}
	p.endLater(i, p.process.Clock.NS(p.slab.at(i).ticks+ticks))
}

// counters follows the absolute counters of an object where records are missing.
func (p *Pairer) counters(ev *capture.Event) {
	if !p.lossy {
		return
	}
	o := p.process.Objects[uint32(ev.Fields[capture.CountersObject])]
	if o == nil || !o.Carries() {
		return
	}
	s := p.state(o.ID, o.Layer)
	if n := ev.Fields[capture.CountersPosted]; n > s.posted {
		s.lostSends(n - s.posted)
		s.posted = n
		p.Counts.Holes[o.ID] = true
	}
	if n := ev.Fields[capture.CountersReceived]; n > s.received {
		s.receiveK += n - s.received
		s.received = n
		s.lost = true
		p.Counts.Holes[o.ID] = true
	}
	if n := ev.Fields[capture.CountersCompleted]; n > s.completed {
		s.completed = n
		s.lost = true
	}
}

// window tells matching which window a request was posted in: by the number of the command that opened it, so that processes agree.
func (p *Pairer) window(ticks uint64) uint32 {
	if p.missing != match.LeftOut {
		return match.Unwindowed
	}
	i, _ := slices.BinarySearchFunc(p.windows, ticks, func(w topology.Window, at uint64) int { return cmp.Compare(w.Ticks, at) })
	for ; i > 0; i-- {
		if w := &p.windows[i-1]; w.Open {
			return match.Unwindowed + 1 + uint32(w.Command)
		}
	}
	return match.Unwindowed + 1
}

// Lanes returns how many lanes the operations of each object take, by its number among those that carry operations.
func (p *Pairer) Lanes() []int {
	lanes := make([]int, len(p.process.Carry))
	for _, s := range p.states {
		lanes[s.object.Local] = s.lanes.count()
		if s.overflowed {
			lanes[s.object.Local] = overflowLane + 1
		}
	}
	return lanes
}
