package merge_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/capture/capturetest"
	cat "github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/match"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// line is two processes with one connected queue pair each, and what either records of messages from the first to the second.
type line struct {
	*rig
	a, b   *proc
	qa, qb uint64
	now    uint64
}

func newLine(t testing.TB) *line {
	l := &line{rig: newRig(t), now: 10_000}
	l.a, l.b = l.process("n1", 100, 0), l.process("n1", 200, 1)
	l.a.pairs(hz)
	l.b.pairs(hz)
	da, ga := l.a.device(100, 1)
	db, _ := l.b.device(100, 1)
	l.qa = l.a.queuePair(200, da, 17, rc, 0, 0)
	l.qb = l.b.queuePair(200, db, 18, rc, 0, 0)
	l.a.modify(300, l.qa, cat.VerbsQpStateRtr, 18, ga)
	l.b.modify(300, l.qb, cat.VerbsQpStateRtr, 17, ga)
	return l
}

func (l *line) tick() uint64 { l.now += 100; return l.now }

// record records an event, or loses it: the tables count it, the chunk with it is missing.
func (l *line) record(lost bool, p *proc, id uint16, fields ...uint64) {
	if lost {
		p.count(0, l.tick(), id, fields...)
		return
	}
	p.event(0, l.tick(), id, fields...)
}

// messages sends messages from number from to below to; uid and wr_id are the number. lostA and lostB: that side's records are lost.
func (l *line) messages(from, to uint64, lostA, lostB bool) {
	for _, lost := range []struct {
		p    *proc
		lost bool
	}{{l.a, lostA}, {l.b, lostB}} {
		if lost.lost {
			lost.p.thread(0).Cut()
			lost.p.thread(0).Skip()
		}
	}
	for n := from; n < to; n++ {
		l.record(lostB, l.b, cat.EventVerbsRecv, l.qb, n, 4096, 1, n, 5, 0)
		l.record(lostA, l.a, cat.EventVerbsSend, verbsFields(l.qa, n, 64, cat.VerbsOpcodeSend, cat.VerbsSendFlagsSignaled, n)...)
	}
	for n := from; n < to; n++ {
		l.record(lostB, l.b, cat.EventVerbsCompletion, l.qb, n, 0, 0, 128, 64, 0, 0, 0)
		l.record(lostA, l.a, cat.EventVerbsCompletion, l.qa, n, 0, 0, 0, 64, 0, 0, 0)
	}
}

// matched returns the numbers of the messages whose ends have one flow, and fails where two that are not one message have.
func (l *line) matched(m *merge.Merged) map[uint64]bool {
	l.t.Helper()
	sends, met := map[uint64]uint64{}, map[uint64]bool{}
	operations := all(l.t, m)
	for i := range operations {
		if o := &operations[i]; o.Event == cat.EventVerbsSend && o.Flow != 0 {
			sends[o.Flow] = verbsUID(o)
		}
	}
	for i := range operations {
		o := &operations[i]
		if o.Event != cat.EventVerbsRecv || o.Flow == 0 {
			continue
		}
		if n, ok := sends[o.Flow]; !ok || n != verbsUID(o) {
			l.t.Errorf("receive %d has the flow of send %d", verbsUID(o), n)
		}
		met[verbsUID(o)] = true
	}
	return met
}

