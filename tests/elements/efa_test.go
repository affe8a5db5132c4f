package elements

import (
	"encoding/binary"
	"slices"
	"testing"
)

// An EFA descriptor as efa_io_defs.h has it: first and second control byte, number of the receiver, length, immediate data, address handle, queue key, and its second half.
func descriptor(request uint16, ctrl1, ctrl2 byte, number, length uint16, immediate uint32, handle uint16, qkey uint32, body ...uint32) []byte {
	le := binary.LittleEndian
	b := le.AppendUint16(nil, request)
	b = append(b, ctrl1, ctrl2)
	b = le.AppendUint16(b, number)
	b = le.AppendUint16(b, length)
	b = le.AppendUint32(b, immediate)
	b = le.AppendUint16(b, handle)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint32(b, qkey)
	b = append(b, make([]byte, 12)...)
	for _, w := range body {
		b = le.AppendUint32(b, w)
	}
	return append(b, make([]byte, 64-len(b))...)
}

const (
	meta   = 0x80 // of the first control byte
	withI  = 0x10
	inlinE = 0x20
	whole  = 0xc // first and last, of the second
	wants  = 0x10
)

var descriptors = []struct {
	name   string
	raw    []byte
	keys   []int
	event  string
	fields fields
}{
	{"send of two entries", descriptor(7, meta, whole|wants, 33, 2, 0, 5, 0x99, 100, 0x1111, 0x2000, 1, 20, 0x2222, 0x3000, 2), []int{16, 36, 52}, "doorbell_send",
		fields{"opcode": 0x100, "bytes": 120, "sges": 2, "local_address": 1<<32 | 0x2000, "local_key": hashed(0x1111), "flags": signaled}},
	{"send with immediate", descriptor(8, meta|withI, whole, 33, 1, 0xabcd, 5, 0x99, 100, 0x1111, 0x2000, 1), []int{16, 36}, "doorbell_send", fields{"immediate": 0xabcd, "bytes": 100, "flags": 0}},
	{"send inline", descriptor(9, meta|inlinE, whole|wants, 33, 11, 0, 5, 0x99, 0x64636261, 0x68676665, 0x6b6a69), []int{16}, "doorbell_send", fields{"bytes": 11, "sges": 0, "flags": signaled | inlined}},
	{"read", descriptor(10, meta|1, whole|wants, 34, 1, 0, 5, 0x99, 4096, 0x3333, 0x5000, 6, 4096, 0x1111, 0x2000, 1), []int{16, 36, 52}, "doorbell_read",
		fields{"opcode": 0x101, "bytes": 4096, "sges": 1, "remote_address": 6<<32 | 0x5000, "remote_key": hashed(0x3333), "local_address": 1<<32 | 0x2000}},
	{"write", descriptor(11, meta|2, whole, 34, 1, 0, 6, 0x99, 8, 0x3333, 0x5000, 6, 8, 0x1111, 0x2000, 1), []int{16, 36, 52}, "doorbell_write", fields{"opcode": 0x102, "bytes": 8}},
	{"write with immediate", descriptor(12, meta|withI|2, whole, 34, 1, 77, 6, 0x99, 8, 0x3333, 0x5000, 6, 8, 0x1111, 0x2000, 1), []int{16, 36, 52}, "doorbell_write_imm", fields{"immediate": 77, "bytes": 8}},
	{"registration", descriptor(13, meta|3, whole|wants, 0, 0, 0, 0, 0, 0x1234, 0x0c07, 0x2000, 1, 4096, 0, 0x9000, 0), []int{32}, "doorbell_control", fields{"opcode": 0x103, "flags": signaled | syncs}},
	{"operation 9", descriptor(14, meta|9, whole|wants, 34, 1, 5, 6, 0x99, 1, 2, 3, 4, 5, 6, 7, 8), []int{16}, "doorbell_unknown", fields{"opcode": 0x109, "bytes": 0}},
	{"inline beyond its end", descriptor(15, meta|inlinE, whole, 34, 33, 0, 6, 0x99, 1), []int{16}, "doorbell_unknown", fields{"bytes": 0}},
	{"three entries", descriptor(16, meta, whole, 34, 3, 0, 6, 0x99, 1, 2, 3, 4, 5, 6, 7, 8), []int{16}, "doorbell_unknown", fields{"bytes": 0}},
}

// Each form of EFA's descriptors, in two rounds of a ring: its bit tells one round from the other, and what is left of the round before is not read again.
func TestDescriptors(t *testing.T) {
	const size = 16
	var raw []byte
	for _, x := range descriptors {
		raw = append(raw, x.raw...)
	}
	raw = append(raw, make([]byte, size*64-len(raw))...)
	n := uint32(len(descriptors))
	for round := range uint32(2) {
		for i := range n {
			raw[i*64+3] |= byte(round)
		}
		got := record(t, queue{device: 1, blocks: size, from: round * size, to: round*size + n}, raw)
		if len(got.elements) != len(descriptors) || got.lost != 0 {
			t.Fatalf("%d elements of %d, %d lost", len(got.elements), n, got.lost)
		}
		for i, x := range descriptors {
			want := slices.Clone(x.raw)
			want[3] |= byte(round)
			expect(t, x.name, got.elements[i], x.event, x.fields, blank(want, x.keys...))
			if target := got.elements[i].target; x.event == "doorbell_write" && (target["qpn"] != 34 || target["access_key"] != hashed(0x99)) {
				t.Errorf("%s: target %v", x.name, target)
			}
		}
	}
	got := record(t, queue{device: 1, blocks: size, from: 0, to: n}, raw)
	if len(got.elements) != 0 || got.lost != uint64(n) {
		t.Errorf("those of another round: %d read, %d lost", len(got.elements), got.lost)
	}
}
