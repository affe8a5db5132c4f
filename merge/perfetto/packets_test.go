package perfetto_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"testing"
)

// packet is a TracePacket, taken apart as far as these tests need; raw is what stands in the file, header included.
type packet struct {
	raw      []byte
	sequence uint64
	flags    uint64
	time     uint64
	event    uint64 // TrackEvent.type; 0 where the packet has no event
	flows    []uint64
	track    bool // describes a track
	snapshot bool
}

// fields calls fn with the fields of a protobuf message; v is set for numbers, b for what has a length.
func fields(t testing.TB, b []byte, fn func(field int, v uint64, b []byte)) {
	t.Helper()
	for len(b) > 0 {
		key, n := binary.Uvarint(b)
		if n <= 0 {
			t.Fatal("broken message")
		}
		b = b[n:]
		switch key & 7 {
		case 0:
			v, n := binary.Uvarint(b)
			fn(int(key>>3), v, nil)
			b = b[n:]
		case 1:
			fn(int(key>>3), binary.LittleEndian.Uint64(b), nil)
			b = b[8:]
		case 2:
			l, n := binary.Uvarint(b)
			fn(int(key>>3), 0, b[n:n+int(l)])
			b = b[n+int(l):]
		default:
			t.Fatalf("wire type %d", key&7)
		}
	}
}

func unzip(t testing.TB, trace []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(trace))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// packets takes an exported trace apart.
func packets(t testing.TB, trace []byte) []packet {
	t.Helper()
	var out []packet
	for b := unzip(t, trace); len(b) > 0; {
		l, n := binary.Uvarint(b[1:])
		end := 1 + n + int(l)
		p := packet{raw: b[:end]}
		fields(t, b[1+n:end], func(field int, v uint64, body []byte) {
			switch field {
			case 6:
				p.snapshot = true
			case 8:
				p.time = v
			case 10:
				p.sequence = v
			case 13:
				p.flags = v
			case 60:
				p.track = true
			case 11:
				fields(t, body, func(field int, v uint64, _ []byte) {
					switch field {
					case 9:
						p.event = v
					case 47:
						p.flows = append(p.flows, v)
					}
				})
			}
		})
		out = append(out, p)
		b = b[end:]
	}
	return out
}

// join makes a trace of packets again, not compressed.
func join(ps []packet) []byte {
	var b []byte
	for _, p := range ps {
		b = append(b, p.raw...)
	}
	return b
}
