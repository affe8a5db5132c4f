package chromejson

import (
	"bufio"
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
	events int64
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
func (e *encoder) begin(phase string, track int, time int64) {
	e.buf = append(append(e.buf, `{"ph":"`...), phase...)
	e.buf = append(append(e.buf, `","pid":`...), e.l.pids[track]...)
	if e.p.Tracks[track].IsLane {
		e.buf = strconv.AppendInt(append(e.buf, `,"tid":`...), int64(tid(track)), 10)
	}
	e.buf = microseconds(append(e.buf, `,"ts":`...), time-e.p.Run.First)
	e.events++
}

// Slice writes an operation, the ends of its flow as slices without length that carry them, and samples of its counters.
func (e *encoder) Slice(op *ops.Op, track int, post, done []timeline.Sample) error {
	end := max(op.Done, op.Post)
	e.buf = e.buf[:0]
	e.begin("X", track, op.Post)
	e.buf = microseconds(append(e.buf, `,"dur":`...), end-op.Post)
	e.buf = append(append(e.buf, `,"name":`...), e.l.symbols[e.p.Name(op)]...)
	layer := e.l.symbols[e.p.Layer(op)]
	e.buf = append(append(e.buf, `,"cat":`...), layer...)
	if op.Flags&ops.Failed != 0 {
		e.buf = append(e.buf[:len(e.buf)-1], `,error"`...)
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
		e.instant(track, op.Post, timeline.SymPosted, op.Flow, "flow_out")
	}
	if arrives {
		name := timeline.SymComplete
		if op.Role == ops.Target {
			name = timeline.SymReceived
		}
		e.instant(track, end, name, op.Flow, "flow_in")
	}
	for _, s := range post {
		e.sample(s)
	}
	for _, s := range done {
		e.sample(s)
	}
	_, err := e.w.Write(e.buf)
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

func (e *encoder) instant(track int, time int64, name timeline.Sym, flow uint64, direction string) {
	e.begin("X", track, time)
	e.buf = append(append(e.buf, `,"dur":0,"name":`...), e.l.symbols[name]...)
	e.buf = strconv.AppendUint(append(e.buf, `,"bind_id":"0x`...), flow, 16)
	e.buf = append(append(append(e.buf, `","`...), direction...), "\":true},\n"...)
}

func (e *encoder) sample(s timeline.Sample) {
	e.begin("C", s.Track, s.Time)
	e.buf = append(append(e.buf, `,"name":`...), e.l.counters[s.Track]...)
	e.buf = append(strconv.AppendUint(append(e.buf, `,"args":{"value":`...), s.Value, 10), "}},\n"...)
}

// Sample writes a sample of its own.
func (e *encoder) Sample(s timeline.Sample) error {
	e.buf = e.buf[:0]
	e.sample(s)
	_, err := e.w.Write(e.buf)
	return err
}
