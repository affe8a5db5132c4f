// Package chromejson writes a merged run in the Chrome trace event format (JSON), for tools that do not read Perfetto traces.
package chromejson

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline"
)

// Options of an export; see timeline.Options.
type Options = timeline.Options

// Stats says what was written; see timeline.Stats. Packets are the trace events.
type Stats = timeline.Stats

// Write writes the run of src to w as one JSON object. It shows what the Perfetto trace shows, but times are microseconds from the
// beginning of the run, since readers of the format keep them as floating-point numbers, which hold no wall time to the nanosecond;
// otherData.begin_ns is what to add. The bytes are the same for any number of workers.
func Write(ctx context.Context, w io.Writer, src ops.Source, o Options) (*Stats, error) {
	run := src.Run()
	p, err := timeline.NewPlan(run, o)
	if err != nil {
		return nil, err
	}
	if err := p.Select(ctx, src); err != nil {
		return nil, err
	}
	if err := p.StartParts(KindPart); err != nil {
		return nil, err
	}
	bandwidth, err := p.Bandwidth(ctx, src)
	if err != nil {
		return nil, err
	}
	l, err := newLabels(p)
	if err != nil {
		return nil, err
	}
	total := p.NewStats()
	out := &counting{w: w}
	err = timeline.Ordered(ctx, out, p.Options.Workers, run.Partitions+1, func(ctx context.Context, i int, w io.Writer) error {
		if i == 0 {
			e := newEncoder(w, p, l)
			if err := e.head(); err != nil {
				return err
			}
			total.Add(&Stats{Packets: e.events})
			return e.w.Flush()
		}
		s := &Stats{}
		taken, err := p.TakePart(ctx, KindPart, i-1, w, s)
		if err == nil && !taken {
			s, err = part(ctx, w, src, p, l, i-1)
		}
		if err != nil {
			return err
		}
		total.Add(s)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("writing the trace: %w", err)
	}
	e := newEncoder(out, p, l)
	if err := p.WriteBandwidth(bandwidth, e, total); err != nil {
		return nil, fmt.Errorf("writing the trace: %w", err)
	}
	if err := e.tail(total); err != nil {
		return nil, fmt.Errorf("writing the trace: %w", err)
	}
	total.Packets += e.events
	total.Bytes = out.n
	return total, nil
}

// KindPart are the partitions of a trace, for timeline.Elsewhere.
const KindPart = "json"

// Part writes partition i of the trace that Write writes by the same plan.
func Part(ctx context.Context, w io.Writer, src ops.Source, p *timeline.Plan, i int) (*Stats, error) {
	l, err := newLabels(p)
	if err != nil {
		return nil, err
	}
	return part(ctx, w, src, p, l, i)
}

func part(ctx context.Context, w io.Writer, src ops.Source, p *timeline.Plan, l *labels, i int) (*Stats, error) {
	e := newEncoder(w, p, l)
	s, err := p.Walk(ctx, src, i, e)
	if err != nil {
		return nil, err
	}
	s.Packets = e.events
	return s, e.w.Flush()
}

type counting struct {
	w io.Writer
	n int64
}

func (c *counting) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// labels are the texts of a run as JSON strings.
type labels struct{ symbols, args []string }

// marshal is v in JSON, with "->" left as it is.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("encoding %v: %w", v, err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// quoted is texts as JSON strings.
func quoted(texts []string) ([]string, error) {
	out := make([]string, len(texts))
	for i, s := range texts {
		b, err := marshal(s)
		if err != nil {
			return nil, err
		}
		out[i] = string(b)
	}
	return out, nil
}

func newLabels(p *timeline.Plan) (*labels, error) {
	symbols, err := quoted(p.Symbols)
	if err != nil {
		return nil, err
	}
	args, err := quoted(p.ArgNames)
	return &labels{symbols, args}, err
}

// metadata is an event that names or orders a process or thread.
type metadata struct {
	Phase string         `json:"ph"`
	Pid   int32          `json:"pid"`
	Tid   int            `json:"tid"`
	Name  string         `json:"name"`
	Args  map[string]any `json:"args"`
}

// head writes what comes before the first operation.
func (e *encoder) head() error {
	run := e.p.Run
	clocks := map[string]string{}
	for _, c := range run.Clocks {
		clocks[c.Host] = timeline.ClockLabel(run, c.Host)
	}
	other, err := marshal(map[string]any{"run": run.Name, "begin_ns": strconv.FormatInt(run.First, 10), "clock_source": run.ClockSource,
		"begin": time.Unix(0, run.First).UTC().Format(time.RFC3339Nano), "clocks": clocks})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(e.w, "{\"displayTimeUnit\":\"ns\",\"otherData\":%s,\"traceEvents\":[\n", other); err != nil {
		return err
	}
	if err := e.metadata(timeline.OverviewPid, 0, "process_name", "name", "sigmatrace"); err != nil {
		return err
	}
	for i := range e.p.Processes {
		q := &e.p.Processes[i]
		for _, m := range []struct {
			name, key string
			value     any
		}{{"process_name", "name", q.Name}, {"process_labels", "labels", q.Label}, {"process_sort_index", "sort_index", i + 1}} {
			if err := e.metadata(q.Pid, 0, m.name, m.key, m.value); err != nil {
				return err
			}
		}
	}
	for i := range e.p.GPUs {
		g := &e.p.GPUs[i]
		if err := e.metadata(g.Pid, 0, "process_name", "name", g.Name); err != nil {
			return err
		}
		if err := e.metadata(g.Pid, 0, "process_sort_index", "sort_index", len(e.p.Processes)+i+1); err != nil {
			return err
		}
	}
	return nil
}

// metadata writes an event that names or orders a process or thread.
func (e *encoder) metadata(pid int32, tid int, name, key string, value any) error {
	b, err := marshal(metadata{"M", pid, tid, name, map[string]any{key: value}})
	if err != nil {
		return err
	}
	e.events++
	_, err = e.w.Write(append(b, ",\n"...))
	return err
}

// tail writes the overview and ends the object.
func (e *encoder) tail(s *Stats) error {
	for i, o := range e.p.Overview(s) {
		args := map[string]any{}
		for _, f := range o.Facts {
			if args[f.Name] = f.Number; f.IsText {
				args[f.Name] = f.Text
			}
		}
		b, err := marshal(struct {
			metadata
			Category string      `json:"cat"`
			Time     json.Number `json:"ts"`
			Duration json.Number `json:"dur"`
		}{metadata{"X", timeline.OverviewPid, i + 1, o.Name, args}, "sigmatrace",
			json.Number(microseconds(nil, o.From-e.p.Run.First)), json.Number(microseconds(nil, o.To-o.From))})
		if err != nil {
			return err
		}
		if i > 0 {
			b = append([]byte(",\n"), b...)
		}
		e.events++
		if _, err := e.w.Write(b); err != nil {
			return err
		}
	}
	if _, err := e.w.WriteString("\n]}\n"); err != nil {
		return err
	}
	return e.w.Flush()
}