// A lost chunk costs the messages in it, not those behind it: numbers are absolute.
func TestMatchingGoesOnBehindALostChunk(t *testing.T) {
	for _, c := range []struct {
		name         string
		lostA, lostB bool
	}{{"sends lost", true, false}, {"receives lost", false, true}, {"both lost", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			l := newLine(t)
			l.messages(0, 100, false, false)
			l.messages(100, 150, c.lostA, c.lostB)
			l.messages(150, 300, false, false)
			l.close()
			m := l.open(merge.Options{})
			met := l.matched(m)
			for n := range uint64(300) {
				if want := n < 100 || n >= 150; met[n] != want {
					t.Fatalf("message %d matched: %v, want %v", n, met[n], want)
				}
			}
			i := m.Info()
			lone := int64(50)
			if c.lostA && c.lostB {
				lone = 0
			}
			if i.Flows.Matched != 250 || i.Flows.Unmatched[match.LostRecords] != lone {
				t.Errorf("flows %+v", i.Flows)
			}
			if i.Complete() || !strings.Contains(i.Ranks.Incomplete[0].Reason, "chunks are missing") {
				t.Errorf("ranks %+v", i.Ranks)
			}
			if got, want := i.Operations["verbs"]["send"], (merge.Count{Count: 300, Bytes: 300 * 64}); got != want {
				t.Errorf("the tables say %+v, want %+v", got, want)
			}
		})
	}
}

// Receives of which only the completions are lost stay open; those behind them are filled by the right messages.
func TestLostReceiveCompletions(t *testing.T) {
	l := newLine(t)
	for n := range uint64(30) {
		l.record(false, l.b, cat.EventVerbsRecv, l.qb, n, 4096, 1, n, 5, 0)
		l.record(false, l.a, cat.EventVerbsSend, verbsFields(l.qa, n, 64, cat.VerbsOpcodeSend, cat.VerbsSendFlagsSignaled, n)...)
	}
	evidence := int64(0)
	for n := range uint64(30) {
		if n == 10 {
			l.b.thread(0).Cut()
			l.b.thread(0).Skip()
		}
		l.record(n >= 10 && n < 20, l.b, cat.EventVerbsCompletion, l.qb, n, 0, 0, 128, 64, 0, 0, 0)
		if n == 20 {
			evidence = ns(l.now)
		}
	}
	l.close()
	m := l.open(merge.Options{})
	met := l.matched(m)
	for n := range uint64(30) {
		if want := n < 10 || n >= 20; met[n] != want {
			t.Errorf("message %d matched: %v, want %v", n, met[n], want)
		}
	}
	for _, o := range of(all(t, m), cat.EventVerbsRecv) {
		if n := verbsUID(&o); n >= 10 && n < 20 && (o.Flags&ops.Unfinished == 0 || o.Done != evidence) {
			t.Errorf("receive %d ends at %d with flags %#x, want %d, when the next one ended", n, o.Done-epoch, o.Flags, evidence-epoch)
		}
	}
	if f := m.Info().Flows; f.Unmatched[match.Unfinished] != 10 || f.Unmatched[match.LostRecords] != 10 {
		t.Errorf("flows %+v", f)
	}
}

// A process that was killed while a long message came in has a receive that took a message and never ended. It keeps its place.
func TestUnfinishedTagReceiveKeepsItsPlace(t *testing.T) {
	for _, mask := range []uint64{wholeMask, 0xff} {
		r := newRig(t)
		a, b := r.process("n1", 100, 0), r.process("n1", 200, 1)
		a.pairs(hz)
		b.pairs(hz)
		wa, wb := a.worker(10, "a"), b.worker(20, "b")
		ep := a.endpoint(30, wa, "b")
		for n := range uint64(3) {
			f := ucpRequest(ep, 100, 5, 0, 0, cat.UcpResultDone, 10)
			f[cat.UcpRequestLocalAddress] = n
			a.event(0, 1000+100*n, cat.EventUcpTagSend, f...)
			m := wholeMask
			if n == 0 {
				m = mask
			}
			f = ucpRequest(wb, 1000, 5, m, n+1, cat.UcpResultPending, 10)
			f[cat.UcpRequestLocalAddress] = n
			b.event(0, 500+100*n, cat.EventUcpTagRecv, f...)
		}
		b.event(0, 2000, cat.EventUcpCompletion, wb, 2, 100, 5, 0)
		b.event(0, 2100, cat.EventUcpCompletion, wb, 3, 100, 5, 0)
		if err := a.end(false); err != nil {
			t.Fatal(err)
		}
		if err := b.end(true); err != nil {
			t.Fatal(err)
		}
		m := r.open(merge.Options{})
		operations := all(t, m)
		sends, receives := of(operations, cat.EventUcpTagSend), of(operations, cat.EventUcpTagRecv)
		if mask == wholeMask {
			for n := 1; n < 3; n++ {
				if s, v := sends[n], receives[n]; s.Flow == 0 || s.Flow != v.Flow || s.Flags&ops.Ambiguous != 0 {
					t.Errorf("message %d: flows %x and %x, flags %#x", n, s.Flow, v.Flow, s.Flags)
				}
			}
			if receives[0].Flow != 0 || receives[0].Flags&ops.Unfinished == 0 {
				t.Errorf("the receive that never ended: %+v", receives[0])
			}
			continue
		}
		// Which tag the first receive took nobody knows: what is said of the others is said to be unsure.
		if f := m.Info().Flows; f.Ambiguous != f.Matched || f.Matched != 2 {
			t.Errorf("flows %+v", f)
		}
	}
}

