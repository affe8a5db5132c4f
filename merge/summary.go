package merge

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/match"
)

// summaryIncomplete is how many incomplete processes a summary names.
const summaryIncomplete = 5

// summaryPhases is how many phases it names.
const summaryPhases = 5

// SplitHint is what to do about a trace that left something out.
const SplitHint = "`sigmatrace export --split auto RUN` writes all of it in pieces that a browser opens, --from and --to a part of it; " +
	"`--split 1` writes it whole, for `trace_processor server http FILE`, to which ui.perfetto.dev connects"

// Summary writes what matters of the account in a few lines.
func (i *Info) Summary(w io.Writer) {
	line := func(format string, args ...any) { fmt.Fprintf(w, "sigmatrace: "+format+"\n", args...) }
	r := &i.Ranks
	switch {
	case r.Expected != nil:
		line("ranks: %d of %d complete (%d with a capture%s)", r.Complete, *r.Expected, r.Active, r.others())
	case r.Injected > 0:
		line("ranks: %d of %d complete (%d with a capture%s; how many were expected is not known)", r.Complete, r.Injected, r.Active, r.others())
	}
	if i.Processes.WithoutRank > 0 || r.Injected == 0 {
		line("processes: %d with a capture, %d without a rank", i.Processes.Total, i.Processes.WithoutRank)
	}
	for n, x := range r.Incomplete {
		if n == summaryIncomplete {
			more := 0
			for _, x := range r.Incomplete[n:] {
				more += x.Count()
			}
			line("incomplete: and %d more", more)
			break
		}
		line("incomplete: %s", x)
	}
	switch {
	case i.Processes.Total > 0 || len(i.Damaged) > 0:
	case r.Expected != nil && *r.Expected > 0 && r.Injected == 0:
		line("hint: no rank started with the recorder: its program was not found, or is static, setuid or of another C library")
	default:
		line("hint: no process called a library that was traced; Open MPI, for one, uses UCX when told so by --mca pml ucx")
	}
	for n, d := range i.Damaged {
		if n == summaryIncomplete {
			line("damaged: and %d more", len(i.Damaged)-n)
			break
		}
		line("damaged: %s", d)
	}
	i.notSeen(line)
	if i.Time != nil {
		line("time: %s", i.Time)
	}
	if i.Layer != nil {
		line("%s", i.layerLine(*i.Layer))
		for _, text := range i.otherLayers() {
			line("%s", text)
		}
	}
	if i.Events.Total > 0 {
		line("events: %d", i.Events.Total)
	}
	if i.Windowed != nil {
		line("windowed: %s", i.Windowed)
	}
	if len(i.Epochs) > 0 {
		line("epochs: %d (sigmatrace info --epochs lists them)", len(i.Epochs))
	}
	for n, x := range i.Phases {
		if n == summaryPhases {
			line("phases: and %d more", len(i.Phases)-n)
			break
		}
		line("phase %s", i.phaseLine(&x))
	}
	i.GPUs.summary(line)
	i.Doorbells.summary(line)
	if i.NCCL != nil {
		for n := range i.NCCL.Groups {
			if n == summaryPhases {
				line("nccl: and %d more", len(i.NCCL.Groups)-n)
				break
			}
			line("nccl: %s", i.NCCL.Groups[n].line(i.Layer))
		}
	}
	if i.Lost.Events > 0 {
		line("lost: %d events (%s)", i.Lost.Events, map[bool]string{true: "counts and matrix go on: exact", false: "counts and matrix are a lower bound"}[i.Exact])
	}
	if i.Lost.Objects > 0 {
		line("lost: the endpoints of %d objects; their traffic is counted", i.Lost.Objects)
	}
	if !i.Exact && i.Lost.Events == 0 {
		line("counts and matrix: a lower bound")
	}
	if i.Overflow > 0 {
		line("too many at once: %d requests are shown as points in time (more --memory holds more)", i.Overflow)
	}
	for _, l := range catalogue.Default.Layers {
		if f, ok := i.Flows.Layers[l.Name]; ok {
			line("messages at layer %s: %s", l.Name, f)
		}
	}
	for _, x := range i.Exports {
		if x.Rule != "" {
			line("%s: %s", x.File, x.Rule)
			line("hint: %s", SplitHint)
		}
	}
	i.Clock.summary(line)
	if i.Clock.Steps > 0 {
		line("clock: a system clock was stepped while the run went on, by %v in all: times are those of the clock after it", time.Duration(i.Clock.StepNS).Round(time.Millisecond))
	}
	if x := i.Clock.ReceiveBeforeSend; x.Count != nil && *x.Count > 0 {
		line("clock: %d messages received before they were sent, by up to %v", *x.Count, time.Duration(*x.WorstNS))
	}
}

