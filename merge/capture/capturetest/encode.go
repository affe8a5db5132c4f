package capturetest

import (
	"encoding/binary"
	"fmt"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// Thread encodes the events of one thread. Its exported fields are set before the first event.
type Thread struct {
	Index  uint32
	Domain uint8 // clock domain of its times
	// Unordered marks the chunks as not in order of time.
	Unordered bool
	// Counters, where set, is asked for an object's counters when a chunk meets it for the first time.
	Counters func(object uint64) (posted, received, completed uint64)

	w        *Writer
	block    *block
	sequence uint32
	prev     uint64 // time of the previous record
	slots    [60]slot
	next     int // slot that the next new template takes
	taken    map[key]int
	seen     map[uint64]bool
}

// key is what templates are looked up by: records of one kind on one object tend to repeat.
type key struct {
	event  uint16
	object uint64
}

// slot is a template: for each field the last value, the step expected and the step seen once.
type slot struct {
	key       key
	used      bool
	last      [catalogue.MaxFields]uint64
	stride    [catalogue.MaxFields]uint64
	candidate [catalogue.MaxFields]uint64
}

// Event records an event; fields has a value for each field of its layout, in order. For raw fields those values are ignored and the
// bytes come from raw, one entry for each.
func (t *Thread) Event(time uint64, id uint16, fields []uint64, raw ...[]byte) {
	e := t.w.catalogue.Event(id)
	if e == nil || len(fields) != len(e.Layout.Fields) {
		t.w.fail(fmt.Errorf("event %d with %d fields is not in the catalogue", id, len(fields)))
		return
	}
	room := 128 + 10*len(fields) // the most that counters, a time record and the record itself take
	for _, r := range raw {
		room += len(r)
	}
	if t.block != nil && t.block.used+room > len(t.block.buf) {
		t.endBlock(true)
	}
	if t.block == nil {
		t.begin(time)
	}
	t.counters(fields[0])
	t.record(time, e, fields, raw)
	t.block.stamp(time)
}

// Cut closes the thread's chunk early, with an end record. The next event begins another.
func (t *Thread) Cut() {
	if t.block != nil {
		t.put(0)
		t.endBlock(true)
	}
}

// Skip leaves out the next chunk number, as a lost block does.
func (t *Thread) Skip() { t.sequence++ }

// Begin opens the thread's next chunk at the given time, which events may precede. Without it, chunks open with their first event.
func (t *Thread) Begin(time uint64) {
	if t.block != nil {
		t.endBlock(true)
	}
	t.begin(time)
}

func (t *Thread) begin(time uint64) {
	t.block = t.w.newBlock(time)
	t.prev, t.next = time, 0
	t.slots = [60]slot{}
	t.taken, t.seen = map[key]int{}, map[uint64]bool{}
}

func (t *Thread) endBlock(closed bool) {
	var flags uint16
	if t.Unordered {
		flags = 2
	}
	t.w.emit(t.block, blockEvents, t.Domain, flags, t.Index, t.sequence, closed)
	t.sequence++
	t.block = nil
}

func (t *Thread) put(b ...byte) { t.block.used += copy(t.block.buf[t.block.used:], b) }

func (t *Thread) uvarint(v uint64) {
	t.block.used += binary.PutUvarint(t.block.buf[t.block.used:], v)
}

// varint writes a signed number; encoding/binary's mapping is the zigzag one.
func (t *Thread) varint(v uint64) {
	t.block.used += binary.PutVarint(t.block.buf[t.block.used:], int64(v))
}

func (t *Thread) number(v uint64, f catalogue.Field) {
	if f.Type == catalogue.Int {
		t.varint(v)
	} else {
		t.uvarint(v)
	}
}

func (t *Thread) counters(object uint64) {
	if t.Counters == nil || t.seen[object] {
		return
	}
	t.seen[object] = true
	posted, received, completed := t.Counters(object)
	t.put(63)
	for _, v := range []uint64{object, posted, received, completed} {
		t.uvarint(v)
	}
}

func (t *Thread) record(time uint64, e *catalogue.Event, fields []uint64, raw [][]byte) {
	ticks := time - t.prev
	if ticks >= 1<<24 { // a long gap, or a step back
		t.put(62)
		t.varint(ticks)
		ticks = 0
	}
	t.prev = time
	k := key{e.ID, fields[0]}
	n, known := t.taken[k]
	if !known {
		n = t.next
		t.next = (t.next + 1) % len(t.slots)
		if t.slots[n].used {
			delete(t.taken, t.slots[n].key)
		}
		t.slots[n] = slot{key: k, used: true}
		t.taken[k] = n
		t.put(61, byte(ticks), byte(ticks>>8), byte(ticks>>16), byte(n+1), byte(e.ID), byte(e.ID>>8))
		for i, f := range e.Layout.Fields {
			if f.Predict != catalogue.Always {
				t.number(fields[i], f)
				t.slots[n].last[i] = fields[i]
			}
		}
	} else {
		t.repeat(n, ticks, e.Layout, fields)
	}
	for i, f := range e.Layout.Fields {
		switch {
		case f.Predict != catalogue.Always:
		case f.Type == catalogue.Raw:
			if len(raw) == 0 {
				t.w.fail(fmt.Errorf("event %s: no bytes for field %s", e.Name, f.Name))
				return
			}
			t.uvarint(uint64(len(raw[0])))
			t.put(raw[0]...)
			raw = raw[1:]
		default:
			t.uvarint(fields[i])
		}
	}
}

// repeat writes a record of a known template, up to its always-fields.
func (t *Thread) repeat(n int, ticks uint64, l *catalogue.Layout, fields []uint64) {
	s := &t.slots[n]
	var mask uint16
	var deltas [catalogue.MaxFields]uint64
	bit, wrong := 0, 0
	for i, f := range l.Fields {
		if f.Predict == catalogue.Always {
			continue
		}
		guess := s.last[i]
		if f.Predict == catalogue.Stride {
			guess += s.stride[i]
		}
		if fields[i] != guess {
			d := fields[i] - s.last[i]
			mask |= 1 << bit
			deltas[wrong] = d
			wrong++
			if d == s.candidate[i] {
				s.stride[i] = d
			} else {
				s.candidate[i] = d
			}
		}
		s.last[i] = fields[i]
		bit++
	}
	form := byte(0)
	if mask != 0 {
		form = 2
	}
	if ticks < 1<<16 {
		t.put(form<<6|byte(n+1), byte(ticks), byte(ticks>>8))
	} else {
		t.put((form|1)<<6|byte(n+1), byte(ticks), byte(ticks>>8), byte(ticks>>16))
	}
	if mask == 0 {
		return
	}
	t.put(byte(mask))
	if bit > 8 {
		t.put(byte(mask >> 8))
	}
	for _, d := range deltas[:wrong] {
		t.varint(d)
	}
}
