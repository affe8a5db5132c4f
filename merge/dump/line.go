package dump

import (
	"encoding/json"
	"io"
	"strconv"
)

// line writes one line after another, each a list of named values: as text, offset and kind first, or as a JSON object.
type line struct {
	out  io.Writer
	json bool
	buf  []byte
	// empty: no comma is due before the next JSON value
	empty bool
	err   error // of the writer, the first
}

// begin starts a line about what lies at offset of the file.
func (l *line) begin(offset int64, kind string) {
	l.buf, l.empty = l.buf[:0], true
	if l.json {
		l.buf = append(l.buf, '{')
		l.number("offset", uint64(offset))
		l.text("type", kind)
		return
	}
	l.column(strconv.AppendInt(nil, offset, 10), 10)
	l.buf = append(l.buf, kind...)
}

// record starts a line about a record with a time; form says how it is written.
func (l *line) record(offset int64, kind string, time uint64, form string) {
	if l.json {
		l.begin(offset, kind)
		l.number("time", time)
		if form != kind {
			l.text("form", form)
		}
		return
	}
	l.buf = l.buf[:0]
	l.column(strconv.AppendInt(nil, offset, 10), 10)
	l.column(strconv.AppendUint(nil, time, 10), 16)
	l.buf = append(l.buf, form...)
}

// column appends b right-aligned with two spaces behind.
func (l *line) column(b []byte, width int) {
	for range width - len(b) {
		l.buf = append(l.buf, ' ')
	}
	l.buf = append(append(l.buf, b...), ' ', ' ')
}

// key begins a value.
func (l *line) key(name string) {
	if !l.json {
		l.buf = append(append(append(l.buf, ' '), name...), '=')
		return
	}
	if !l.empty {
		l.buf = append(l.buf, ',')
	}
	l.empty = false
	l.buf = append(append(append(l.buf, '"'), name...), '"', ':')
}

func (l *line) number(name string, v uint64) {
	l.key(name)
	l.buf = strconv.AppendUint(l.buf, v, 10)
}

func (l *line) signed(name string, v int64) {
	l.key(name)
	l.buf = strconv.AppendInt(l.buf, v, 10)
}

func (l *line) hex(name string, v uint64) {
	l.key(name)
	if l.json {
		l.buf = append(l.buf, '"')
	}
	l.buf = strconv.AppendUint(append(l.buf, "0x"...), v, 16)
	if l.json {
		l.buf = append(l.buf, '"')
	}
}

// field is a text without anything to quote in it.
func (l *line) field(name, s string) {
	l.key(name)
	if l.json {
		l.buf = append(append(append(l.buf, '"'), s...), '"')
		return
	}
	l.buf = append(l.buf, s...)
}

// text is any text: quoted where a reader could mistake it.
func (l *line) text(name, s string) {
	l.key(name)
	if l.json {
		quoted, _ := json.Marshal(s) // a string can always be marshalled
		l.buf = append(l.buf, quoted...)
		return
	}
	for _, r := range s {
		if r <= ' ' || r == '"' || r == '\\' || !strconv.IsPrint(r) {
			l.buf = strconv.AppendQuote(l.buf, s)
			return
		}
	}
	l.buf = append(l.buf, s...)
}

// name is what the catalogue calls the record.
func (l *line) name(s string) {
	if l.json {
		l.text("name", s)
		return
	}
	l.buf = append(append(l.buf, ' '), s...)
}

// open groups the values up to close, in JSON.
func (l *line) open(name string) {
	if l.json {
		l.key(name)
		l.buf, l.empty = append(l.buf, '{'), true
	}
}

func (l *line) close() {
	if l.json {
		l.buf, l.empty = append(l.buf, '}'), false
	}
}

func (l *line) end() {
	if l.json {
		l.buf = append(l.buf, '}')
	}
	l.buf = append(l.buf, '\n')
	if _, err := l.out.Write(l.buf); err != nil && l.err == nil {
		l.err = err
	}
}
