package merge

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/match"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// InfoVersion is the major version of Info's JSON; fields are only ever added to one.
const InfoVersion = 1

// InfoSchema is the JSON schema of Info.
//
//go:embed info.schema.json
var InfoSchema []byte

// Info is the account of a merged run. What is not known is null.
type Info struct {
	Version     int                         `json:"version"`
	Run         string                      `json:"run"`
	Mode        string                      `json:"mode"` // full, simple, aggregate, or mixed
	Ranks       Ranks                       `json:"ranks"`
	Processes   Processes                   `json:"processes"`
	Time        *Times                      `json:"time"` // null where no process has a capture
	Events      Events                      `json:"events"`
	Operations  map[string]map[string]Count `json:"operations"`         // by layer and operation, of the aggregate tables: in every mode
	Purposes    map[string]Purposes         `json:"purposes,omitempty"` // by layer, of those that tell control from data
	Exact       bool                        `json:"exact"`              // operations holds all calls; else it is a lower bound
	Completions map[string]uint64           `json:"completions"`        // by layer
	Flows       Flows                       `json:"flows"`
	Unfinished  int64                       `json:"unfinished"` // requests without a completion
	Surplus     int64                       `json:"surplus"`    // completions without a request
	Overflow    int64                       `json:"overflow"`   // requests beyond those that may be outstanding in a merge: kept as points in time
	Lost        Lost                        `json:"lost"`
	Windowed    *Windowed                   `json:"windowed,omitempty"`  // null where all processes recorded all the time
	Epochs      []Epoch                     `json:"epochs"`              // that operations are kept apart for; empty: they are not
	Phases      []PhaseInfo                 `json:"phases"`              // of the application, the longest first
	GPUs        *GPUs                       `json:"gpus,omitempty"`      // null where no GPU was seen
	Doorbells   *Doorbells                  `json:"doorbells,omitempty"` // null where no process looked at doorbells
	NCCL        *NCCLInfo                   `json:"nccl"`                // null where no process found the recorder as NCCL's profiler plugin
	Clock       ClockInfo                   `json:"clock"`
	Bytes       Bytes                       `json:"bytes"`
	Damaged     []Damage                    `json:"damaged"`       // files, or parts of them, that could not be read
	Blind       []Blind                     `json:"blind"`         // queue pairs and layers whose data path was not seen
	Exports     []Exported                  `json:"exports"`       // what was written
	Layer       *string                     `json:"summary_layer"` // the layer nearest the application that all communicating processes have
}

// Count is a number of operations and their payload.
type Count struct {
	Count uint64 `json:"count"`
	Bytes uint64 `json:"bytes"`
}

// Purposes keeps what moved payload apart from what synchronised: the catalogue says of each event which it is. Unknown counts elements of queues that could not be
// read: what they moved is in no count of operations.
type Purposes struct {
	Data    Count  `json:"data"`
	Control Count  `json:"control"`
	Unknown uint64 `json:"unknown,omitempty"`
}

// addPurpose adds a total to those of its layer, where the layer tells control from data.
func (i *Info) addPurpose(e *catalogue.Event, cat *catalogue.Catalogue, t total) {
	tells := slices.ContainsFunc(cat.Events, func(x *catalogue.Event) bool { return x.Layer == e.Layer && x.Control })
	if !tells || t.count == 0 {
		return
	}
	if i.Purposes == nil {
		i.Purposes = map[string]Purposes{}
	}
	p := i.Purposes[e.Layer]
	switch {
	case e.Control:
		p.Control.Count += t.count
		p.Control.Bytes += t.bytes
	case e.Operation != "":
		p.Data.Count += t.count
		p.Data.Bytes += t.bytes
	default:
		p.Unknown += t.count
	}
	i.Purposes[e.Layer] = p
}

// Times says when a run was, in ns since the Unix epoch. export's --from and --to count from BeginNS.
type Times struct {
	BeginNS int64 `json:"begin_ns"` // the first thing recorded
	EndNS   int64 `json:"end_ns"`   // the last
	// From the first operation, phase or mark to the end of the last; null where there is none, as in mode aggregate.
	FirstOperationNS *int64 `json:"first_operation_ns"`
	LastOperationNS  *int64 `json:"last_operation_ns"`
}

