package merge_test

import (
	"context"
	"os"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/capture/capturetest"
	cat "github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// readAll checks what holds of every merge: operations in order, as many as the run says, no lane used twice, flows with two ends.
func readAll(t testing.TB, m *merge.Merged) {
	t.Helper()
	sends, receives := map[uint64]int{}, map[uint64]int{}
	for _, o := range all(t, m) {
		if int(o.Endpoint) >= len(m.Run().Endpoints) || int(o.Lane) >= m.Run().Endpoints[o.Endpoint].Lanes {
			t.Fatalf("an operation of endpoint %d on lane %d", o.Endpoint, o.Lane)
		}
		if o.Done < o.Post {
			t.Fatalf("an operation ends before it begins: %+v", o)
		}
		switch {
		case o.Flow == 0:
		case o.Role == ops.Initiator:
			sends[o.Flow]++
		case o.Role == ops.Target:
			receives[o.Flow]++
		}
	}
	for f, n := range sends {
		if n != 1 || receives[f] != 1 {
			t.Fatalf("flow %x has %d sends and %d receives", f, n, receives[f])
		}
	}
	if int64(len(sends)) != m.Info().Flows.Matched || len(sends) != len(receives) {
		t.Fatalf("%d flows begin, %d end, %d are said to match", len(sends), len(receives), m.Info().Flows.Matched)
	}
	f := m.Info().Flows
	for _, l := range f.Layers {
		f.Matched -= l.Matched
		f.Ambiguous -= l.Ambiguous
	}
	if f.Matched != 0 || f.Ambiguous != 0 {
		t.Fatalf("the layers' flows are not the run's: %d and %d are left", f.Matched, f.Ambiguous)
	}
	validate(t, m.Info(), m.Matrix())
}

// Any bytes in place of a capture.
func FuzzCapture(f *testing.F) {
	l := newLine(f)
	l.b.NoChecksums = true
	l.messages(0, 20, false, false)
	l.close()
	whole, err := os.ReadFile(capturetest.Path(l.dir.Capture(), l.b.header))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:5000])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		l := newLine(t)
		l.messages(0, 20, false, false)
		l.close()
		if err := os.WriteFile(capturetest.Path(l.dir.Capture(), l.b.header), data, 0o600); err != nil {
			t.Fatal(err)
		}
		readAll(t, l.open(merge.Options{Workers: 1, ClockSource: merge.ClockAuto, ClockRepair: true}))
	})
}

// Any order of records of any kind, about objects that are there and others.
func FuzzRecords(f *testing.F) {
	f.Add([]byte("a first seed of some length, so that most kinds of records appear in it, and again: 0123456789"))
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29})
	var ids []uint16
	for _, e := range cat.Default.Events {
		ids = append(ids, e.ID)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := newRig(t)
		a, b := r.process("n1", 100, 0), r.process("n2", 200, 1)
		for i, p := range r.procs {
			p.pairs(hz)
			p.NoChecksums = true
			other := r.procs[1-i]
			d, _ := p.device(10, byte(1+i))
			cq := p.define(20, cat.DefVerbsCq, d, uint64(10))
			srq := p.define(21, cat.DefVerbsSrq, uint64(0), uint64(10))
			gid := append([]byte{0xfe, 0x80}, make([]byte, 14)...)
			gid[15] = byte(2 - i)
			q1 := p.queuePair(22, d, uint64(10+i), rc, cq, 0)
			q2 := p.queuePair(23, d, uint64(20+i), rc, cq, srq)
			p.modify(24, q1, cat.VerbsQpStateRtr, uint64(11-i), gid)
			p.modify(25, q2, cat.VerbsQpStateRtr, uint64(21-i), gid)
			p.queuePair(26, d, 30, ud, cq, 0)
			p.define(27, cat.DefVerbsAh, uint64(0), uint64(0), gid, uint64(0), uint64(1))
			w := p.worker(28, p.header.Hostname)
			p.endpoint(29, w, other.header.Hostname)
		}
		now := uint64(5000)
		for len(data) >= 6 {
			p := a
			if data[0]&1 != 0 {
				p = b
			}
			thread := int(data[0] >> 1 & 1)
			step := uint64(data[1])
			if data[0]&4 != 0 {
				now -= min(step, 40) // recorded late
			} else {
				now += step
			}
			id := ids[int(data[2])%len(ids)]
			layout := cat.Default.Event(id).Layout
			fields := make([]uint64, len(layout.Fields))
			for i := range fields {
				fields[i] = uint64(data[4+i%2]>>(i%3)) & 7
			}
			fields[0] = uint64(data[3] % 12)
			if i := layout.FieldIndex("opcode"); i >= 0 && data[5]&1 != 0 {
				fields[i] = 128
			}
			if data[0]&0x18 == 0x18 {
				p.thread(thread).Cut()
				p.thread(thread).Skip()
			}
			if data[0]&0xe0 == 0xe0 {
				p.Define(now, cat.DefObjectEnd, uint64(data[3]%12))
			}
			p.event(thread, now, id, fields...)
			data = data[6:]
		}
		r.close()
		m := r.open(merge.Options{Workers: 1, ClockSource: merge.ClockAuto, ClockRepair: true})
		readAll(t, m)
		e, err := merge.FindExporter("perfetto")
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Export(context.Background(), e, r.dir.Trace(), merge.ExportOptions{}); err != nil {
			t.Fatal(err)
		}
	})
}

// The captures that fuzzing found trouble with are kept in testdata/fuzz; this one is the header of a process that claims absurd numbers.
func TestAbsurdHeader(t *testing.T) {
	r := newRig(t)
	p := r.process("n1", 100, 1<<60, func(h *capture.Header) { h.World = 1 << 61; h.RealtimeNS = 1<<64 - 1; h.ClockHz = 1 })
	p.Live.Blocks = 1 << 63
	p.Define(5, cat.DefClockPair, cat.DomainTsc, uint64(1)<<63, uint64(1)<<63+1, uint64(1)<<62, uint64(1)<<63)
	p.event(0, 1<<62, cat.EventUcpPut, ucpRequest(1, 1<<63, 0, 0, 0, cat.UcpResultDone, 1<<62)...)
	r.close()
	readAll(t, r.open(merge.Options{ClockSource: merge.ClockAuto, ClockRepair: true}))
}
