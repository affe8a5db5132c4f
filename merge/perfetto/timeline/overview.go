package timeline

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Fact is a named text or number of the overview.
type Fact struct {
	Name   string
	Text   string
	Number int64
	IsText bool
}

// OverviewSlice is a slice over the whole time range, on a track of its own that belongs to no process.
type OverviewSlice struct {
	Track, Name string
	From, To    int64
	Facts       []Fact
}

// Overview describes the run and, where something was left out, says what. It counts its slices in s.
func (p *Plan) Overview(s *Stats) []OverviewSlice {
	from, to := p.Range()
	text := func(name, v string) Fact { return Fact{Name: name, Text: v, IsText: true} }
	number := func(name string, v int64) Fact { return Fact{Name: name, Number: v} }
	var left int64
	for _, n := range s.LeftOut {
		left += n
	}
	n := int64(1)
	if left+s.CountersLeftOut > 0 {
		n++
	}
	s.Slices += n
	var written int64
	facts := []Fact{
		text("run", p.Run.Name),
		text("begin", time.Unix(0, from).UTC().Format(time.RFC3339Nano)),
		text("end", time.Unix(0, to).UTC().Format(time.RFC3339Nano)),
		text("clock_source", p.Run.ClockSource),
	}
	if p.intervalNS > 0 {
		facts = append(facts, number("bandwidth_interval_ns", p.intervalNS))
	}
	facts = append(facts, p.Options.Facts...)
	for _, c := range p.Run.Clocks {
		facts = append(facts, text("clock_"+c.Host, ClockLabel(p.Run, c.Host)))
	}
	for _, l := range sortedKeys(s.Written) {
		facts = append(facts, number("operations_"+l, s.Written[l]))
		written += s.Written[l]
	}
	// What the file holds, so that it can be checked by itself.
	facts = append(facts, number("slices", s.Slices), number("instants", s.Instants), number("flow_begins", s.FlowBegins),
		number("flow_ends", s.FlowEnds), number("counter_samples", s.Counters), number("other_layers_and_times", s.Filtered), number("flows_cut", s.FlowsCut))
	out := []OverviewSlice{{"sigmatrace", "run " + p.Run.Name, from, to, facts}}
	if n > 1 {
		facts := []Fact{text("rule", s.Rule)}
		for _, l := range sortedKeys(s.LeftOut) {
			facts = append(facts, number("left_out_"+l, s.LeftOut[l]))
		}
		facts = append(facts, number("left_out_counter_samples", s.CountersLeftOut))
		name := fmt.Sprintf("%s of %s operations left out", strconv.FormatInt(left, 10), strconv.FormatInt(left+written, 10))
		out = append(out, OverviewSlice{"left out", name, from, to, facts})
	}
	return out
}

func sortedKeys(m map[string]int64) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
