// Package dump prints captures record by record, as text or as JSON lines: `sigmatrace dump`.
package dump

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"path/filepath"
	"strings"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/elements"
)

// Options say what to print. With none of the four parts chosen, all are.
type Options struct {
	Header      bool
	Definitions bool
	Events      bool
	Aggregates  bool
	Chunk       int  // only the event chunk in this block of the file, numbered from 0; negative: all
	JSON        bool // one JSON object a line
}

// Dump prints the capture at path, or every capture and proof of life of the run folder or capture folder at path. What is damaged is
// printed at its place, the rest is printed all the same, and the first damage is returned at the end.
func Dump(ctx context.Context, w io.Writer, path string, o Options) error {
	if !o.Header && !o.Definitions && !o.Events && !o.Aggregates {
		o.Header, o.Definitions, o.Events, o.Aggregates = o.Chunk < 0, o.Chunk < 0, true, o.Chunk < 0
	}
	out := bufio.NewWriterSize(w, 1<<16)
	p := &printer{ctx: ctx, catalogue: catalogue.Default, options: o, line: line{out: out, json: o.JSON}}
	err := p.path(path)
	if flushed := out.Flush(); err == nil && flushed != nil {
		err = fmt.Errorf("printing %s: %w", path, flushed)
	}
	switch {
	case err != nil || p.damaged == 0:
	case p.damaged == 1:
		err = p.first
	default:
		err = fmt.Errorf("%d damaged places, the first: %w", p.damaged, p.first)
	}
	return err
}

type printer struct {
	ctx       context.Context
	catalogue *catalogue.Catalogue
	options   Options
	line      line
	decoder   capture.Decoder
	elements  elements.Reader
	damaged   int
	first     error
}

