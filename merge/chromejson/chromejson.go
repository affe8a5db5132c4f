// Package chromejson writes a merged run in the Chrome trace event format (JSON), for tools that do not read Perfetto traces.
package chromejson

import (
	"bufio"
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
	l, err := newLabels(p)
	if err != nil {
		return nil, err
	}
	total := p.NewStats()
	parts := make([]*Stats, run.Partitions)
	out := &counting{w: w}
	err = timeline.Ordered(ctx, out, p.Options.Workers, run.Partitions+1, func(ctx context.Context, i int, w io.Writer) error {
		e := &encoder{w: bufio.NewWriterSize(w, 64<<10), p: p, l: l}
		if i == 0 {
			if err := e.head(); err != nil {
				return err
			}
			total.Packets = e.events
			return e.w.Flush()
		}
		s, err := p.Walk(ctx, src, i-1, e)
		if err != nil {
			return err
		}
		s.Packets = e.events
		parts[i-1] = s
		return e.w.Flush()
	})
	if err != nil {
		return nil, fmt.Errorf("writing the trace: %w", err)
	}
	for _, s := range parts {
		total.Add(s)
	}
	e := &encoder{w: bufio.NewWriter(out), p: p, l: l}
	if err := e.tail(total); err != nil {
		return nil, fmt.Errorf("writing the trace: %w", err)
	}
	total.Packets += e.events
	total.Bytes = out.n
	return total, nil
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
type labels struct {
	symbols  []string
	args     []string
	counters []string // by track: a counter is known by its name within a process, so those of one name get numbers
	pids     []string // by track
}

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
	var err error
	l := &labels{pids: make([]string, len(p.Tracks))}
	if l.symbols, err = quoted(p.Symbols); err != nil {
		return nil, err
	}
	if l.args, err = quoted(p.ArgNames); err != nil {
		return nil, err
	}
	names := make([]string, len(p.Tracks))
	for i := range p.Processes {
		seen := map[string]int{}
		for _, g := range p.Processes[i].Groups {
			for _, t := range g.Tracks {
				l.pids[t] = strconv.Itoa(int(p.Processes[i].Pid))
				if p.Tracks[t].IsLane {
					continue
				}
				name := g.Layer + ": " + p.Tracks[t].Name
				if seen[name]++; seen[name] > 1 {
					name += fmt.Sprintf(" (%d)", seen[name])
				}
				names[t] = name
			}
		}
	}
	l.counters, err = quoted(names)
	return l, err
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
	meta := func(pid int32, tid int, name, key string, value any) error {
		b, err := marshal(metadata{"M", pid, tid, name, map[string]any{key: value}})
		if err != nil {
			return err
		}
		e.events++
		_, err = e.w.Write(append(b, ",\n"...))
		return err
	}
	if err := meta(timeline.OverviewPid, 0, "process_name", "name", "sigmatrace"); err != nil {
		return err
	}
	for i := range e.p.Processes {
		q := &e.p.Processes[i]
		for _, m := range []struct {
			name, key string
			value     any
		}{{"process_name", "name", q.Name}, {"process_labels", "labels", q.Label}, {"process_sort_index", "sort_index", i + 1}} {
			if err := meta(q.Pid, 0, m.name, m.key, m.value); err != nil {
				return err
			}
		}
		for _, g := range q.Groups {
			for _, t := range g.Tracks {
				track := &e.p.Tracks[t]
				if !track.IsLane {
					continue
				}
				name := g.Layer + ": " + track.Name
				if track.Lane > 0 {
					name += fmt.Sprintf(" (lane %d)", track.Lane+1)
				}
				if err := meta(q.Pid, tid(t), "thread_name", "name", name); err != nil {
					return err
				}
				if err := meta(q.Pid, tid(t), "thread_sort_index", "sort_index", tid(t)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// tid is the thread id that stands for a track.
func tid(track int) int { return track + 1 }

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