// span is a time from..to, in ns; 0 and 0: none.
type span struct{ from, to int64 }

func (i *Info) addTimes(p *process) {
	if i.Time == nil {
		i.Time = &Times{BeginNS: p.place.NS(p.first), EndNS: p.place.NS(p.last)}
	}
	t := i.Time
	t.BeginNS, t.EndNS = min(t.BeginNS, p.place.NS(p.first)), max(t.EndNS, p.place.NS(p.last))
	if p.shown == (span{}) {
		return
	}
	first, last := p.place.NS(p.shown.from), p.place.NS(p.shown.to)
	if t.FirstOperationNS != nil {
		first, last = min(*t.FirstOperationNS, first), max(*t.LastOperationNS, last)
	}
	t.FirstOperationNS, t.LastOperationNS = &first, &last
}

// String gives the run's length and where its operations are in it, as export's --from and --to take it.
func (t *Times) String() string {
	text := fmt.Sprintf("%v from %s", time.Duration(t.EndNS-t.BeginNS).Round(time.Microsecond), time.Unix(0, t.BeginNS).UTC().Format(time.RFC3339Nano))
	if t.FirstOperationNS != nil {
		text += fmt.Sprintf("; operations from %v to %v", time.Duration(*t.FirstOperationNS-t.BeginNS).Round(time.Microsecond),
			time.Duration(*t.LastOperationNS-t.BeginNS).Round(time.Microsecond))
	}
	return text
}

// Events counts the records of the event streams.
type Events struct {
	Total      int64            `json:"total"`
	ByProvider map[string]int64 `json:"by_provider"`
	ByName     map[string]int64 `json:"by_name"`
}

// Flows counts what matching found, in all and by layer. Matched and Unmatched are of two-sided operations: a matched flow has two of them.
type Flows struct {
	Matched   int64            `json:"matched"`
	Ambiguous int64            `json:"ambiguous"` // of the matched: may belong to a neighbour
	Unmatched map[string]int64 `json:"unmatched"` // sends and receives, by cause
	Layers    map[string]Flows `json:"layers,omitempty"`
}

// of returns the flows of one layer, with room for unmatched ones.
func (f *Flows) of(layer string) Flows {
	l := f.Layers[layer]
	if l.Unmatched == nil {
		l.Unmatched = map[string]int64{}
	}
	return l
}

// matched adds what matching found at a layer.
func (f *Flows) matched(layer string, found *match.Found) {
	l := f.of(layer)
	l.Matched += found.Matched
	l.Ambiguous += found.Ambiguous
	f.Matched += found.Matched
	f.Ambiguous += found.Ambiguous
	f.Layers[layer] = l
	f.unmatched(layer, found.Unmatched)
}

func (f *Flows) unmatched(layer string, causes map[string]int64) {
	l := f.of(layer)
	for cause, n := range causes {
		l.Unmatched[cause] += n
		f.Unmatched[cause] += n
	}
	f.Layers[layer] = l
}

// Lost counts what found no room: events and their payload, definitions of objects, and objects that had no place in the recorder's
// table, whose traffic is then of an endpoint not known.
type Lost struct {
	Events      uint64 `json:"events"`
	Bytes       uint64 `json:"bytes"`
	Definitions uint64 `json:"definitions"`
	Objects     uint64 `json:"objects"`
}

// ClockInfo is what is known of the run's clock.
type ClockInfo struct {
	Source            *string           `json:"source"`
	Nodes             []ops.Clock       `json:"nodes"`
	Steps             int               `json:"steps"`   // of the nodes' wall clocks, taken out
	StepNS            int64             `json:"step_ns"` // sum of those of a node, of the node where it is largest
	ReceiveBeforeSend ReceiveBeforeSend `json:"receive_before_send"`
	Repaired          *Repaired         `json:"repaired,omitempty"`  // what --clock-repair changed; null where it was not asked for
	Triangles         *Triangles        `json:"triangles,omitempty"` // null where no three nodes exchanged messages
	SlackNS           int64             `json:"slack_ns,omitempty"`  // by which messages contradict each other; it is in the bounds
	Warnings          []string          `json:"warnings,omitempty"`
}

