package elements

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/elements"
)

// Segments as the ConnectX Programmer's Reference Manual has them.

// control is a control segment; its size is filled in when the element is whole.
func control(opcode, modifier, flags byte, last uint32) []byte {
	b := make([]byte, 16)
	b[0], b[3], b[11] = modifier, opcode, flags
	binary.BigEndian.PutUint32(b[4:], qpn<<8)
	binary.BigEndian.PutUint32(b[12:], last)
	return b
}

func words(w ...uint64) (b []byte) {
	for _, x := range w {
		b = binary.BigEndian.AppendUint64(b, x)
	}
	return b
}

func remote(address uint64, key uint32) []byte { return words(address, uint64(key)<<32) }

func gather(count, key uint32, address uint64) []byte {
	return words(uint64(count)<<32|uint64(key), address)
}

func inline(data string) []byte {
	b := append(binary.BigEndian.AppendUint32(nil, 1<<31|uint32(len(data))), data...)
	for len(b)%16 != 0 {
		b = append(b, 0)
	}
	return b
}

// target is an address vector: of 16 bytes, or with a GID of 48.
func target(key uint64, number uint32, lid uint16, gid []byte) []byte {
	b := words(key, uint64(number)<<32|uint64(lid))
	if gid != nil {
		b[8] |= 0x80
		b = append(b, 1, 2, 3, 4, 0xa, 0xb, 0xc, 0xd, 0xe, 0xf, 7, 64, 0x40, 0, 0, 9)
		b = append(b, gid...)
	}
	return b
}

// element puts segments together, with the size.
func element(segments ...[]byte) []byte {
	b := bytes.Join(segments, nil)
	b[7] = byte(len(b) / 16)
	return b
}

// ring lays elements one behind the other from an index on, over the ring's end where it comes, and returns where they end.
func ring(blocks int, from uint32, all ...[]byte) (raw []byte, to uint32) {
	raw, to = make([]byte, blocks*64), from
	for _, e := range all {
		binary.BigEndian.PutUint16(e[1:], uint16(to))
		for at := 0; at < len(e); at += 64 {
			copy(raw[int(to)%blocks*64:][:64], e[at:])
			to++
		}
	}
	return raw, to
}

type fields = map[string]uint64

const (
	signaled = catalogue.VerbsSendFlagsSignaled
	inlined  = catalogue.VerbsSendFlagsInline
	syncs    = catalogue.VerbsSendFlagsControl
)

