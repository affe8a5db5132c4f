package elements

import (
	"errors"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// What a damaged capture says never breaks the reader.
func FuzzBytes(f *testing.F) {
	f.Add(uint64(0), uint16(catalogue.EventDoorbellWrite), uint64(3<<32), uint64(1), []byte{}, []byte{3, 1, 9})
	f.Add(uint64(0), uint16(catalogue.EventDoorbellSignal), uint64(1<<32), uint64(20), make([]byte, 48), []byte{0xff, 0x07, 2, 1, 1})
	f.Add(uint64(1), uint16(catalogue.EventDoorbellRead), uint64(1<<48), uint64(1), make([]byte, 16), []byte{60, 4, 1, 2, 3})
	f.Fuzz(func(t *testing.T, device uint64, event uint16, form, small uint64, vector, rest []byte) {
		fields := make([]uint64, catalogue.MaxFields)
		for i := range fields {
			fields[i] = small >> i
		}
		fields[catalogue.DoorbellRequestForm] = form
		raw, err := Bytes(Queue{Device: device % 3}, event, fields, vector, rest)
		if err == nil && (len(raw) == 0 || len(raw) > most || form&cutBit != 0) {
			t.Errorf("%d bytes", len(raw))
		}
	})
}

// Runs that do not fit the element are refused, and one that the record ends in is told.
func TestRuns(t *testing.T) {
	for _, c := range []struct {
		rest []byte
		want string
		cut  bool
	}{
		{nil, "\x00\x00\x00\x00", false},
		{[]byte{1, 2, 'a', 'b'}, "\x00ab\x00", false},
		{[]byte{0, 1, 'a', 2, 1, 'b'}, "a\x00\x00b", false},
		{[]byte{1, 3, 'a'}, "\x00a\x00\x00", true},
		{[]byte{1}, "\x00\x00\x00\x00", true},
	} {
		raw := make([]byte, 4)
		if err := patch(raw, c.rest); errors.Is(err, ErrCut) != c.cut || (err != nil) != c.cut || string(raw) != c.want {
			t.Errorf("%v: %q, %v", c.rest, raw, err)
		}
	}
	for _, rest := range [][]byte{{1, 4, 1, 2, 3, 4}, {5, 0}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1, 1}} {
		if err := patch(make([]byte, 4), rest); err == nil || errors.Is(err, ErrCut) {
			t.Errorf("%v: %v", rest, err)
		}
	}
}