// Repaired says how many receives before their send were removed, and the most by which a time was moved for that.
type Repaired struct {
	Count  int64 `json:"count"`
	MostNS int64 `json:"most_ns"`
}

// Triangles is the triangle error of three nodes, of all that have messages both ways: by how much the offset from the first to the third is
// another than by way of the second.
type Triangles struct {
	Count   int     `json:"count"`
	MeanNS  float64 `json:"mean_ns"`
	WorstNS float64 `json:"worst_ns"`
}

// ReceiveBeforeSend counts messages that by the run's clock were received before they were sent; null where none were matched.
type ReceiveBeforeSend struct {
	Count   *int64 `json:"count"`
	WorstNS *int64 `json:"worst_ns"`         // 0 where there were none
	Unsure  *int64 `json:"unsure,omitempty"` // of them, not surely matched: no time is changed for those
}

// Bytes is the size of the captures, and what an event takes of it: chunk headers included, definitions and reserved space not.
type Bytes struct {
	Capture  int64    `json:"capture"`
	PerEvent *float64 `json:"per_event"`
}

// Blind is a queue pair whose data path goes round everything that is hooked, or a layer of a process that could not be recorded.
type Blind struct {
	Rank   *int64 `json:"rank"`
	Host   string `json:"host"`
	Pid    uint32 `json:"pid"`
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// JSON encodes the account.
func (i *Info) JSON() (json.RawMessage, error) {
	b, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding the run's account: %w", err)
	}
	return b, nil
}

// ParseInfo reads the account that a merge left in the manifest.
func ParseInfo(text []byte) (*Info, error) {
	var i Info
	if err := json.Unmarshal(text, &i); err != nil {
		return nil, fmt.Errorf("reading the merge's account: %w", err)
	}
	if i.Version > InfoVersion || i.Version < 1 {
		return nil, fmt.Errorf("reading the merge's account: version %d, this program knows %d", i.Version, InfoVersion)
	}
	return &i, nil
}

func newInfo(name string, in *inventory, cat *catalogue.Catalogue, s *match.Summary, run *ops.Run, e *epochs) *Info {
	i := &Info{
		Version: InfoVersion, Run: name, Mode: in.mode(cat), Exact: len(in.damaged) == 0, Completions: map[string]uint64{},
		Events:     Events{ByProvider: map[string]int64{}, ByName: map[string]int64{}},
		Operations: map[string]map[string]Count{}, Flows: Flows{Unmatched: map[string]int64{}, Layers: map[string]Flows{}},
		Damaged: slices.Concat(in.damaged, in.copies), Blind: []Blind{}, Exports: []Exported{},
		Epochs: e.told(), Phases: in.phases(cat), GPUs: in.gpus(), Doorbells: in.doorbells(), NCCL: in.nccl(cat),
	}
	if i.Damaged == nil {
		i.Damaged = []Damage{}
	}
	for layer, found := range s.Layers {
		i.Flows.matched(cat.Layers[layer].Name, found)
	}
	payload := int64(0)
	var windowed Windowed
	for _, p := range in.processes {
		i.addProcess(p, cat)
		payload += p.bytes
		windowed.add(p)
	}
	if windowed.Processes > 0 {
		i.Windowed = &windowed
	}
	if i.Events.Total > 0 {
		per := float64(payload) / float64(i.Events.Total)
		per = math.Round(per*1000) / 1000
		i.Bytes.PerEvent = &per
	}
	i.Ranks, i.Processes = in.ranks()
	i.Exact = i.Exact && in.reached()
	i.Clock.Nodes, i.Clock.Repaired, i.Clock.Triangles = run.Clocks, in.told.repaired, in.told.triangles
	i.Clock.SlackNS, i.Clock.Warnings = in.told.slack, in.told.warnings
	if run.ClockSource != "" {
		i.Clock.Source = &run.ClockSource
	}
	for _, c := range in.clocks {
		i.Clock.Steps += c.Steps
		if max(c.StepNS, -c.StepNS) > max(i.Clock.StepNS, -i.Clock.StepNS) {
			i.Clock.StepNS = c.StepNS
		}
	}
	if i.Flows.Matched > 0 {
		i.Clock.ReceiveBeforeSend = ReceiveBeforeSend{&s.ReceiveBeforeSend, &s.WorstNS, &s.Unsure}
	}
	i.Layer = in.summaryLayer(cat)
	return i
}