// notSeen names what was not seen, once for each process and reason: a process may have hundreds of queue pairs.
func (i *Info) notSeen(line func(string, ...any)) {
	type group struct {
		first Blind
		names []string
	}
	var groups []*group
	devx := false
	for _, b := range i.Blind {
		devx = devx || strings.HasPrefix(b.Reason, blindDevx)
		same := slices.IndexFunc(groups, func(g *group) bool {
			return g.first.Host == b.Host && g.first.Pid == b.Pid && g.first.Reason == b.Reason && (g.first.Rank == nil) == (b.Rank == nil) && (b.Rank == nil || *g.first.Rank == *b.Rank)
		})
		if same < 0 {
			groups = append(groups, &group{first: b})
			same = len(groups) - 1
		}
		groups[same].names = append(groups[same].names, b.Name)
	}
	left := len(i.Blind)
	for n, g := range groups {
		if n == summaryIncomplete {
			line("not seen: and %d more", left)
			break
		}
		left -= len(g.names)
		b := g.first
		b.Name = strings.Join(g.names[:min(len(g.names), summaryIncomplete)], ", ")
		if more := len(g.names) - summaryIncomplete; more > 0 {
			b.Name += fmt.Sprintf(" and %d more", more)
		}
		line("not seen: %s", b)
	}
	if devx && i.GPUs == nil {
		line("hint: what GPU kernels post to such queue pairs is recorded with `--set providers=cuda`")
	}
}

// blindDevx is how the reason begins of queue pairs that programs make in the adapter themselves (preload/mlx5dv_devx.c).
const blindDevx = "made with mlx5dv_devx_obj_create"

// otherLayers tells of the layers that the summary's is not. What GPUs rang for is in no other layer: no call of the host posts it.
func (i *Info) otherLayers() (lines []string) {
	var same, apart []string
	for _, l := range slices.Sorted(maps.Keys(i.Operations)) {
		switch {
		case l == *i.Layer:
		case l == bell || *i.Layer == bell:
			apart = append(apart, l)
		default:
			same = append(same, l)
		}
	}
	if len(same) > 0 {
		lines = append(lines, "the same traffic was also seen at layer "+strings.Join(same, ", "))
	}
	for _, l := range apart {
		if l == bell {
			lines = append(lines, "rung for by GPUs, and in no other layer: "+i.layerLine(l))
		} else {
			lines = append(lines, "posted by the host, and not in that: "+i.layerLine(l))
		}
	}
	return lines
}

// others tells of the ranks that have no capture and need none, and of those that share a number.
func (r *Ranks) others() string {
	text := ""
	if r.Excluded > 0 {
		text += fmt.Sprintf(", %d excluded", r.Excluded)
	}
	if r.Idle > 0 {
		text += fmt.Sprintf(", %d made no recorded call", r.Idle)
	}
	if r.Components > 0 {
		text += fmt.Sprintf(", those of %d components with the same number counted once", r.Components)
	}
	return text
}

// phaseLine says what went on in the phases of a name.
func (i *Info) phaseLine(x *PhaseInfo) string {
	name := x.Name
	if x.Domain != "" {
		name = x.Domain + ": " + name
	}
	text := fmt.Sprintf("%s: %d times, %v in all", name, x.Count, time.Duration(x.TimeNS).Round(time.Microsecond))
	if i.Layer != nil {
		c := x.Traffic[*i.Layer]
		text += fmt.Sprintf(", %d operations (%s) at layer %s", c.Count, size(c.Bytes), *i.Layer)
	}
	return text
}