// The byte budget ends the events, not the counts.
func TestByteBudgetEnds(t *testing.T) {
	l := newLine(t)
	l.messages(0, 50, false, false)
	for n := uint64(50); n < 80; n++ {
		l.a.count(0, l.tick(), cat.EventVerbsSend, verbsFields(l.qa, n, 64, cat.VerbsOpcodeSend, 2, n)...)
		l.a.Live.LostEvents++
		l.a.Live.LostBytes += 64
	}
	l.a.Live.LostCause = 1
	l.close()
	i := l.open(merge.Options{}).Info()
	if i.Lost.Events != 30 || i.Lost.Bytes != 30*64 || i.Operations["verbs"]["send"].Count != 80 || !i.Exact {
		t.Errorf("lost %+v of %+v", i.Lost, i.Operations["verbs"]["send"])
	}
	if x := i.Ranks.Incomplete; len(x) != 1 || *x[0].Rank != 0 || x[0].Reason != "lost events: byte budget" {
		t.Errorf("incomplete %v", x)
	}
}

// A copy of a capture, or an earlier state of it, would be counted again: the one with the most in it counts, and the other is named.
func TestCopiesCountOnce(t *testing.T) {
	for name, cut := range map[string]int{"whole": 0, "of an earlier state": 16 << 10} {
		t.Run(name, func(t *testing.T) {
			l := newLine(t)
			l.messages(0, 1500, false, false)
			l.close()
			path := capturetest.Path(l.dir.Capture(), l.a.header)
			whole, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			beside := filepath.Join(filepath.Dir(path), "0.0.0"+capture.Extension) // before the other in every listing
			if err := os.WriteFile(beside, whole[:len(whole)-cut], 0o600); err != nil {
				t.Fatal(err)
			}
			i := l.open(merge.Options{}).Info()
			if i.Processes.Total != 2 || i.Operations["verbs"]["send"].Count != 1500 || !i.Exact {
				t.Errorf("%d processes, %d sends, exact: %t", i.Processes.Total, i.Operations["verbs"]["send"].Count, i.Exact)
			}
			if len(i.Damaged) != 1 || !strings.Contains(i.Damaged[0].Reason, "a second capture of the same process") || i.Complete() {
				t.Errorf("%+v, complete: %t", i.Damaged, i.Complete())
			}
			if cut > 0 && i.Damaged[0].File != beside {
				t.Errorf("left out: %s", i.Damaged[0].File)
			}
		})
	}
}

