package capture_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/capture/capturetest"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// Events of testdata/events.toml.
const (
	ring    = 1
	element = 2
	signed  = 3
	wide    = 100
	mixed   = 127
)

func testCatalogue(t testing.TB) *catalogue.Catalogue {
	t.Helper()
	text, err := os.ReadFile("testdata/events.toml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := catalogue.Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// recorded is an event as it was given to the writer.
type recorded struct {
	time   uint64
	id     uint16
	fields []uint64
	raw    [][]byte
}

// open reads a capture in memory.
func open(t testing.TB, m capturetest.Memory) *capture.File {
	t.Helper()
	f, err := capture.New("test.capture", bytes.NewReader(m), int64(len(m)))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// compare checks the events of one thread's chunks against what was written.
func compare(t testing.TB, f *capture.File, c *catalogue.Catalogue, thread uint32, want []recorded) {
	t.Helper()
	var d capture.Decoder
	var ev capture.Event
	var last uint64
	n := 0
	for i := range f.Chunks() {
		ch := &f.Chunks()[i]
		if ch.Thread != thread {
			continue
		}
		d.Reset(f, ch, c)
		for {
			ok, err := d.Next(&ev)
			if err != nil {
				t.Fatalf("after %d events: %v", n, err)
			}
			if !ok {
				break
			}
			if ev.ID == 0 {
				continue
			}
			if n == len(want) {
				t.Fatalf("more than the %d events written: %+v", n, ev)
			}
			w := want[n]
			if ev.Time != w.time || ev.ID != w.id || ev.Thread != thread {
				t.Fatalf("event %d: time %d id %d thread %d, written time %d id %d thread %d", n, ev.Time, ev.ID, ev.Thread, w.time, w.id, thread)
			}
			if n > 0 && ev.Sequence <= last {
				t.Fatalf("event %d: sequence %#x after %#x", n, ev.Sequence, last)
			}
			last = ev.Sequence
			raw := w.raw
			for i, field := range c.Event(w.id).Layout.Fields {
				if field.Type == catalogue.Raw {
					if !bytes.Equal(ev.Bytes(i), raw[0]) {
						t.Fatalf("event %d field %s: % x, written % x", n, field.Name, ev.Bytes(i), raw[0])
					}
					raw = raw[1:]
				} else if ev.Fields[i] != w.fields[i] {
					t.Fatalf("event %d (%v) field %s: %#x, written %#x", n, ev.Form, field.Name, ev.Fields[i], w.fields[i])
				}
			}
			n++
		}
	}
	if n != len(want) {
		t.Fatalf("%d events, %d written", n, len(want))
	}
}

// value gives numbers of every length, small ones most.
func value(r *rand.Rand) uint64 { return r.Uint64() >> r.IntN(64) }

// history makes events that hit every form: long runs of what templates expect, broken by new values, gaps and steps back.
func history(r *rand.Rand, c *catalogue.Catalogue, n int) []recorded {
	var events []recorded
	time := value(r)
	type stream struct {
		e      *catalogue.Event
		fields [catalogue.MaxFields]uint64
		step   [catalogue.MaxFields]uint64
	}
	streams := make([]stream, 1+r.IntN(300)) // more than there are slots, mostly
	for i := range streams {
		s := &streams[i]
		s.e = c.Events[r.IntN(len(c.Events))]
		for k := range s.fields {
			s.fields[k], s.step[k] = value(r), value(r)
		}
		s.fields[0] = uint64(r.IntN(40))
	}
	for range n {
		switch r.IntN(20) {
		case 0:
			time += value(r)
		case 1:
			time -= uint64(r.IntN(5000))
		case 2:
			time += 1<<16 - 2 + uint64(r.IntN(4))
		case 3:
			time += 1<<24 - 2 + uint64(r.IntN(4))
		default:
			time += uint64(r.IntN(1000))
		}
		s := &streams[r.IntN(len(streams))]
		ev := recorded{time: time, id: s.e.ID}
		for i, f := range s.e.Layout.Fields {
			switch {
			case f.Type == catalogue.Raw:
				b := make([]byte, r.IntN(257))
				for k := range b {
					b[k] = byte(r.Uint32())
				}
				ev.raw = append(ev.raw, b)
				s.fields[i] = 0
			case i == 0:
			case f.Predict == catalogue.Always:
				s.fields[i] = value(r)
			case r.IntN(30) == 0:
				s.fields[i] = value(r)
			case r.IntN(30) == 0:
				s.step[i] = value(r)
			case f.Predict == catalogue.Stride:
				s.fields[i] += s.step[i]
			}
		}
		ev.fields = slices.Clone(s.fields[:len(s.e.Layout.Fields)])
		events = append(events, ev)
	}
	return events
}

func TestRandomEventsComeBackAsWritten(t *testing.T) {
	c := testCatalogue(t)
	rounds := 200
	if testing.Short() {
		rounds = 30
	}
	forms := map[capture.Form]int{}
	for seed := range rounds {
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		var m capturetest.Memory
		w := capturetest.New(&m, capture.Header{ChunkBytes: 16 << 10 << r.IntN(3)}, c)
		want := make([][]recorded, 1+r.IntN(3))
		threads := make([]*capturetest.Thread, len(want))
		for i := range want {
			threads[i] = w.Thread()
			threads[i].Unordered = r.IntN(2) == 0
			threads[i].Counters = func(object uint64) (uint64, uint64, uint64) { return object, object * 2, object * 3 }
			want[i] = history(r, c, r.IntN(4000))
		}
		for n := 0; ; n++ {
			more := false
			for i, events := range want {
				if n >= len(events) {
					continue
				}
				more = true
				if r.IntN(500) == 0 {
					threads[i].Cut()
				}
				threads[i].Event(events[n].time, events[n].id, events[n].fields, events[n].raw...)
			}
			if !more {
				break
			}
		}
		finish := w.Close
		if r.IntN(2) == 0 {
			finish = w.Kill
		}
		if err := finish(); err != nil {
			t.Fatal(err)
		}
		f := open(t, m)
		for i := range want {
			compare(t, f, c, uint32(i), want[i])
		}
		countForms(t, f, c, forms)
	}
	for form := capture.FormHit; form <= capture.FormEnd; form++ {
		if forms[form] == 0 {
			t.Errorf("no record of form %v was tried", form)
		}
	}
	t.Log(forms)
}

func countForms(t *testing.T, f *capture.File, c *catalogue.Catalogue, forms map[capture.Form]int) {
	d := capture.Decoder{Control: true}
	var ev capture.Event
	for i := range f.Chunks() {
		d.Reset(f, &f.Chunks()[i], c)
		for {
			ok, err := d.Next(&ev)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			forms[ev.Form]++
		}
	}
}