// EpochLines writes the run's epochs, a line each, with what the summary's layer carried.
func (i *Info) EpochLines(w io.Writer) {
	if len(i.Epochs) == 0 {
		fmt.Fprintln(w, "sigmatrace: one epoch: the whole run")
		return
	}
	fmt.Fprintln(w, "number  kind      processes  begins                          name")
	for _, e := range i.Epochs {
		begins := "-"
		if e.StartNS != nil {
			begins = time.Unix(0, *e.StartNS).UTC().Format("2006-01-02T15:04:05.000000000Z")
		}
		fmt.Fprintf(w, "%6d  %-8s  %9d  %-30s  %s\n", e.Number, e.Kind, e.Processes, begins, e.Name)
		if i.Layer != nil && e.Operations[*i.Layer] != nil {
			fmt.Fprintf(w, "        %s\n", (&Info{Operations: e.Operations}).layerLine(*i.Layer))
		}
	}
}

// String says what became of the messages of one layer.
func (f Flows) String() string {
	text := fmt.Sprintf("%d matched", f.Matched)
	if f.Ambiguous > 0 {
		text += fmt.Sprintf(" (%d not surely)", f.Ambiguous)
	}
	var causes []string
	for cause, n := range f.Unmatched {
		if cause != match.Unfinished { // mostly receives posted for messages that never came
			causes = append(causes, fmt.Sprintf("%s %d", cause, n))
		}
	}
	slices.Sort(causes)
	if len(causes) > 0 {
		text += "; sends and receives without the other: " + strings.Join(causes, ", ")
	}
	if n := f.Unmatched[match.Unfinished]; n > 0 {
		text += fmt.Sprintf("; %d never completed, such as receives posted ahead", n)
	}
	return text
}

// layerLine says what a layer carried.
func (i *Info) layerLine(layer string) string {
	var parts []string
	for _, l := range catalogue.Default.Layers {
		if l.Name != layer {
			continue
		}
		for _, o := range l.Operations {
			if c := i.Operations[layer][o]; c.Count > 0 && !slices.Contains(l.Targets, o) {
				parts = append(parts, fmt.Sprintf("%d %s (%s)", c.Count, o, size(c.Bytes)))
			}
		}
	}
	if len(parts) == 0 {
		return "layer " + layer + ": receives only"
	}
	text := "layer " + layer + ": " + strings.Join(parts, ", ")
	if p, ok := i.Purposes[layer]; ok {
		text += fmt.Sprintf("; data %d (%s), control %d", p.Data.Count, size(p.Data.Bytes), p.Control.Count)
		all := uint64(0)
		for _, c := range i.Operations[layer] {
			all += c.Count
		}
		if sum := p.Data.Count + p.Control.Count; sum > all { // what is no operation is in none of the counts before
			text += fmt.Sprintf(" (%d of them no-operations, waits and the like)", sum-all)
		}
		if p.Unknown > 0 {
			text += fmt.Sprintf(", not readable %d", p.Unknown)
		}
	}
	return text
}

// Size writes a number of bytes, not less than 0, with a binary unit.
func Size(n int64) string { return size(uint64(n)) }

// size writes a number of bytes with a binary unit.
func size(n uint64) string {
	if n < 10<<10 {
		return fmt.Sprintf("%d B", n)
	}
	v, units := float64(n)/1024, "KMGTPE"
	for v >= 9999.5 && len(units) > 1 {
		v, units = v/1024, units[1:]
	}
	return fmt.Sprintf("%.4g %ciB", v, units[0])
}

// String says what was not seen of which process.
func (b Blind) String() string {
	return Incomplete{Rank: b.Rank, Host: &b.Host, Pid: &b.Pid, Reason: b.Name + ": " + b.Reason}.String()
}

func (x Incomplete) String() string {
	var who []string
	switch {
	case x.LastRank != nil:
		who = append(who, fmt.Sprintf("ranks %d to %d", *x.Rank, *x.LastRank))
	case x.Rank != nil:
		who = append(who, fmt.Sprintf("rank %d", *x.Rank))
	}
	if x.Pid != nil {
		who = append(who, fmt.Sprintf("pid %d", *x.Pid))
	}
	if x.Host != nil {
		who = append(who, "on "+*x.Host)
	}
	if len(who) == 0 {
		return x.Reason
	}
	return strings.Join(who, " ") + ": " + x.Reason
}

func (d Damage) String() string {
	if d.Offset == nil {
		return fmt.Sprintf("%s: %s", d.File, d.Reason)
	}
	return fmt.Sprintf("%s: offset %d: %s", d.File, *d.Offset, d.Reason)
}