// Files cut off at every kind of place, foreign and damaged ones: each is named, nothing else suffers, no file is changed.
func TestDamagedFilesAreNamed(t *testing.T) {
	build := func() (*line, string, []byte) {
		l := newLine(t)
		l.messages(0, 1500, false, false)
		l.close()
		path := capturetest.Path(l.dir.Capture(), l.b.header)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return l, path, whole
	}
	_, _, whole := build()
	const block = 16 << 10
	type damage struct {
		name   string
		change func([]byte) []byte
		sends  bool // the file can still be read in part
	}
	flip := func(at int) func([]byte) []byte {
		return func(b []byte) []byte { b[at] ^= 0x5a; return b }
	}
	cutAt := func(at int) func([]byte) []byte { return func(b []byte) []byte { return b[:at] } }
	list := []damage{
		{"empty", cutAt(0), false}, {"in the magic", cutAt(5), false}, {"in the header", cutAt(1000), false},
		{"behind the header", cutAt(4096), true}, {"in a block's header", cutAt(4096 + block + 30), true},
		{"behind a block's header", cutAt(4096 + block + 64), true}, {"in a block", cutAt(4096 + block + 5000), true}, {"at a block", cutAt(4096 + 2*block), true},
		{"foreign", func([]byte) []byte { return []byte("#!/bin/sh\necho not a capture\n" + strings.Repeat("x", 5000)) }, false},
		{"newer", func(b []byte) []byte { b[8] = 9; return b }, false}, {"other byte order", func(b []byte) []byte { b[12], b[15] = b[15], b[12]; b[13], b[14] = b[14], b[13]; return b }, false},
		{"a flipped bit in a block", flip(4096 + block + 1000), true}, {"a flipped bit in a block's magic", flip(4096 + block), true},
		{"zeros", func(b []byte) []byte { clear(b); return b }, false},
	}
	for _, d := range list {
		t.Run(d.name, func(t *testing.T) {
			l := newLine(t)
			l.messages(0, 1500, false, false)
			l.close()
			path := capturetest.Path(l.dir.Capture(), l.b.header)
			broken := d.change(bytes.Clone(whole))
			if err := os.WriteFile(path, broken, 0o600); err != nil {
				t.Fatal(err)
			}
			info, err := merge.Run(context.Background(), l.dir, merge.Options{Exports: []string{"matrix"}})
			if err != nil {
				t.Fatal(err)
			}
			if info.Complete() {
				t.Error("said to be complete")
			}
			named := false
			for _, x := range info.Damaged {
				named = named || x.File == path
			}
			for _, x := range info.Ranks.Incomplete {
				named = named || (x.Pid != nil && *x.Pid == 200)
			}
			if !named {
				t.Errorf("the file is named nowhere: %+v %+v", info.Damaged, info.Ranks.Incomplete)
			}
			if got := info.Operations["verbs"]["send"]; got.Count != 1500 {
				t.Errorf("the sound process has %+v", got)
			}
			if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, broken) {
				t.Error("the capture was changed")
			}
			validate(t, info, l.open(merge.Options{}).Matrix())
			m := l.open(merge.Options{})
			l.matched(m) // no wrong flows
			if d.sends && m.Info().Processes.Total != 2 {
				t.Errorf("processes %+v", m.Info().Processes)
			}
		})
	}
}

