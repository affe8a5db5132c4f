// Package timeline says what a trace of a merged run shows: processes, tracks, slices with their arguments, flows and counters, and
// what is left out where there is too much. The trace formats (packages perfetto and chromejson) only encode it.
package timeline

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// DefaultMaxSlices is what a browser with a 32-bit trace processor holds together with arguments and flows.
const DefaultMaxSlices = 4_000_000

// Options of an export.
type Options struct {
	Workers   int      // partitions encoded at the same time; 0 means one. The output does not depend on it.
	MaxSlices int64    // most slices and instants; 0 means DefaultMaxSlices, negative no limit
	Layers    []string // layers shown; nil means all
	From, To  int64    // only operations that overlap [From, To), ns since the Unix epoch; a To of 0 is the end of the run

	Ranks     func(int64) bool // only processes of these ranks; nil means all, also those without one
	Piece     *Piece           // only the operations of a piece; nil means all
	Elsewhere Elsewhere        // other processes that make parts; nil for none
	Facts     []Fact           // said of the run in the overview, beside what the plan knows itself

	NoBandwidth bool // without the counters of what GPUs ring for
}

// Piece is a part of a trace that is split by time: the operations posted in [From, To), ns since the Unix epoch.
type Piece struct{ From, To int64 }

// CounterKind tells the counters of an endpoint apart.
type CounterKind int

// Counters of an endpoint: requests outstanding, and the bytes posted so far by each role.
const (
	Outstanding CounterKind = iota
	SendBytes
	ReceiveBytes
	OneSidedBytes
	CallBytes
	Bandwidth // bytes a second that were rung for, of data
	Counters  // how many kinds there are
)

var counterNames = [Counters]string{"outstanding requests", "send bytes posted", "receive bytes posted", "one-sided bytes posted", "call bytes posted", "initiated bytes per second"}

// totalOf is the counter that Op.Total belongs to.
var totalOf = [...]CounterKind{ops.Initiator: SendBytes, ops.Target: ReceiveBytes, ops.OneSided: OneSidedBytes, ops.Local: CallBytes}

// Track is a row of the trace that slices or counter values are written to. Lanes of one endpoint are tracks of the same name.
type Track struct {
	Name    string
	Process int  // index into Plan.Processes; -1 for tracks of a GPU
	GPU     int  // index into Plan.GPUs; of those only
	Group   int  // number of its layer of its process, over all processes
	Rank    int  // order among the rows of its group
	Lane    int  // -1 for counters
	Lanes   int  // how many the endpoint has
	Deep    bool // one of the lanes from LanesTogether on: to be kept apart, after all other rows of its group
	Counter CounterKind
}

// LanesTogether is how many lanes of an endpoint are shown together. A receive queue may have ten thousands of receives posted: as one
// row they would fill hundreds of screens and push everything below out of sight.
const LanesTogether = 64

// deepRank is more than the ranks of all other rows of a group.
const deepRank = 1 << 28

// Process is a process as it is shown.
type Process struct {
	Index       int    // into Run.Processes
	Pid         int32  // the real one, or a number beyond Linux's highest where an earlier process has it
	Name        string // "rank 3 on node1 (pid 1234, xhpl)"
	Label       string // the clock's error
	Description string
	Layers      []string // that it has endpoints of
	FirstGroup  int      // number of the first of them over all processes
}

// endpoint is what is shown of an endpoint. Its tracks are numbered from base on: first its lanes, then its counters.
type endpoint struct {
	name                       string
	process, group, rank, base int
	lanes                      int // 0 where it is not shown
	counters                   bool
	rung                       bool // of layer doorbell: has tracks for doorbells behind its counters
}

// maxLinuxPid is PID_MAX_LIMIT of the kernel: no process has a higher id, so those above are free for processes whose id is taken
// by one of another host. The trace processor would take two processes of one id for the same.
const maxLinuxPid = 1 << 22

// OverviewPid is an id for what belongs to no process, in formats where everything needs one.
const OverviewPid = maxLinuxPid + 1

// Plan is the part of a trace that is known before the first operation is read. It is safe for concurrent use.
type Plan struct {
	Run       *ops.Run
	Options   Options
	Processes []Process // in order of rank, those without one last
	GPUs      []GPU     // where there are queues that GPUs ring
	Symbols   []string  // every text that slices use
	ArgNames  []string

	endpoints []endpoint // as Run.Endpoints
	shownOnes []int      // indices of those that are shown, in order of base
	tracks    int
	gpuBase   int // of the GPUs' tracks

	intervalNS int64 // that bandwidth is told by; 0: it is not

	text   texts
	sel    Selection
	layers map[string]bool
	ranks  []bool // by process: shown
}

