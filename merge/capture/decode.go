package capture

import (
	"encoding/binary"
	"math/bits"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// Form says how a record is written.
type Form uint8

// Forms of records.
const (
	FormHit         Form = iota // every predicted field as expected, 16 bits of time
	FormHitLong                 // the same with 24 bits of time
	FormChanged                 // some fields given, 16 bits of time
	FormChangedLong             // the same with 24 bits of time
	FormNew                     // starts a template
	FormTime                    // sets the time of the record behind it
	FormCounters                // where an object stood when the chunk met it first
	FormEnd                     // nothing more in the chunk
)

var formNames = [...]string{"hit", "hit24", "changed", "changed24", "new", "time", "counters", "end"}

func (f Form) String() string { return formNames[f&7] }

// Indices into Fields of a record of form FormCounters.
const (
	CountersObject    = iota
	CountersPosted    // requests this process had posted on the object
	CountersReceived  // receives it had posted
	CountersCompleted // completions it had got, the record that follows not counted
)

// Event is one record of an event chunk. Fields are in the order of the event's layout; int fields hold their two's complement.
//
// A record of form FormCounters is not an event: ID is 0 and Fields holds what the constants above name. It stands before the first
// record of its object in a chunk.
type Event struct {
	Time     uint64 // ticks of the chunk's domain
	Sequence uint64 // chunk sequence << 32 | number of the event in the chunk: orders the events of a thread
	Offset   int64  // of the record in the file
	Thread   uint32
	ID       uint16
	Form     Form
	Slot     uint8
	Fields   [catalogue.MaxFields]uint64
	Raw      []byte // the bytes of the raw field; valid until the decoder is used again for another chunk
}

// Bytes returns the bytes of the raw field i, valid as long as Raw. A layout's only raw field is Raw itself.
func (ev *Event) Bytes(i int) []byte {
	start, n := ev.Fields[i]>>32, ev.Fields[i]&0xffffffff
	return ev.Raw[start : start+n]
}

const (
	slots       = 60
	codeEnd     = 0 // never written bytes end a chunk
	codeNew     = 61
	codeTime    = 62
	codeCount   = 63
	maxRaw      = 256
	readPadding = 512 // a record of 16 numbers cut off anywhere is read within it
)

// template is what the encoder expects of the next record in a slot.
type template struct {
	plan      *plan
	striding  uint32 // fields whose stride is not 0
	fields    [catalogue.MaxFields]uint64
	stride    [catalogue.MaxFields]uint64
	candidate [catalogue.MaxFields]uint64
}

// Decoder reads the records of one chunk after another. Its zero value is ready for Reset; it keeps one buffer of a chunk's size.
type Decoder struct {
	// Control makes Next return records of form FormTime and FormEnd too; their ID is 0 and Fields[0] holds the signed change of time.
	Control bool
	// Salvage makes Next return the records of a chunk whose checksum is wrong, up to the first that cannot be read, and only then
	// the error. Any of them may be wrong.
	Salvage bool

	file      *File
	chunk     *Chunk
	catalogue *catalogue.Catalogue
	plans     []*plan
	buf       []byte // payload and readPadding zero bytes
	pos, end  int
	time      uint64
	sequence  uint64
	base      int64        // file offset of the payload
	over      bool         // a number did not fit 64 bits
	rest      error        // what is wrong with the chunk behind its last readable byte
	err       error        // sticky
	templates [64]template // of which 1 to slots are used
}

// Reset starts on a chunk of f, whose events c describes. What is wrong with the chunk, Next says.
func (d *Decoder) Reset(f *File, ch *Chunk, c *catalogue.Catalogue) {
	if d.catalogue != c {
		d.catalogue, d.plans = c, plansOf(c)
	}
	for i := range d.templates {
		d.templates[i].plan = nil
	}
	d.file, d.chunk = f, ch
	d.pos, d.end, d.over, d.rest, d.err = 0, 0, false, nil, nil
	d.time, d.sequence, d.base = ch.First, uint64(ch.Sequence)<<32, ch.Offset+blockHeader
	payload, sound, rest, err := f.payload(ch, d.buf, readPadding)
	if err != nil {
		d.err = err
		return
	}
	d.buf, d.end, d.rest = payload[:len(payload)+readPadding], len(payload), rest
	if !sound {
		d.rest = f.badChecksum(ch)
		if !d.Salvage {
			d.end = 0
		}
	}
}

// Next reads the next record into ev, which it may reuse from call to call. It returns false and no error at the end of the chunk.
// A damaged chunk gives the events before the damage and then, on every further call, the error.
func (d *Decoder) Next(ev *Event) (bool, error) {
	for {
		start := d.pos
		if start >= d.end || d.err != nil {
			return d.finish()
		}
		buf, pos := d.buf, start
		head := binary.LittleEndian.Uint32(buf[pos:])
		form, slot := Form(head>>6&3), head&63
		var t *template
		if slot-1 >= slots { // 0 wraps round
			var emit bool
			if t, pos, emit = d.control(ev, form, slot, head>>8); t == nil {
				if emit {
					return true, nil
				}
				continue
			}
			form, slot = FormNew, uint32(buf[start+4])
		} else {
			t = &d.templates[slot&63]
			if t.plan == nil {
				d.fail(ErrCorrupt, start, "slot %d was never filled", slot)
				continue
			}
			if form&1 == 0 {
				d.time += uint64(head >> 8 & 0xffff)
				pos += 3
			} else {
				d.time += uint64(head >> 8)
				pos += 4
			}
			if form < FormChanged {
				for m := t.striding; m != 0; m &= m - 1 {
					i := bits.TrailingZeros32(m) & 15
					t.fields[i] += t.stride[i]
				}
			} else if pos = d.changed(t, pos); pos < 0 {
				continue
			}
		}
		ev.Fields = t.fields
		if ev.Raw != nil {
			ev.Raw = nil
		}
		if always := t.plan.always; len(always) > 0 {
			if pos = d.always(ev, always, pos); pos < 0 {
				continue
			}
		}
		if pos > d.end || d.over {
			d.overrun(start)
			continue
		}
		ev.Time, ev.Sequence, ev.Offset, ev.Thread = d.time, d.sequence, d.base+int64(start), d.chunk.Thread
		ev.ID, ev.Form, ev.Slot = t.plan.id, form, uint8(slot)
		d.pos = pos
		d.sequence++
		return true, nil
	}
}

// changed reads the body of a changed record up to its always-fields. It returns a negative position where the record is bad.
func (d *Decoder) changed(t *template, pos int) int {
	p, buf := t.plan, d.buf
	mask := uint32(buf[pos])
	pos++
	if p.longMask {
		mask |= uint32(buf[pos]) << 8
		pos++
	}
	if mask>>len(p.predicted) != 0 {
		d.fail(ErrCorrupt, d.pos, "change mask %#x for %d fields", mask, len(p.predicted))
		return -1
	}
	guessed := t.striding
	for ; mask != 0; mask &= mask - 1 {
		i := p.predicted[bits.TrailingZeros32(mask)] & 15
		guessed &^= 1 << i
		delta := uint64(buf[pos])
		pos++
		if delta >= 0x80 {
			delta, pos = d.long(pos - 1)
		}
		delta = zigzag(delta)
		t.fields[i] += delta
		if p.strides>>i&1 == 0 {
			continue
		}
		if delta != t.candidate[i] {
			t.candidate[i] = delta
			continue
		}
		t.stride[i] = delta
		t.striding |= 1 << i
		if delta == 0 {
			t.striding &^= 1 << i
		}
	}
	for ; guessed != 0; guessed &= guessed - 1 {
		i := bits.TrailingZeros32(guessed) & 15
		t.fields[i] += t.stride[i]
	}
	return pos
}

// always reads the fields that every record carries.
func (d *Decoder) always(ev *Event, fields []alwaysField, pos int) int {
	raw := -1
	for _, f := range fields {
		v := uint64(d.buf[pos])
		pos++
		if v >= 0x80 {
			v, pos = d.long(pos - 1)
		}
		if f.kind == rawBytes {
			if v > maxRaw {
				d.fail(ErrCorrupt, d.pos, "a raw field of %d bytes", v)
				return -1
			}
			if v > uint64(max(d.end-pos, 0)) {
				d.overrun(d.pos)
				return -1
			}
			if raw < 0 {
				raw = pos
			}
			ev.Raw = d.buf[raw : pos+int(v) : pos+int(v)]
			v, pos = uint64(pos-raw)<<32|v, pos+int(v)
		}
		ev.Fields[f.field&15] = v
	}
	return pos
}

func (d *Decoder) long(pos int) (uint64, int) {
	v, pos, ok := longVarint(d.buf, pos)
	if !ok {
		d.over = true
	}
	return v, pos
}

func (d *Decoder) varint(pos int) (uint64, int) {
	if v := d.buf[pos]; v < 0x80 {
		return uint64(v), pos + 1
	}
	return d.long(pos)
}

// control reads a record of code 0 or 61 to 63. For FormNew it returns the template and where its always-fields begin; for
// the others emit says whether ev holds one to return.
func (d *Decoder) control(ev *Event, form Form, slot uint32, ticks uint32) (t *template, pos int, emit bool) {
	start := d.pos
	if form != 0 {
		d.fail(ErrCorrupt, start, "record code %#x", form<<6|Form(slot))
		return nil, 0, false
	}
	var fields [catalogue.MaxFields]uint64
	pos = start + 1
	switch slot {
	case codeNew:
		return d.newTemplate(ticks)
	case codeTime:
		fields[0], pos = d.varint(pos)
		fields[0] = zigzag(fields[0])
		form, emit = FormTime, d.Control
	case codeCount:
		for i := range CountersCompleted + 1 {
			fields[i], pos = d.varint(pos)
		}
		form, emit = FormCounters, true
	case codeEnd:
		form, emit = FormEnd, d.Control
		d.end = pos
	}
	if pos > d.end || d.over {
		d.overrun(start)
		return nil, 0, false
	}
	if form == FormTime {
		d.time += fields[0]
	}
	d.pos = pos
	if emit {
		*ev = Event{Time: d.time, Sequence: d.sequence, Offset: d.base + int64(start), Thread: d.chunk.Thread, Form: form, Slot: uint8(slot), Fields: fields}
	}
	return nil, 0, emit
}

// newTemplate reads a record of form FormNew up to its always-fields.
func (d *Decoder) newTemplate(ticks uint32) (t *template, pos int, emit bool) {
	start := d.pos
	if start+7 > d.end {
		d.overrun(start)
		return nil, 0, false
	}
	slot, id := d.buf[start+4], binary.LittleEndian.Uint16(d.buf[start+5:])
	if slot-1 >= slots {
		d.fail(ErrCorrupt, start+4, "a template for slot %d: there are 1 to %d", slot, slots)
		return nil, 0, false
	}
	if int(id) >= len(d.plans) || d.plans[id] == nil {
		d.fail(ErrUnknownEvent, start, "event %d is not in version %d of the catalogue; the capture was written with version %d", id, d.catalogue.Version, d.file.header.Catalogue)
		return nil, 0, false
	}
	t = &d.templates[slot&63]
	*t = template{plan: d.plans[id]}
	pos = start + 7
	for _, i := range t.plan.predicted {
		v, next := d.varint(pos)
		if t.plan.signed>>i&1 != 0 {
			v = zigzag(v)
		}
		t.fields[i&15], pos = v, next
	}
	d.time += uint64(ticks)
	return t, pos, false
}

func (d *Decoder) fail(kind error, pos int, format string, args ...any) {
	d.err = d.file.errorf(kind, d.base+int64(pos), format, args...)
}

// overrun reports a record that does not end before its chunk does.
func (d *Decoder) overrun(start int) {
	switch {
	case d.over:
		d.fail(ErrCorrupt, start, "a number of more than 64 bits")
	case d.rest != nil:
		d.err = d.rest
	default:
		d.fail(ErrCorrupt, start, "a record goes on behind the %d bytes committed", d.end)
	}
}

func (d *Decoder) finish() (bool, error) {
	if d.err == nil {
		d.err = d.rest
	}
	return false, d.err
}

// Span is what Measure found in a chunk.
type Span struct {
	First, Last uint64 // earliest and latest time, ticks; both the chunk's First where there are no events
	Events      uint64
}

// Measure decodes a whole chunk to find its bounds. With an error, they are those of the events before the damage.
func (d *Decoder) Measure(f *File, ch *Chunk, c *catalogue.Catalogue) (Span, error) {
	var ev Event
	d.Reset(f, ch, c)
	s := Span{First: ch.First, Last: ch.First}
	for {
		ok, err := d.Next(&ev)
		if !ok {
			return s, err
		}
		if ev.ID == 0 {
			continue
		}
		if s.Events == 0 {
			s.First, s.Last = ev.Time, ev.Time
		}
		s.First, s.Last = min(s.First, ev.Time), max(s.Last, ev.Time)
		s.Events++
	}
}