// What each form of element becomes. keys are the places of keys, which are in no record as they are.
var forms = []struct {
	name   string
	raw    []byte
	keys   []int
	event  string
	fields fields
}{
	{"write", element(control(0x08, 0, 8, 0), remote(0x7000_0000_1000, 0x1111), gather(4096, 0x2222, 0x5000_0000_2000)), []int{24, 36}, "doorbell_write",
		fields{"bytes": 4096, "opcode": 0x08, "flags": signaled, "sges": 1, "local_address": 0x5000_0000_2000, "local_key": hashed(0x2222), "remote_address": 0x7000_0000_1000, "remote_key": hashed(0x1111)}},
	{"write with immediate", element(control(0x09, 0, 8|2, 0xabcdef01), remote(1, 2), gather(7, 3, 4)), []int{24, 36}, "doorbell_write_imm",
		fields{"bytes": 7, "immediate": 0xabcdef01, "flags": signaled | catalogue.VerbsSendFlagsSolicited}},
	{"write of three pieces", element(control(0x08, 0, 0x80, 0), remote(1, 2), gather(100, 3, 0x1000), gather(20, 4, 0x2000), gather(3, 5, 0x3000)), []int{24, 36, 52, 68}, "doorbell_write",
		fields{"bytes": 123, "sges": 3, "local_address": 0x1000, "flags": catalogue.VerbsSendFlagsFence}},
	{"write inline", element(control(0x08, 0, 8, 0), remote(0x99, 2), inline("eight by")), []int{24}, "doorbell_write", fields{"bytes": 8, "sges": 0, "flags": signaled | inlined, "local_key": 0}},
	{"write of nothing", element(control(0x08, 0, 8, 0), remote(0x99, 2)), []int{24}, "doorbell_write", fields{"bytes": 0, "sges": 0}},
	{"write inline and gathered", element(control(0x08, 0, 8, 0), remote(0x99, 2), inline("head"), gather(500, 3, 0x4000)), []int{24, 52}, "doorbell_write",
		fields{"bytes": 504, "sges": 1, "local_address": 0x4000, "flags": signaled | inlined}},
	{"write inline of 200 bytes", element(control(0x08, 0, 8, 0), remote(0x99, 2), inline(string(bytes.Repeat([]byte{1, 0, 0}, 66))+"ab")), []int{24}, "doorbell_write", fields{"bytes": 200}},
	{"read", element(control(0x10, 0, 8, 0), remote(0x88, 2), gather(1<<30, 3, 0x4000)), []int{24, 36}, "doorbell_read", fields{"bytes": 1 << 30, "remote_address": 0x88}},
	{"send", element(control(0x0a, 0, 8, 0), gather(64, 3, 0x4000)), []int{20}, "doorbell_send", fields{"bytes": 64, "remote_address": 0}},
	{"send with immediate", element(control(0x0b, 0, 8, 17), gather(64, 3, 0x4000)), []int{20}, "doorbell_send", fields{"opcode": 0x0b, "immediate": 17}},
	{"send and invalidate", element(control(0x01, 0, 8, 0x4242), gather(64, 3, 0x4000)), []int{12, 20}, "doorbell_send", fields{"opcode": 0x01, "bytes": 64, "immediate": hashed(0x4242)}},
	{"compare and swap", element(control(0x11, 0, 8, 0), remote(0x80, 2), words(7, 42), gather(8, 3, 0x4000)), []int{24, 52}, "doorbell_atomic", fields{"bytes": 8, "sges": 1, "flags": signaled | syncs}},
	{"fetch and add", element(control(0x12, 0, 8, 0), remote(0x80, 2), words(5, 0), gather(8, 3, 0x4000)), []int{24, 52}, "doorbell_atomic", fields{"bytes": 8, "local_address": 0x4000}},
	{"masked swap of 8", element(control(0x14, 9, 8, 0), remote(0x80, 2), words(1, 2), words(0xffff, 0xff), gather(8, 3, 0x4000)), []int{24, 68}, "doorbell_atomic", fields{"bytes": 8}},
	{"masked swap of 4", element(control(0x14, 8, 8, 0), remote(0x80, 2), words(1<<32|2, 0xffffffff<<32|0xffffffff), gather(4, 3, 0x4000)), []int{24, 52}, "doorbell_atomic", fields{"bytes": 4, "local_address": 0x4000}},
	{"masked add of 8", element(control(0x15, 9, 8, 0), remote(0x80, 2), words(1, 0), gather(8, 3, 0x4000)), []int{24, 52}, "doorbell_atomic", fields{"bytes": 8}},
	{"masked add of 4", element(control(0x15, 8, 0, 0), remote(0x80, 2), words(1<<32, 0), gather(4, 3, 0x4000)), []int{24, 52}, "doorbell_atomic", fields{"bytes": 4, "flags": syncs}},
	{"store of 8", element(control(0x14, 9, 8, 0), remote(0x80, 2), words(77, 0), words(1<<64-1, 0), gather(8, 3, 0x4000)), []int{24, 68}, "doorbell_signal", fields{"bytes": 8, "flags": signaled | syncs}},
	{"store of 4", element(control(0x14, 8, 8, 0), remote(0x80, 2), words(77<<32, 0xffffffff<<32), gather(4, 3, 0x4000)), []int{24, 52}, "doorbell_signal", fields{"bytes": 4}},
	{"no-operation", element(control(0x00, 0, 8, 0)), nil, "doorbell_control", fields{"flags": signaled | syncs, "bytes": 0}},
	{"wait", element(control(0x0f, 1, 0, 0), words(0, 5<<32|9)), nil, "doorbell_control", fields{"opcode": 0x0f, "remote_address": 0}},
	{"registration of memory", element(control(0x25, 0, 8, 0x777), make([]byte, 48), make([]byte, 64), gather(4096, 3, 0x4000)), []int{12, 132}, "doorbell_control", fields{"opcode": 0x25, "immediate": hashed(0x777)}},
	{"invalidation", element(control(0x1b, 0, 8, 0x777), make([]byte, 48)), []int{12}, "doorbell_control", fields{"opcode": 0x1b}},
	{"opcode 0x3e", element(control(0x3e, 5, 8, 0x12345), words(1, 2, 3, 4, 5, 6)), nil, "doorbell_unknown", fields{"opcode": 0x3e, "bytes": 0, "flags": signaled}},
	{"write without address", element(control(0x08, 0, 8, 0)), nil, "doorbell_unknown", fields{"opcode": 0x08, "bytes": 0}},
	{"atomic without operands", element(control(0x14, 9, 8, 0), remote(0x80, 2), words(1, 2)), nil, "doorbell_unknown", fields{"bytes": 0}},
	{"inline beyond its end", element(control(0x08, 0, 8, 0), remote(0x80, 2), words(0x800000ff<<32, 0)), nil, "doorbell_unknown", fields{"bytes": 0, "flags": signaled}},
}

