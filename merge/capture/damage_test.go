package capture_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/capture/capturetest"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// sample is a whole capture in blocks of 16 KiB: two chunks of thread 0 (blocks 0 and 1), one of thread 1 (2), definitions (3),
// aggregates (4).
func sample(t testing.TB) capturetest.Memory {
	t.Helper()
	var m capturetest.Memory
	w := capturetest.New(&m, capture.Header{ChunkBytes: 16 << 10}, testCatalogue(t))
	for n := range 2 {
		th := w.Thread()
		for i := range 200 {
			if i == 100 && n == 0 {
				th.Cut()
			}
			th.Event(uint64(1000+i), element, []uint64{1, uint64(i), 5, 0, 0}, []byte{1, 2, 3})
		}
	}
	for i := range uint64(10) {
		w.Define(1000+i, 1, i, "device", 1, []byte{1, 2, 3}, uint64(0))
		w.Aggregate(capture.Aggregate{Object: uint32(i), Event: 2, Count: 5})
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return m
}

// block returns the offset of block i of the sample.
func block(i int) int { return 4096 + i*16384 }

// contents is what could be read of a capture.
type contents struct {
	events      []int // of each chunk
	definitions int
	aggregates  int
	errors      []error
}

// readAll reads everything of the file at path, or of an error what Open said.
func readAll(path string, c *catalogue.Catalogue) contents {
	f, err := capture.Open(path)
	if err != nil {
		return contents{errors: []error{err}}
	}
	defer f.Close()
	return readFile(f, c)
}

func readFile(f *capture.File, c *catalogue.Catalogue) contents {
	got := contents{errors: slices.Clone(f.Problems())}
	note := func(err error) {
		if err != nil {
			got.errors = append(got.errors, err)
		}
	}
	var d capture.Decoder
	for i := range f.Chunks() {
		span, err := d.Measure(f, &f.Chunks()[i], c)
		got.events = append(got.events, int(span.Events))
		note(err)
	}
	note(f.Definitions(c, func(*capture.Definition) error { got.definitions++; return nil }))
	note(f.Aggregates(func(*capture.Aggregate) error { got.aggregates++; return nil }))
	return got
}

func TestDamageNamesFileAndOffset(t *testing.T) {
	le := binary.LittleEndian
	put32 := func(at int, v uint32) func(m []byte) []byte {
		return func(m []byte) []byte { le.PutUint32(m[at:], v); return m }
	}
	put := func(at int, v ...byte) func(m []byte) []byte {
		return func(m []byte) []byte { copy(m[at:], v); return m }
	}
	unchecked := func(i int, change func(m []byte) []byte) func(m []byte) []byte {
		return func(m []byte) []byte { m[block(i)+6] &^= 4; return change(m) }
	}
	cut := func(n int) func(m []byte) []byte { return func(m []byte) []byte { return m[:n] } }
	whole := contents{events: []int{100, 100, 200}, definitions: 10, aggregates: 10}
	but := func(change func(*contents)) contents {
		c := whole
		c.events = slices.Clone(c.events)
		change(&c)
		return c
	}
	none := contents{}
	payload := func(i int) int { return block(i) + 64 }
	for _, test := range []struct {
		name   string
		change func(m []byte) []byte
		kind   error
		offset int
		want   contents
	}{
		{"an empty file", cut(0), capture.ErrTruncated, 0, none},
		{"half a magic", cut(5), capture.ErrTruncated, 5, none},
		{"half a header", cut(2000), capture.ErrTruncated, 2000, none},
		{"a header never written", func(m []byte) []byte { clear(m[:4096]); return m }, capture.ErrTruncated, 0, none},
		{"another file's magic", put(0, []byte("\x7fELF")...), capture.ErrForeign, 0, none},
		{"a short foreign file", func([]byte) []byte { return []byte("#!/bin/sh\n") }, capture.ErrForeign, 0, none},
		{"the other byte order", put(12, 1, 2, 3, 4), capture.ErrForeign, 12, none},
		{"no byte order", put32(12, 7), capture.ErrCorrupt, 12, none},
		{"a newer version", put(8, 2), capture.ErrNewer, 8, none},
		{"version 0", put(8, 0), capture.ErrCorrupt, 8, none},
		{"a header of another size", put32(16, 8192), capture.ErrCorrupt, 16, none},
		{"blocks of no size", put32(20, 0), capture.ErrCorrupt, 20, none},
		{"blocks too large", put32(20, 2<<20), capture.ErrCorrupt, 20, none},
		{"blocks not a power of two", put32(20, 20000), capture.ErrCorrupt, 20, none},
		{"no clock domain", put32(124, 0), capture.ErrCorrupt, 124, none},
		{"too many clock domains", put32(124, 9), capture.ErrCorrupt, 124, none},

		{"a block of rubbish", put(block(1), 'X'), capture.ErrCorrupt, block(1), but(func(c *contents) { c.events = []int{100, 200} })},
		{"a block of unknown type", put(block(1)+4, 9), capture.ErrCorrupt, block(1), but(func(c *contents) { c.events = []int{100, 200} })},
		{"an unknown clock domain", put(block(1)+5, 1), capture.ErrCorrupt, block(1) + 5, but(func(c *contents) { c.events[1] = 0 })},
		{"more committed than fits", put32(block(1)+32, 1<<31), capture.ErrCorrupt, block(1) + 32, but(func(c *contents) { c.events[1] = 0 })},
		{"a wrong bit in a checked chunk", put(payload(1)+300, 0xaa), capture.ErrCorrupt, payload(1), but(func(c *contents) { c.events[1] = 0 })},
		{"a slot never filled", unchecked(1, put(payload(1), 5)), capture.ErrCorrupt, payload(1), but(func(c *contents) { c.events[1] = 0 })},
		{"an unknown event", unchecked(1, put(payload(1)+5, 77, 0)), capture.ErrUnknownEvent, payload(1), but(func(c *contents) { c.events[1] = 0 })},
		{"a slot beyond the last", unchecked(1, put(payload(1)+4, 61)), capture.ErrCorrupt, payload(1) + 4, but(func(c *contents) { c.events[1] = 0 })},
		{"a code that no record has", unchecked(1, put(payload(1), 0x7d)), capture.ErrCorrupt, payload(1), but(func(c *contents) { c.events[1] = 0 })},
		{"a record past what is committed", unchecked(1, put32(block(1)+32, 12)), capture.ErrCorrupt, payload(1), but(func(c *contents) { c.events[1] = 0 })},
		{"a definition too short", unchecked(3, put(payload(3), 11, 0)), capture.ErrCorrupt, payload(3), but(func(c *contents) { c.definitions = 0 })},
		{"a definition past its block", unchecked(3, put(payload(3), 0xff, 0xff)), capture.ErrCorrupt, payload(3), but(func(c *contents) { c.definitions = 0 })},
		{"a string past its definition", unchecked(3, put(payload(3)+13, 0x7f)), capture.ErrCorrupt, payload(3), but(func(c *contents) { c.definitions = 0 })},
		{"a wrong bit in checked definitions", put(payload(3)+50, 0xaa), capture.ErrCorrupt, payload(3), but(func(c *contents) { c.definitions = 0 })},
		{"a wrong bit in checked aggregates", put(payload(4)+50, 0xaa), capture.ErrCorrupt, payload(4), but(func(c *contents) { c.aggregates = 0 })},

		{"the file ends in a block's header", cut(block(4) + 10), capture.ErrTruncated, block(4), but(func(c *contents) { c.aggregates = 0 })},
		{"the file ends in aggregates", cut(payload(4) + 3*320 + 5), capture.ErrTruncated, payload(4) + 3*320 + 5, but(func(c *contents) { c.aggregates = 3 })},
		{"the file ends between blocks", cut(block(4)), nil, 0, but(func(c *contents) { c.aggregates = 0 })},
		{"the file ends in what a block leaves free", cut(block(5) - 1), nil, 0, whole},
		{"nothing", cut(block(5)), nil, 0, whole},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "1.2.0.capture")
			if err := os.WriteFile(path, test.change(sample(t)), 0o600); err != nil {
				t.Fatal(err)
			}
			got := readAll(path, testCatalogue(t))
			errs := got.errors
			got.errors = nil
			if fmt.Sprint(got) != fmt.Sprint(test.want) {
				t.Errorf("read %+v, want %+v", got, test.want)
			}
			if test.kind == nil {
				if len(errs) != 0 {
					t.Errorf("errors %v", errs)
				}
				return
			}
			var e *capture.Error
			if len(errs) != 1 || !errors.Is(errs[0], test.kind) || !errors.As(errs[0], &e) {
				t.Fatalf("errors %v, want one that is %q", errs, test.kind)
			}
			if e.Offset != int64(test.offset) || e.Path != path || !strings.Contains(errs[0].Error(), fmt.Sprintf("%s: offset %d: ", path, test.offset)) {
				t.Errorf("error %q, want offset %d", errs[0], test.offset)
			}
		})
	}
}