// NewPlan lays out the tracks of run. It fails when a layer of the options does not exist.
func NewPlan(run *ops.Run, o Options) (*Plan, error) {
	if o.MaxSlices == 0 {
		o.MaxSlices = DefaultMaxSlices
	}
	o.Workers = max(o.Workers, 1)
	if o.To == 0 {
		o.To = 1<<63 - 1
	}
	if o.To <= o.From {
		return nil, fmt.Errorf("nothing to export: the time range ends at %d, not after its begin %d", o.To, o.From)
	}
	p := &Plan{Run: run, Options: o, layers: map[string]bool{}}
	var known []string
	for _, l := range catalogue.Default.Layers {
		known = append(known, l.Name)
		p.layers[l.Name] = o.Layers == nil || slices.Contains(o.Layers, l.Name)
	}
	for _, l := range o.Layers {
		if !slices.Contains(known, l) {
			return nil, fmt.Errorf("no layer %q; there are %s", l, strings.Join(known, ", "))
		}
	}
	p.ranks = make([]bool, len(run.Processes))
	for i := range run.Processes {
		p.ranks[i] = o.Ranks == nil || run.Processes[i].Rank >= 0 && o.Ranks(run.Processes[i].Rank)
	}
	p.layOut()
	p.makeTexts()
	return p, nil
}

func (p *Plan) layOut() {
	for i, shown := range p.ranks {
		if shown {
			p.Processes = append(p.Processes, Process{Index: i})
		}
	}
	slices.SortStableFunc(p.Processes, func(a, b Process) int {
		x, y := &p.Run.Processes[a.Index], &p.Run.Processes[b.Index]
		if (x.Rank < 0) != (y.Rank < 0) {
			return cmp.Compare(y.Rank, x.Rank)
		}
		return cmp.Or(cmp.Compare(x.Rank, y.Rank), cmp.Compare(x.Host, y.Host), cmp.Compare(x.Pid, y.Pid), cmp.Compare(x.Image, y.Image))
	})
	endpoints := make([][]int, len(p.Run.Processes))
	for e := range p.Run.Endpoints {
		if q := p.Run.Endpoints[e].Process; int(q) < len(endpoints) {
			endpoints[q] = append(endpoints[q], e)
		}
	}
	p.endpoints = make([]endpoint, len(p.Run.Endpoints))
	groups := 0
	taken, free := map[int32]bool{}, int32(OverviewPid+1)
	for i := range p.Processes {
		q := &p.Processes[i]
		p.nameProcess(q)
		q.Pid = int32(p.Run.Processes[q.Index].Pid)
		if taken[q.Pid] || q.Pid <= 0 || q.Pid > maxLinuxPid {
			q.Pid = free
			free++
		}
		taken[q.Pid] = true
		q.FirstGroup = groups
		for _, l := range catalogue.Default.Layers {
			if p.layers[l.Name] && p.group(l.Name, i, groups, endpoints[q.Index]) {
				q.Layers = append(q.Layers, l.Name)
				groups++
			}
		}
	}
	p.layOutGPUs(free)
}

// group numbers the tracks of the endpoints that belong to a layer, and says whether there are any.
func (p *Plan) group(layer string, process, group int, endpoints []int) bool {
	seen := map[string]int{}
	rank := 0
	for _, e := range endpoints {
		ep := &p.Run.Endpoints[e]
		if ep.Layer != layer || ep.Lanes <= 0 {
			continue
		}
		name := ep.Name
		if seen[name]++; seen[name] > 1 {
			name += fmt.Sprintf(" (%d)", seen[name])
		}
		// A completion queue holds polls, a track phases, layer gpu launches and kernels, and a communicator what NCCL says, which count nothing.
		d := endpoint{name: name, process: process, group: group, rank: rank, base: p.tracks, lanes: ep.Lanes, counters: ep.Kind != "cq" && ep.Kind != "fi_cq" && ep.Kind != "fi_cntr" && ep.Kind != "track" && ep.Layer != "gpu" && ep.Layer != "nccl"}
		d.rung = layer == doorbellLayer
		p.endpoints[e] = d
		p.shownOnes = append(p.shownOnes, e)
		p.tracks += d.lanes
		if d.counters {
			p.tracks += int(Counters)
		}
		rank += 1 + int(Counters)
		if d.rung {
			p.tracks += doorbellTracks
			rank += doorbellTracks
		}
	}
	return rank > 0
}

