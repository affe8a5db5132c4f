package chromejson

import (
	"bufio"
	"fmt"
	"io"
	"strconv"

	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline"
)

// encoder writes trace events. Each but the overview's is followed by a comma.
type encoder struct {
	w      *bufio.Writer
	p      *timeline.Plan
	l      *labels
	buf    []byte
	args   []timeline.Arg
	tracks map[int]*track
	events int64
}

func newEncoder(w io.Writer, p *timeline.Plan, l *labels) *encoder {
	return &encoder{w: bufio.NewWriterSize(w, 64<<10), p: p, l: l, tracks: map[int]*track{}}
}

// track is a track as it appears in events: a lane is a thread, a counter is known by its name within the process.
type track struct {
	pid     int32
	tid     int
	isLane  bool
	counter []byte // the name as a JSON string
}

// deep is added to the order of threads that come after all others.
const deep = 1 << 30

// track returns track i. A lane is named where its first operation of a partition is.
func (e *encoder) track(i int) (*track, error) {
	if t := e.tracks[i]; t != nil {
		return t, nil
	}
	d := e.p.Track(i)
	t := &track{tid: i + 1, isLane: d.Lane >= 0}
	e.tracks[i] = t
	name := d.Name
	if d.Process < 0 {
		t.pid = e.p.GPUs[d.GPU].Pid
	} else {
		q := &e.p.Processes[d.Process]
		t.pid, name = q.Pid, q.Layers[d.Group-q.FirstGroup]+": "+d.Name
	}
	if !t.isLane {
		var err error
		t.counter, err = marshal(name)
		return t, err
	}
	if d.Lane > 0 {
		name += fmt.Sprintf(" (lane %d)", d.Lane+1)
	}
	if err := e.metadata(t.pid, t.tid, "thread_name", "name", name); err != nil {
		return nil, err
	}
	index := t.tid
	if d.Deep {
		index += deep
	}
	return t, e.metadata(t.pid, t.tid, "thread_sort_index", "sort_index", index)
}

// exact is the highest integer up to which JavaScript holds all of them.
const exact = 1 << 53

// microseconds appends ns as microseconds with all its digits.
func microseconds(b []byte, ns int64) []byte {
	if ns < 0 {
		b, ns = append(b, '-'), -ns
	}
	b = strconv.AppendInt(b, ns/1000, 10)
	if f := ns % 1000; f > 0 {
		b = append(b, '.', byte('0'+f/100), byte('0'+f/10%10), byte('0'+f%10))
	}
	return b
}

// begin starts an event of a track in the buffer.
func (e *encoder) begin(phase string, t *track, time int64) {
	e.buf = append(append(e.buf, `{"ph":"`...), phase...)
	e.buf = strconv.AppendInt(append(e.buf, `","pid":`...), int64(t.pid), 10)
	if t.isLane {
		e.buf = strconv.AppendInt(append(e.buf, `,"tid":`...), int64(t.tid), 10)
	}
	e.buf = microseconds(append(e.buf, `,"ts":`...), time-e.p.Run.First)
	e.events++
}

// Slice writes an operation, the ends of its flow as slices without length that carry them, and samples of its counters.
func (e *encoder) Slice(op *ops.Op, lane int, post, done []timeline.Sample) error {
	t, err := e.track(lane)
	if err != nil {
		return err
	}
	at, err := e.track(e.p.Arrives(op, lane))
	if err != nil {
		return err
	}
	end := max(op.Done, op.Post)
	e.buf = e.buf[:0]
	e.begin("X", t, op.Post)
	e.buf = microseconds(append(e.buf, `,"dur":`...), end-op.Post)
	e.buf = append(append(e.buf, `,"name":`...), e.l.symbols[e.p.Name(op)]...)
	layer := e.l.symbols[e.p.Layer(op)]
	e.buf = append(append(e.buf, `,"cat":`...), layer...)
	if op.Flags&ops.Failed != 0 {
		e.buf = append(e.buf[:len(e.buf)-1], `,error"`...)
	}
	if op.Flags&ops.Synchronizes != 0 {
		e.buf = append(e.buf[:len(e.buf)-1], `,control"`...)
	}
	e.buf = append(e.buf, `,"args":{`...)
	e.args = e.p.Args(op, e.args[:0])
	for i := range e.args {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		e.arg(&e.args[i])
	}
	e.buf = append(e.buf, "}},\n"...)
	leaves, arrives := timeline.FlowEnds(op)
	if leaves {
		e.instant(t, op.Post, timeline.SymPosted, op.Flow, "flow_out")
	}
	if arrives {
		time, name := timeline.Arrival(op)
		e.instant(at, time, name, op.Flow, "flow_in")
	}
	for _, s := range post {
		if err := e.sample(s); err != nil {
			return err
		}
	}
	for _, s := range done {
		if err := e.sample(s); err != nil {
			return err
		}
	}
	_, err = e.w.Write(e.buf)
	return err
}

func (e *encoder) arg(a *timeline.Arg) {
	e.buf = append(append(e.buf, e.l.args[a.Name]...), ':')
	switch {
	case a.Kind == timeline.Hex:
		e.buf = append(strconv.AppendUint(append(e.buf, `"0x`...), a.Value, 16), '"')
	case a.Kind == timeline.Int:
		e.buf = strconv.AppendInt(e.buf, int64(a.Value), 10)
	case a.Kind == timeline.Text:
		e.buf = append(e.buf, e.l.symbols[a.Text]...)
	case a.Kind == timeline.True:
		e.buf = append(e.buf, "true"...)
	case a.Value > exact:
		e.buf = append(strconv.AppendUint(append(e.buf, '"'), a.Value, 10), '"')
	default:
		e.buf = strconv.AppendUint(e.buf, a.Value, 10)
	}
}

func (e *encoder) instant(t *track, time int64, name timeline.Sym, flow uint64, direction string) {
	e.begin("X", t, time)
	e.buf = append(append(e.buf, `,"dur":0,"name":`...), e.l.symbols[name]...)
	e.buf = strconv.AppendUint(append(e.buf, `,"bind_id":"0x`...), flow, 16)
	e.buf = append(append(append(e.buf, `","`...), direction...), "\":true},\n"...)
}

func (e *encoder) sample(s timeline.Sample) error {
	t, err := e.track(s.Track)
	if err != nil {
		return err
	}
	e.begin("C", t, s.Time)
	e.buf = append(append(e.buf, `,"name":`...), t.counter...)
	e.buf = append(strconv.AppendUint(append(e.buf, `,"args":{"value":`...), s.Value, 10), "}},\n"...)
	return nil
}

// Sample writes a sample of its own.
func (e *encoder) Sample(s timeline.Sample) error {
	e.buf = e.buf[:0]
	if err := e.sample(s); err != nil {
		return err
	}
	_, err := e.w.Write(e.buf)
	return err
}