// A minor version may add block types and definitions: they are passed over.
func TestNewerMinorVersionIsRead(t *testing.T) {
	m := sample(t)
	m[10] = 9
	binary.LittleEndian.PutUint32(m[1088:], crc32.Checksum(m[:1088], crc32.MakeTable(crc32.Castagnoli)))
	m[block(1)+4] = 9
	got := readFile(open(t, m), testCatalogue(t))
	if fmt.Sprint(got) != fmt.Sprint(contents{events: []int{100, 200}, definitions: 10, aggregates: 10}) {
		t.Errorf("read %+v", got)
	}
}

// A flipped bit anywhere in what the process says of itself is found out, and a file without the checksum is read.
func TestHeaderIsChecked(t *testing.T) {
	for _, at := range []int{56, 80, 100, 130, 400, 500, 1000, 1087, 1089} {
		m := sample(t)
		m[at] ^= 4
		var e *capture.Error
		if _, err := capture.New("test", bytes.NewReader(m), int64(len(m))); !errors.As(err, &e) || !errors.Is(err, capture.ErrCorrupt) || e.Offset != 1088 {
			t.Errorf("byte %d changed: %v, want a corrupt capture at 1088", at, err)
		}
	}
	m := sample(t)
	m[100] ^= 4
	clear(m[1088:1092])
	open(t, m)
}

