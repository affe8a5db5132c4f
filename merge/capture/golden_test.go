package capture_test

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/capture/capturetest"
)

// handMade puts one open event chunk with the given payload behind a header.
func handMade(payload []byte, first uint64) capturetest.Memory {
	m := make(capturetest.Memory, 4096+16384)
	le := binary.LittleEndian
	copy(m, "SGMTRACE\x01\x00\x00\x00\x04\x03\x02\x01")
	le.PutUint32(m[16:], 4096)
	le.PutUint32(m[20:], 16384)
	le.PutUint32(m[124:], 1) // clock domains
	block := m[4096:]
	copy(block, "SBLK\x01")
	le.PutUint64(block[16:], first)
	le.PutUint32(block[32:], uint32(len(payload)))
	copy(block[64:], payload)
	return m
}

// TestRecordsWrittenByHand decodes a chunk whose bytes were put together from FORMAT.md by hand, so that reader and writer cannot be
// wrong in the same way unseen.
func TestRecordsWrittenByHand(t *testing.T) {
	records := []struct{ bytes, want string }{
		{"3f 05 ac02 00 01", "counters at 1000: object 5, 300 posted, 0 received, 1 completed"},
		// element into slot 7: 10 ticks on; queue 5, index 100; submitted 71152, two raw bytes, no cause
		{"3d 0a0000 07 0200 05 64 f0ab04 02aabb 00", "new at 1010: queue 5, index 100, submitted 71152, element aabb, cause 0"},
		{"07 2000 01 00 09", "hit at 1042: queue 5, index 100, submitted 1, element , cause 9"},
		{"87 0100 02 06 02 00 00", "changed at 1043: queue 5, index 103, submitted 2, element , cause 0"},  // candidate 3
		{"87 0100 02 06 03 00 00", "changed at 1044: queue 5, index 106, submitted 3, element , cause 0"},  // stride 3
		{"47 000001 04 00 00", "hit24 at 66580: queue 5, index 109, submitted 4, element , cause 0"},       // guessed
		{"87 0000 02 00 05 00 00", "changed at 66580: queue 5, index 109, submitted 5, element , cause 0"}, // candidate 0, stride still 3
		{"87 0000 00 06 00 00", "changed at 66580: queue 5, index 112, submitted 6, element , cause 0"},    // nothing in the mask: guessed
		{"87 0000 02 00 07 00 00", "changed at 66580: queue 5, index 112, submitted 7, element , cause 0"}, // stride 0
		{"07 0000 08 00 00", "hit at 66580: queue 5, index 112, submitted 8, element , cause 0"},
		{"3e ff8f01", "time -9216"}, // 18431 undone
		{"07 0000 09 00 00", "hit at 57364: queue 5, index 112, submitted 9, element , cause 0"},
		{"c7 ffffff 01 03 0a 00 00", "changed24 at 16834579: queue 3, index 112, submitted 10, element , cause 0"},
		{"00", "end"},
	}
	var payload []byte
	var want []string
	for _, r := range records {
		b, err := hex.DecodeString(strings.ReplaceAll(r.bytes, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, fmt.Sprintf("%d: %s", len(payload), r.want))
		payload = append(payload, b...)
	}
	payload = append(payload, 0xff, 0xff) // behind the end record: not looked at
	f := open(t, handMade(payload, 1000))
	d := capture.Decoder{Control: true}
	d.Reset(f, &f.Chunks()[0], testCatalogue(t))
	var got []string
	var ev capture.Event
	for {
		ok, err := d.Next(&ev)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		v := ev.Fields
		line := fmt.Sprintf("%d: %v", ev.Offset-4096-64, ev.Form)
		switch ev.Form {
		case capture.FormCounters:
			line += fmt.Sprintf(" at %d: object %d, %d posted, %d received, %d completed", ev.Time, v[0], v[1], v[2], v[3])
		case capture.FormTime:
			line += fmt.Sprintf(" %d", int64(v[0]))
		case capture.FormEnd:
		default:
			line += fmt.Sprintf(" at %d: queue %d, index %d, submitted %d, element %x, cause %d", ev.Time, v[0], v[1], v[2], ev.Bytes(3), v[4])
		}
		got = append(got, line)
	}
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("record %d:\n got %q\nwant %q", i, slices.Concat(got, []string{"nothing"})[min(i, len(got))], slices.Concat(want, []string{"nothing"})[min(i, len(want))])
		}
	}
}
