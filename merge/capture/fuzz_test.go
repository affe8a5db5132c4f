package capture_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/capture/capturetest"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// FuzzFile reads whole files: whatever the bytes, there is no panic, every error is of a known kind, nothing runs for ever, and no
// more is read than the file can hold. Most seeds have no checksums, or hardly an input would get past them. Inputs are large: run it
// with -fuzzminimizetime 1x.
func FuzzFile(f *testing.F) {
	c := testCatalogue(f)
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 3))
		var m capturetest.Memory
		w := capturetest.New(&m, capture.Header{ChunkBytes: 16 << 10}, c)
		w.NoChecksums = seed%4 != 0
		th := w.Thread()
		th.Counters = func(object uint64) (uint64, uint64, uint64) { return object, 2, 3 }
		for _, ev := range history(r, c, 40) {
			if r.IntN(20) == 0 {
				th.Cut()
			}
			th.Event(ev.time, ev.id, ev.fields, ev.raw...)
		}
		w.Define(1, 1, uint64(1), "device", -1, []byte{1, 2}, uint64(0))
		w.DefineRaw(2, 77, []byte{1})
		w.Aggregate(capture.Aggregate{Event: 2, Count: 1})
		if err := w.Close(); err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(m))
	}
	f.Add([]byte("SGMTRACE"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := capture.New("fuzz", bytes.NewReader(data), int64(len(data)))
		if err != nil {
			known(t, err)
			return
		}
		for _, err := range file.Problems() {
			known(t, err)
		}
		if n := len(file.Chunks()); n > len(data)/(16<<10)+1 {
			t.Errorf("%d chunks in %d bytes", n, len(data))
		}
		readEverything(t, file, c, len(data))
	})
}

// FuzzChunk reads a chunk with any payload, as events and as definitions: small inputs that get deep into both decoders.
func FuzzChunk(f *testing.F) {
	c := testCatalogue(f)
	for seed := range uint64(20) {
		var m capturetest.Memory
		w := capturetest.New(&m, capture.Header{ChunkBytes: 16 << 10}, c)
		th := w.Thread()
		for _, ev := range history(rand.New(rand.NewPCG(seed, 4)), c, 8) {
			th.Event(ev.time, ev.id, ev.fields, ev.raw...)
		}
		w.Define(1, 1, uint64(1), "device", -1, []byte{1, 2}, uint64(0))
		if err := w.Close(); err != nil {
			f.Fatal(err)
		}
		chunk := open(f, m).Chunks()[0]
		f.Add([]byte(m[chunk.Offset+64:][:chunk.Committed]), false)
		f.Add([]byte(m[chunk.Offset+16384+64:][:64]), true)
	}
	f.Fuzz(func(t *testing.T, payload []byte, definitions bool) {
		if len(payload) > 16384-64 {
			return
		}
		m := handMade(payload, 1000)
		if definitions {
			m[4096+4] = 2
		}
		readEverything(t, open(t, m), c, len(m))
	})
}

func readEverything(t *testing.T, file *capture.File, c *catalogue.Catalogue, size int) {
	var ev capture.Event
	for _, d := range []*capture.Decoder{{}, {Control: true, Salvage: true}} {
		for i := range file.Chunks() {
			d.Reset(file, &file.Chunks()[i], c)
			records := 0
			for {
				ok, err := d.Next(&ev)
				if err != nil {
					known(t, err)
				}
				if !ok {
					break
				}
				if records++; records > 1<<20 {
					t.Fatal("more records than a chunk has bytes")
				}
				if ev.Offset < 4096+64 || ev.Offset >= int64(size) {
					t.Fatalf("a record at offset %d of %d bytes", ev.Offset, size)
				}
				if e := c.Event(ev.ID); e != nil {
					for i, field := range e.Layout.Fields {
						if field.Type.String() == "raw" && len(ev.Bytes(i)) > 256 {
							t.Fatalf("%d raw bytes", len(ev.Bytes(i)))
						}
					}
				}
			}
		}
	}
	known(t, file.Definitions(c, func(d *capture.Definition) error {
		if d.Def != nil {
			for i := range d.Def.Fields {
				_, _ = d.Uint(i), d.String(i)
			}
		}
		return nil
	}))
	known(t, file.Aggregates(func(*capture.Aggregate) error { return nil }))
}

// known fails on an error that is not about the capture.
func known(t *testing.T, err error) {
	t.Helper()
	var e *capture.Error
	if err == nil {
		return
	}
	if !errors.As(err, &e) {
		t.Fatalf("an error of no kind: %v", err)
	}
	for _, kind := range []error{capture.ErrForeign, capture.ErrNewer, capture.ErrTruncated, capture.ErrCorrupt, capture.ErrUnknownEvent} {
		if errors.Is(err, kind) {
			return
		}
	}
	t.Fatalf("an error of no kind: %v", err)
}