func TestEventsBeforeDamageAreRead(t *testing.T) {
	m := sample(t)
	c := testCatalogue(t)
	f := open(t, m)
	var d capture.Decoder
	var ev capture.Event
	var offsets []int64
	for d.Reset(f, &f.Chunks()[1], c); ; offsets = append(offsets, ev.Offset) {
		if ok, err := d.Next(&ev); err != nil {
			t.Fatal(err)
		} else if !ok {
			break
		}
	}
	at := offsets[60]
	m[at] = 0x3b // slot 59 was never filled
	f = open(t, m)
	ch := &f.Chunks()[1]
	if span, err := d.Measure(f, ch, c); span.Events != 0 || !errors.Is(err, capture.ErrCorrupt) {
		t.Errorf("of a chunk whose checksum is wrong: %d events, %v", span.Events, err)
	}
	d.Salvage = true
	span, err := d.Measure(f, ch, c)
	var e *capture.Error
	if span.Events != 60 || !errors.As(err, &e) || e.Offset != at {
		t.Errorf("salvaged: %d events, %v; want 60 and an error at %d", span.Events, err, at)
	}
	if ok, again := d.Next(&ev); ok || again != err {
		t.Errorf("after the error: %v, %v", ok, again)
	}
	d.Salvage = false
	m[block(1)+6] &^= 4 // not checked
	f = open(t, m)
	span, err = d.Measure(f, &f.Chunks()[1], c)
	if span.Events != 60 || !errors.As(err, &e) || e.Offset != at {
		t.Errorf("without a checksum: %d events, %v; want 60 and an error at %d", span.Events, err, at)
	}
}