// Every form, each behind the other in a ring that wraps, from an index on whose low 16 bits wrap too.
func TestForms(t *testing.T) {
	var all [][]byte
	for _, f := range forms {
		all = append(all, f.raw)
	}
	const from = 0x1fff0
	raw, to := ring(128, from, all...)
	got := record(t, queue{blocks: 128, from: from, to: to}, raw)
	if len(got.elements) != len(forms) || got.lost != 0 {
		t.Fatalf("%d elements of %d, %d lost", len(got.elements), len(forms), got.lost)
	}
	at := uint32(from)
	for i, f := range forms {
		f.fields["index"], f.fields["call"] = uint64(at), min(uint64(i), 1)
		expect(t, f.name, got.elements[i], f.event, f.fields, blank(f.raw, f.keys...))
		if text := fmt.Sprintf(`"element":"%x"`, blank(f.raw, f.keys...)); !strings.Contains(got.dump, text) {
			t.Errorf("%s: not in what `sigmatrace dump` prints", f.name)
		}
		at += uint32(len(f.raw)+63) / 64
	}
}

// Elements of a dynamically connected queue: to targets by LID, by GID, and by GID with the bit left out.
func TestTargets(t *testing.T) {
	gid := bytes.Repeat([]byte{0xfe, 0x80}, 8)
	unrouted := target(0xaaaabbbbccccdddd, 0x305, 0, gid)
	unrouted[28] = 0
	to := []struct {
		vector []byte
		want   fields
	}{
		{target(0x1122334455667788, 0x301, 5, nil), fields{"qpn": 0x301, "dlid": 5, "global": 0, "dgid": 0, "access_key": hashed(0x1122334455667788)}},
		{target(0x1122334455667788, 0x302, 5, nil), fields{"qpn": 0x302, "dlid": 5, "global": 0}},
		{target(1, 0x302, 6, gid), fields{"qpn": 0x302, "dlid": 6, "global": 1, "dgid": 16}},
		{unrouted, fields{"qpn": 0x305, "global": 1, "dgid": 16}},
	}
	var all [][]byte
	for range 2 {
		for _, x := range to {
			all = append(all, element(control(0x08, 0, 8, 0), x.vector, remote(0x70, 1), gather(10, 2, 0x4000)))
		}
	}
	all = append(all, element(control(0x14, 9, 8, 0), to[2].vector, remote(0x80, 2), words(77, 0), words(1<<64-1, 0), gather(8, 3, 0x4000)),
		element(control(0x0b, 0, 8, 5), to[0].vector, gather(10, 2, 0x4000)), element(control(0x00, 0, 8, 0)), element(control(0x08, 0, 8, 0), target(1, 2, 3, gid)[:16]))
	raw, end := ring(32, 0, all...)
	got := record(t, queue{dynamic: 1, blocks: 32, to: end}, raw)
	if len(got.elements) != len(all) || got.lost != 0 {
		t.Fatalf("%d elements of %d, %d lost", len(got.elements), len(all), got.lost)
	}
	ids := map[uint64]bool{}
	for i, x := range got.elements[:8] {
		want := to[i%4]
		for field, v := range want.want {
			if x.target[field] != v {
				t.Errorf("element %d: %s of its target is %#x, not %#x", i, field, x.target[field], v)
			}
		}
		at := 16 + len(want.vector)
		expect(t, "write", x, "doorbell_write", fields{"bytes": 10, "remote_address": 0x70}, blank(all[i], 16, 20, at+8, at+20))
		ids[x.fields["target"]] = true
	}
	if len(ids) != 4 {
		t.Errorf("%d targets, not 4", len(ids))
	}
	expect(t, "store", got.elements[8], "doorbell_signal", fields{"bytes": 8, "target": got.elements[2].fields["target"]}, blank(all[8], 16, 20, 72, 116))
	expect(t, "send", got.elements[9], "doorbell_send", fields{"bytes": 10, "immediate": 5}, blank(all[9], 16, 20, 36))
	expect(t, "no-operation", got.elements[10], "doorbell_control", fields{"target": 0}, all[10])
	expect(t, "half an address", got.elements[11], "doorbell_unknown", fields{"target": 0}, all[11])
}