// A rank that loaded the recorder and left no capture, one that was never seen, and one whose capture cannot be read.
// F72.
func TestRanksByState(t *testing.T) {
	r := newRig(t)
	world := func(h *capture.Header) { h.World = 5 }
	a := r.process("n1", 100, 0, world)
	a.pairs(hz)
	ep := a.endpoint(30, a.worker(10, "a"), "a")
	a.event(0, 1000, cat.EventUcpPut, ucpRequest(ep, 8, 0, 0, 0, cat.UcpResultDone, 100)...)
	k := r.process("n1", 101, 1, world)
	k.pairs(hz)
	free := r.process("n1", 102, -1)
	free.pairs(hz)
	for p, kill := range map[*proc]bool{a: false, k: true, free: true} {
		if err := p.end(kill); err != nil {
			t.Fatal(err)
		}
	}
	node := filepath.Dir(capturetest.Path(r.dir.Capture(), a.header))
	for rank, pid := range []uint32{100, 101, 103, 104} {
		alive := capture.Alive{Pid: pid, Rank: int64(rank), World: 5, StartTime: 1000 + uint64(pid), Hostname: "n1", BootID: a.header.BootID}
		if err := capturetest.AppendAlive(filepath.Join(node, "alive"), alive); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(node, "104.1104.0.capture"), []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	i := r.open(merge.Options{}).Info()
	if i.Ranks.Expected == nil || *i.Ranks.Expected != 5 || i.Ranks.Injected != 4 || i.Ranks.Active != 3 || i.Ranks.Complete != 1 {
		t.Errorf("ranks %+v", i.Ranks)
	}
	want := []string{
		"rank 1 pid 101 on n1: no end mark", "rank 2 pid 103 on n1: no capture", "rank 3 pid 104 on n1: capture cannot be read", "rank 4: not injected",
		"pid 102 on n1: no end mark",
	}
	for n, w := range want {
		if n >= len(i.Ranks.Incomplete) || !strings.HasPrefix(i.Ranks.Incomplete[n].String(), w) {
			t.Errorf("incomplete %d: %v, want %s", n, i.Ranks.Incomplete, w)
			break
		}
	}
	if i.Processes.WithoutRank != 1 || i.Processes.Total != 3 {
		t.Errorf("processes %+v", i.Processes)
	}
}

// A program that another one replaced by exec has no end mark, and is whole nevertheless.
func TestExecLeavesNoEndMark(t *testing.T) {
	r := newRig(t)
	first := r.process("n1", 100, 0)
	second := r.process("n1", 100, 0, func(h *capture.Header) { h.Image = 1 })
	first.pairs(hz)
	second.pairs(hz)
	if err := errors.Join(first.end(true), second.end(false)); err != nil {
		t.Fatal(err)
	}
	if i := r.open(merge.Options{}).Info(); !i.Complete() || i.Ranks.Complete != 1 || i.Processes.Total != 2 {
		t.Errorf("ranks %+v", i.Ranks)
	}
}

// Without captures there is nothing to merge; a run that has nothing recorded is not complete.
func TestNothingRecorded(t *testing.T) {
	r := newRig(t)
	i := r.open(merge.Options{}).Info()
	if i.Complete() || i.Events.Total != 0 || i.Layer != nil || i.Clock.ReceiveBeforeSend.Count != nil {
		t.Errorf("%+v", i)
	}
	validate(t, i, r.open(merge.Options{}).Matrix())
	if err := os.RemoveAll(r.dir.Capture()); err != nil {
		t.Fatal(err)
	}
	if _, err := merge.Open(context.Background(), r.dir, merge.Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a capture folder: %v", err)
	}
}

// A process that was killed while its tables were in memory leaves less than it counted.
func TestTablesOfAKilledWriterAreALowerBound(t *testing.T) {
	for _, x := range []struct {
		backEnd capture.BackEnd
		killed  bool
		exact   bool
	}{{capture.Mapped, true, true}, {capture.Written, true, false}, {capture.Written, false, true}} {
		r := newRig(t)
		p := r.process("n1", 100, 0, func(h *capture.Header) { h.BackEnd = x.backEnd })
		p.pairs(hz)
		ep := p.endpoint(30, p.worker(10, "a"), "b")
		p.event(0, 1000, cat.EventUcpPut, ucpRequest(ep, 8, 0, 0, 0, cat.UcpResultDone, 10)...)
		if err := p.end(x.killed); err != nil {
			t.Fatal(err)
		}
		m := r.open(merge.Options{})
		var s strings.Builder
		m.Info().Summary(&s)
		if m.Info().Exact != x.exact || m.Matrix().Exact != x.exact || strings.Contains(s.String(), "lower bound") == x.exact {
			t.Errorf("%v, killed %v: exact %v and %v\n%s", x.backEnd, x.killed, m.Info().Exact, m.Matrix().Exact, &s)
		}
	}
}