// However much of a file is missing, what is read is a beginning of what was written, and what is missing is told.
func TestEveryLengthIsReadable(t *testing.T) {
	m := sample(t)
	c := testCatalogue(t)
	whole := readFile(open(t, m), c)
	if len(whole.errors) != 0 {
		t.Fatal(whole.errors)
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 3000 {
		n := 4096 + r.IntN(len(m)-4096)
		got := readFile(open(t, m[:n]), c)
		for i, events := range got.events {
			if events > whole.events[i] {
				t.Fatalf("%d bytes: %d events in chunk %d", n, events, i)
			}
		}
		for _, err := range got.errors {
			if !errors.Is(err, capture.ErrTruncated) {
				t.Fatalf("%d bytes: %v", n, err)
			}
		}
	}
}

// A chunk cut anywhere, in the middle of the longest numbers too, gives the records before the cut.
func TestEveryCommittedLengthIsReadable(t *testing.T) {
	c := testCatalogue(t)
	var m capturetest.Memory
	w := capturetest.New(&m, capture.Header{ChunkBytes: 16 << 10}, c)
	w.NoChecksums = true
	th := w.Thread()
	th.Counters = func(uint64) (uint64, uint64, uint64) { return ^uint64(0), ^uint64(0), ^uint64(0) }
	fields := slices.Repeat([]uint64{1 << 63}, 16)
	for i := range uint64(8) {
		th.Event(i<<40, wide, fields)
		th.Event(i<<40, signed, fields[:9])
		fields[i] = i
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	d := capture.Decoder{Control: true}
	var ev capture.Event
	// read returns the offsets in the payload of the records of its first n bytes.
	read := func(n uint32) (starts []uint32, err error) {
		binary.LittleEndian.PutUint32(m[block(0)+32:], n)
		f := open(t, m)
		d.Reset(f, &f.Chunks()[0], c)
		for {
			ok, err := d.Next(&ev)
			if !ok {
				return starts, err
			}
			starts = append(starts, uint32(ev.Offset)-uint32(block(0)+64))
		}
	}
	committed := open(t, m).Chunks()[0].Committed
	all, err := read(committed)
	if err != nil || len(all) < 20 {
		t.Fatalf("%d records, %v", len(all), err)
	}
	for n := range committed {
		whole, boundary := slices.BinarySearch(all, n) // as many records begin before n; all but the last of them end there
		if !boundary {
			whole--
		}
		got, err := read(n)
		if !slices.Equal(got, all[:whole]) || (err == nil) != boundary || (err != nil && !errors.Is(err, capture.ErrCorrupt)) {
			t.Fatalf("%d bytes: %d records, %v; want %d and an error: %v", n, len(got), err, whole, !boundary)
		}
	}
}

// A file may shrink while it is read: an error, not a SIGBUS.
func TestFileThatShrinks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "1.2.0.capture")
	if err := os.WriteFile(path, sample(t), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := capture.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Truncate(path, int64(block(1)+500)); err != nil {
		t.Fatal(err)
	}
	got := readFile(f, testCatalogue(t))
	if len(got.events) != 3 || got.events[0] != 100 || got.events[1] == 0 || got.events[1] == 100 || got.events[2] != 0 || len(got.errors) != 4 {
		t.Errorf("read %+v", got)
	}
	for _, err := range got.errors {
		if !errors.Is(err, capture.ErrTruncated) {
			t.Errorf("error %v", err)
		}
	}
}

// growing is a capture that goes on being written between the reader's looks.
type growing struct {
	m     []byte
	after func(m []byte)
	reads int
}

func (g *growing) ReadAt(b []byte, offset int64) (int, error) {
	n := copy(b, g.m[offset:])
	g.reads++
	if offset == int64(block(1)) && g.after != nil {
		g.after(g.m)
		g.after = nil
	}
	return n, nil
}

// A chunk that is closed just when its header is read may show the flag without the checksum: the header is read again.
func TestChunkClosedWhileItIsRead(t *testing.T) {
	m := sample(t)
	crc := slices.Clone(m[block(1)+40 : block(1)+44])
	clear(m[block(1)+40 : block(1)+44])
	g := &growing{m: m, after: func(m []byte) { copy(m[block(1)+40:], crc) }}
	f, err := capture.New("live", g, int64(len(m)))
	if err != nil {
		t.Fatal(err)
	}
	if got := readFile(f, testCatalogue(t)); fmt.Sprint(got.events, got.errors) != "[100 100 200] []" {
		t.Errorf("read %+v", got)
	}
}

// Reserved space costs nothing: a file of 128 GiB, all but its first blocks a hole, is opened without reading it.
func TestHolesArePassedOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "1.2.0.capture")
	m := sample(t)
	if err := os.WriteFile(path, m, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	const far = 4096 + 16384<<23
	if _, err := file.WriteAt(m[block(2):block(3)], far); err != nil {
		t.Skipf("SKIP: this file system takes no file of 128 GiB: %v", err)
	}
	if err := file.Truncate(far + 16384<<10); err != nil {
		t.Fatal(err)
	}
	before := bytesRead(t)
	got := readAll(path, testCatalogue(t))
	if fmt.Sprint(got.events, got.errors) != "[100 100 200 200] []" {
		t.Errorf("read %+v", got)
	}
	if n := bytesRead(t) - before; n > 1<<30 {
		t.Errorf("%d bytes were read", n)
	}
}

// bytesRead is how much the process has read so far (rchar of proc_pid_io(5)).
func bytesRead(t *testing.T) (n uint64) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(text), "rchar: %d", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	if _, err := capture.Open(t.TempDir()); !errors.Is(err, capture.ErrForeign) {
		t.Errorf("a folder: %v", err)
	}
	if _, err := capture.Open(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}
}