// What is not the expected element is counted as lost and never read: another index, another queue, an element beyond what was rung or than the ring is long.
func TestEachIsChecked(t *testing.T) {
	write := func() []byte { return element(control(0x08, 0, 8, 0), remote(1, 2), gather(7, 3, 4)) }
	raw, to := ring(8, 0, write(), write(), write(), write())
	raw[64+2]++      // the second: another index
	raw[2*64+6] ^= 1 // the third: another queue
	got := record(t, queue{blocks: 8, to: to}, raw)
	if len(got.elements) != 2 || got.lost != 2 || got.elements[1].fields["index"] != 3 {
		t.Errorf("%d elements, %d lost", len(got.elements), got.lost)
	}
	raw, to = ring(8, 0, write(), write())
	raw[64+7] = 0x3f // sixteen blocks
	got = record(t, queue{blocks: 8, to: to}, raw)
	if len(got.elements) != 1 || got.lost != 1 {
		t.Errorf("longer than its ring: %d elements, %d lost", len(got.elements), got.lost)
	}
	raw, to = ring(8, 0, element(control(0x08, 0, 8, 0), remote(1, 2), inline(string(make([]byte, 100)))))
	got = record(t, queue{blocks: 8, to: to - 1}, raw)
	if len(got.elements) != 0 || got.lost != uint64(to-1) {
		t.Errorf("rung for in part: %d elements, %d lost", len(got.elements), got.lost)
	}
	raw, to = ring(8, 0, write())
	raw[7] = 0 // no size: kept as it is, all of its block
	got = record(t, queue{blocks: 8, to: to}, raw)
	if len(got.elements) != 1 {
		t.Fatalf("without a size: %d elements", len(got.elements))
	}
	expect(t, "without a size", got.elements[0], "doorbell_unknown", fields{"bytes": 0}, raw[:64])
}

// An element that says more than a record takes is cut, and its record says so.
func TestLongElementIsCut(t *testing.T) {
	long := element(control(0x08, 0, 8, 0), remote(1, 2), inline(string(bytes.Repeat([]byte("inline "), 100))))
	raw, to := ring(16, 0, long)
	got := record(t, queue{blocks: 16, to: to}, raw)
	if len(got.elements) != 1 {
		t.Fatalf("%d elements", len(got.elements))
	}
	e := got.elements[0]
	if !errors.Is(e.err, elements.ErrCut) || e.fields["bytes"] != 700 || !bytes.Equal(e.raw[:280], blank(long, 24)[:280]) {
		t.Errorf("%v, %d bytes, %x", e.err, e.fields["bytes"], e.raw)
	}
}

// What a record takes: a put as NVSHMEM makes them, from and to addresses that go on evenly, little more than its code and time; one that carries 8 bytes inline these
// too.
func TestBytesOfAnElement(t *testing.T) {
	const n = 1000
	for _, c := range []struct {
		name string
		make func(i uint64) []byte
		most float64
	}{
		{"put", func(i uint64) []byte {
			return element(control(0x08, 0, 8, 0), remote(0x7000_0000+i*4096, 0x1111), gather(4096, 0x2222, 0x5000_0000+i*4096))
		}, 4.2},
		{"put of 8 bytes inline", func(i uint64) []byte {
			return element(control(0x08, 0, 8, 0), remote(0x7000_0000, 0x1111), inline("8 bytes!"))
		}, 14.2},
		{"fetch and add", func(i uint64) []byte {
			return element(control(0x12, 0, 8, 0), remote(0x80, 2), words(1, 0), gather(8, 3, 0x4000))
		}, 7.2},
	} {
		var all [][]byte
		for i := range uint64(n) {
			all = append(all, c.make(i))
		}
		raw, to := ring(1024, 0, all...)
		got := record(t, queue{blocks: 1024, to: to}, raw)
		per := float64(got.bytes) / n
		t.Logf("%s: %.2f bytes a record", c.name, per)
		if len(got.elements) != n || per > c.most || !bytes.Equal(got.elements[n-1].raw[16:24], all[n-1][16:24]) {
			t.Errorf("%s: %d elements, %.2f bytes a record", c.name, len(got.elements), per)
		}
	}
}