func (p *printer) path(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("looking for captures: %w", err)
	}
	if !st.IsDir() {
		return p.file(path)
	}
	folder := filepath.Join(path, "capture")
	if _, err := os.Stat(folder); err != nil {
		folder = path
	}
	nodes, err := capture.Find(folder)
	if err != nil {
		if len(nodes) == 0 {
			return err
		}
		p.damage(err)
	}
	if len(nodes) == 0 {
		return fmt.Errorf("no captures in %s", folder)
	}
	for _, n := range nodes {
		if n.Alive != "" && p.options.Header {
			p.alive(n.Alive)
		}
		for _, c := range n.Captures {
			if err := p.file(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// damage prints what is wrong with a capture, joined errors one by one, and keeps count.
func (p *printer) damage(err error) {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		for _, e := range joined.Unwrap() {
			p.damage(e)
		}
		return
	}
	p.damaged++
	if p.first == nil {
		p.first = err
	}
	offset := int64(0)
	var e *capture.Error
	if errors.As(err, &e) {
		offset = e.Offset
	}
	p.line.begin(offset, "error")
	p.line.text("error", err.Error())
	p.line.end()
}

func (p *printer) file(path string) error {
	f, err := capture.Open(path)
	if err != nil {
		var e *capture.Error
		if errors.As(err, &e) {
			p.damage(err)
			return nil
		}
		return err
	}
	defer f.Close()
	p.line.begin(0, "file")
	p.line.text("path", path)
	p.line.number("size", uint64(f.Size()))
	p.line.end()
	if p.options.Header {
		p.header(f)
	}
	for _, err := range f.Problems() {
		p.damage(err)
	}
	if p.options.Definitions {
		if err := p.parts(f.Definitions(p.catalogue, p.definition)); err != nil {
			return err
		}
	}
	if p.options.Events {
		p.elements = elements.Reader{}
		if err := f.Definitions(p.catalogue, p.elements.Define); err != nil && !p.options.Definitions {
			if err := p.parts(err); err != nil {
				return err
			}
		}
		if err := p.events(f); err != nil {
			return err
		}
	}
	if p.options.Aggregates {
		if err := p.parts(f.Aggregates(p.aggregate)); err != nil {
			return err
		}
	}
	return nil
}

// parts prints the damage that reading a part of a capture found, and returns any other error.
func (p *printer) parts(err error) error {
	var e *capture.Error
	if err == nil || !errors.As(err, &e) {
		return err
	}
	p.damage(err)
	return nil
}

func (p *printer) events(f *capture.File) error {
	p.decoder.Control, p.decoder.Salvage = true, true
	found := false
	for i := range f.Chunks() {
		ch := &f.Chunks()[i]
		number := (ch.Offset - capture.HeaderBytes) / int64(f.Header().ChunkBytes)
		if p.options.Chunk >= 0 && number != int64(p.options.Chunk) {
			continue
		}
		found = true
		p.chunk(ch, number)
		p.decoder.Reset(f, ch, p.catalogue)
		var ev capture.Event
		for n := 0; ; n++ {
			if n%4096 == 0 {
				if err := p.ctx.Err(); err != nil {
					return fmt.Errorf("printing %s: %w", f.Path(), err)
				}
			}
			ok, err := p.decoder.Next(&ev)
			if err != nil {
				if err := p.parts(err); err != nil {
					return err
				}
			}
			if !ok {
				break
			}
			p.event(&ev)
		}
		if p.line.err != nil {
			return fmt.Errorf("printing %s: %w", f.Path(), p.line.err)
		}
	}
	if !found && p.options.Chunk >= 0 {
		return fmt.Errorf("%s has no event chunk in block %d", f.Path(), p.options.Chunk)
	}
	return nil
}

func (p *printer) chunk(ch *capture.Chunk, number int64) {
	l := &p.line
	l.begin(ch.Offset, "chunk")
	l.number("block", uint64(number))
	l.number("thread", uint64(ch.Thread))
	l.number("sequence", uint64(ch.Sequence))
	l.number("domain", uint64(ch.Domain))
	l.text("flags", flagNames(uint64(ch.Flags), map[string]uint64{"closed": uint64(capture.Closed), "unordered": uint64(capture.Unordered), "checked": uint64(capture.Checked)}))
	l.number("first", ch.First)
	if ch.Flags&capture.Closed != 0 {
		l.number("last", ch.Last)
		l.number("earliest", uint64(ch.Earliest))
	}
	l.number("committed", uint64(ch.Committed))
	if ch.Records != 0 {
		l.number("records", uint64(ch.Records))
	}
	if ch.Flags&capture.Checked != 0 {
		l.hex("crc", uint64(ch.CRC))
	}
	l.end()
}

func (p *printer) event(ev *capture.Event) {
	l := &p.line
	l.record(ev.Offset, "event", ev.Time, ev.Form.String())
	l.number("thread", uint64(ev.Thread))
	switch ev.Form {
	case capture.FormTime:
		l.signed("change", int64(ev.Fields[0]))
	case capture.FormCounters:
		l.number("object", ev.Fields[capture.CountersObject])
		l.number("posted", ev.Fields[capture.CountersPosted])
		l.number("received", ev.Fields[capture.CountersReceived])
		l.number("completed", ev.Fields[capture.CountersCompleted])
	case capture.FormEnd:
	default:
		e := p.catalogue.Event(ev.ID)
		l.number("slot", uint64(ev.Slot))
		l.name(e.Name)
		l.open("fields")
		for i, f := range e.Layout.Fields {
			if f.Type == catalogue.Raw {
				l.field(f.Name, hex.EncodeToString(ev.Bytes(i)))
			} else {
				p.value(f, ev.Fields[i])
			}
		}
		if e.Layout.Name == "doorbell_request" {
			p.element(ev)
		}
		l.close()
	}
	l.end()
}

// element prints the bytes of a work queue element, as far as the record holds them.
func (p *printer) element(ev *capture.Event) {
	raw, err := p.elements.Element(ev)
	if raw != nil {
		p.line.field("element", hex.EncodeToString(raw))
	}
	if err != nil {
		p.line.text("element_error", err.Error())
	}
}

func (p *printer) definition(d *capture.Definition) error {
	l := &p.line
	if err := p.ctx.Err(); err != nil {
		return err
	}
	l.record(d.Offset, "definition", d.Time, "definition")
	if d.Def == nil {
		l.number("unknown_id", uint64(d.ID))
		l.end()
		return l.err
	}
	l.name(d.Def.Name)
	l.open("fields")
	for i, f := range d.Def.Fields {
		switch f.Type {
		case catalogue.Raw:
			l.field(f.Name, hex.EncodeToString(d.Bytes(i)))
		case catalogue.String:
			l.text(f.Name, d.String(i))
		default:
			p.value(f, d.Uint(i))
		}
	}
	l.close()
	l.end()
	return l.err
}

func (p *printer) aggregate(a *capture.Aggregate) error {
	l := &p.line
	l.begin(a.Offset, "aggregate")
	l.number("object", uint64(a.Object))
	l.number("thread", uint64(a.Thread))
	l.number("epoch", uint64(a.Epoch))
	if e := p.catalogue.Event(a.Event); e != nil {
		l.name(e.Name)
	} else {
		l.number("unknown_id", uint64(a.Event))
	}
	l.hex("peer", a.Peer)
	l.number("first", a.First)
	l.number("count", a.Count)
	l.number("bytes", a.Bytes)
	l.number("calls", a.Calls)
	l.open("sizes") // by the smallest size of each bucket
	for i, n := range a.Sizes {
		if n == 0 {
			continue
		}
		smallest := 0
		if i > 0 {
			smallest = 1 << (i - 1)
		}
		l.number(fmt.Sprint(smallest), n)
	}
	l.close()
	l.end()
	return l.err
}

// value prints a number as its type is read by people.
func (p *printer) value(f catalogue.Field, v uint64) {
	switch f.Type {
	case catalogue.Int:
		p.line.signed(f.Name, int64(v))
	case catalogue.Address, catalogue.Key:
		p.line.hex(f.Name, v)
	case catalogue.Enum:
		p.line.text(f.Name, p.catalogue.EnumName(f.Of, v))
	case catalogue.Flags:
		p.line.text(f.Name, flagNames(v, p.catalogue.Enums[f.Of]))
	default:
		p.line.number(f.Name, v)
	}
}

// flagNames joins the names of the bits of v by |, lowest first; bits without a name come as a number.
func flagNames(v uint64, names map[string]uint64) string {
	var set []string
	for left := v; left != 0; left &= left - 1 {
		bit := left & -left
		name := fmt.Sprintf("bit%d", bits.TrailingZeros64(bit))
		for n, b := range names {
			if b == bit {
				name = n
			}
		}
		set = append(set, name)
	}
	if set == nil {
		return "0"
	}
	return strings.Join(set, "|")
}