func (i *Info) addProcess(p *process, cat *catalogue.Catalogue) {
	i.addTimes(p)
	for id, n := range p.counts.Events {
		if e := cat.Event(uint16(id)); n > 0 && e != nil {
			i.Events.Total += n
			i.Events.ByProvider[e.Provider] += n
			i.Events.ByName[e.Name] += n
		}
	}
	for _, t := range p.totals {
		e := cat.Event(t.event)
		switch {
		case e == nil:
		case e.Kind == catalogue.Completion:
			i.Completions[e.Layer] += t.count
		default:
			addOperation(i.Operations, cat, t)
			i.addPurpose(e, cat, t)
		}
	}
	for layer, causes := range p.counts.Unmatched {
		i.Flows.unmatched(cat.Layers[layer].Name, causes)
	}
	i.Unfinished += p.counts.Unfinished
	i.Surplus += p.counts.Surplus
	i.Overflow += p.counts.Overflow
	i.Lost.Events += p.live.LostEvents
	i.Lost.Bytes += p.live.LostBytes
	i.Lost.Definitions += p.live.LostDefinitions
	i.Lost.Objects += p.live.LostObjects
	i.Bytes.Capture += p.size
	i.Exact = i.Exact && p.exact()
	for _, e := range p.problems {
		i.Damaged = append(i.Damaged, damageOf(p.path, e))
	}
	for _, o := range p.topology.Carry {
		if o.Blind != "" {
			i.Blind = append(i.Blind, Blind{p.rank(), p.header.Hostname, p.header.Pid, o.Name(), o.Blind})
		}
	}
	for _, x := range p.topology.Off {
		i.Blind = append(i.Blind, Blind{p.rank(), p.header.Hostname, p.header.Pid, "layer " + x.Layer, x.Reason})
	}
}

// addOperation adds a total to those of its layer and operation; what is no operation counts as none.
func addOperation(to map[string]map[string]Count, cat *catalogue.Catalogue, t total) {
	e := cat.Event(t.event)
	if e == nil || e.Operation == "" {
		return
	}
	layer := to[e.Layer]
	if layer == nil {
		layer = emptyLayer(cat, e.Layer)
		to[e.Layer] = layer
	}
	c := layer[e.Operation]
	c.Count += t.count
	c.Bytes += t.bytes
	layer[e.Operation] = c
}

// emptyLayer has every operation of a layer, counted 0 times.
func emptyLayer(cat *catalogue.Catalogue, name string) map[string]Count {
	m := map[string]Count{}
	for _, l := range cat.Layers {
		if l.Name == name {
			for _, o := range l.Operations {
				m[o] = Count{}
			}
		}
	}
	return m
}

func (in *inventory) mode(cat *catalogue.Catalogue) string {
	mode := ""
	for _, p := range in.processes {
		switch m := cat.EnumName("mode", uint64(p.header.Mode)); mode {
		case "":
			mode = m
		case m:
		default:
			return "mixed"
		}
	}
	return mode
}

// summaryLayer returns the layer nearest the application that all processes with traffic have, else the one that most have.
func (in *inventory) summaryLayer(cat *catalogue.Catalogue) *string {
	have := map[string]int{}
	communicating := 0
	for _, p := range in.processes {
		seen := map[string]bool{}
		for _, t := range p.totals {
			if e := cat.Event(t.event); e != nil && e.Operation != "" && t.count > 0 {
				seen[e.Layer] = true
			}
		}
		for l := range seen {
			have[l]++
		}
		if len(seen) > 0 {
			communicating++
		}
	}
	best := ""
	for _, l := range cat.Layers { // the catalogue lists them from the application down
		if communicating > 0 && have[l.Name] == communicating {
			return &l.Name
		}
		if have[l.Name] > have[best] {
			best = l.Name
		}
	}
	if best == "" {
		return nil
	}
	return &best
}