// Track describes track i.
func (p *Plan) Track(i int) Track {
	if i >= p.gpuBase {
		return p.gpuTrack(i)
	}
	n, found := slices.BinarySearchFunc(p.shownOnes, i, func(e, i int) int { return cmp.Compare(p.endpoints[e].base, i) })
	if !found {
		n--
	}
	d := &p.endpoints[p.shownOnes[n]]
	t := Track{Name: d.name, Process: d.process, Group: d.group, Rank: d.rank, Lanes: d.lanes}
	t.Lane = i - d.base
	if d.rung {
		t.Rank += doorbellTracks
	}
	switch {
	case t.Lane >= d.lanes+int(Counters):
		kind := t.Lane - d.lanes - int(Counters)
		t.Name += ": " + doorbellNames[kind]
		t.Rank += kind - doorbellTracks
		t.Lane, t.Lanes = 0, 1
	case t.Lane >= d.lanes:
		t.Counter = CounterKind(t.Lane - d.lanes)
		t.Name += ": " + counterNames[t.Counter]
		t.Rank += 1 + int(t.Counter)
		t.Lane = -1
	case t.Lane >= LanesTogether:
		t.Deep = true
		t.Rank += deepRank
	}
	return t
}

// lane is the track of an operation.
func (p *Plan) lane(op *ops.Op) int {
	d := &p.endpoints[op.Endpoint]
	switch op.Flags & (ops.Doorbell | ops.Synchronizes) {
	case ops.Doorbell:
		return d.base + d.lanes + int(Counters)
	case ops.Doorbell | ops.Synchronizes:
		return d.base + d.lanes + int(Counters) + 1
	}
	return d.base + int(op.Lane)
}

// counter is the track of a counter, false where the endpoint has none.
func (p *Plan) counter(e uint32, k CounterKind) (int, bool) {
	d := &p.endpoints[e]
	return d.base + d.lanes + int(k), d.counters
}

// title is how a process is named to people: "rank 3 on node1", or "pid 77 on node1" where it has no rank.
func (p *Plan) title(process int) string {
	q := &p.Run.Processes[process]
	if q.Rank < 0 {
		return fmt.Sprintf("pid %d on %s", q.Pid, q.Host)
	}
	return fmt.Sprintf("rank %d on %s", q.Rank, q.Host)
}

// inRun is the end of a capture's path, node's folder and file: a run directory that was moved gives the same trace.
func inRun(capture string) string {
	return filepath.Join(filepath.Base(filepath.Dir(capture)), filepath.Base(capture))
}

func (p *Plan) nameProcess(q *Process) {
	r := &p.Run.Processes[q.Index]
	exe := r.Executable[strings.LastIndexByte(r.Executable, '/')+1:]
	var inside []string
	if r.Rank >= 0 {
		inside = append(inside, fmt.Sprintf("pid %d", r.Pid))
	}
	if exe != "" {
		inside = append(inside, exe)
	}
	if r.Image > 0 {
		inside = append(inside, fmt.Sprintf("image %d", r.Image))
	}
	q.Name = p.title(q.Index)
	if len(inside) > 0 {
		q.Name += " (" + strings.Join(inside, ", ") + ")"
	}
	q.Label = ClockLabel(p.Run, r.Host)
	q.Description = fmt.Sprintf("host %s, pid %d, executable %s, capture %s; %s", r.Host, r.Pid, r.Executable, inRun(r.File), q.Label)
}

// ClockLabel says how far the clock of a host may be off.
func ClockLabel(run *ops.Run, host string) string {
	for _, c := range run.Clocks {
		switch {
		case c.Host != host:
		case c.ErrorNS != nil:
			label := fmt.Sprintf("clock error %.0f ns", *c.ErrorNS)
			if c.Source != "" {
				label += " by " + c.Source
			}
			if c.CorrectionNS != nil && *c.CorrectionNS > 0 {
				label += fmt.Sprintf(", times moved by up to %d ns", *c.CorrectionNS)
			}
			return label
		case c.Reason != "":
			return "clock error unknown: " + c.Reason
		}
	}
	return "clock error unknown"
}

// Range is the time that the trace covers: the run's, cut by the options.
func (p *Plan) Range() (from, to int64) {
	from, to = p.Options.From, p.Options.To
	if piece := p.Options.Piece; piece != nil {
		from, to = max(from, piece.From), min(to, piece.To)
	}
	from = min(max(p.Run.First, from), p.Run.Last)
	return from, max(from, min(p.Run.Last, to))
}
