package merge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/capture"
	cat "github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/parquet/parquettest"
	"github.com/sigmatrace/sigmatrace/tests/tp"
)

// bells is a run of two ranks on two nodes that share no GPU: rank 0's queue lies in its GPU 1, rank 1 has memory in its GPU 0 and in the host.
type bells struct {
	*rig
	a, b   *proc
	qa, qb uint64
}

const (
	keyGPU, keyHost, keyUnknown = 71, 72, 73
	memoryGPU, memoryHost       = 0x7f00_0000_0000, 0x5500_0000_0000
)

func uuid(n byte) []byte { return append(make([]byte, 15), n) }

func newBells(t testing.TB, mode uint32) *bells {
	r := newRig(t)
	simple := func(h *capture.Header) { h.Mode = mode }
	l := &bells{rig: r, a: r.process("one", 10, 0, simple), b: r.process("two", 20, 1, simple)}
	var devices [2]uint64
	var gids [2][]byte
	for i, p := range []*proc{l.a, l.b} {
		p.pairs(2 * hz)
		devices[i], gids[i] = p.device(1000, byte(i+1))
	}
	l.qa, l.qb = l.a.queuePair(1100, devices[0], 7, 2, 0, 0), l.b.queuePair(1100, devices[1], 8, 2, 0, 0)
	l.a.modify(1200, l.qa, 2, 8, gids[1])
	l.b.modify(1200, l.qb, 2, 7, gids[0])
	umem := l.a.define(1300, cat.DefMlx5Umem, devices[0], uint64(5), uint64(0x7000), uint64(4096), uint64(1), uint64(1), uint64(9), uuid(0xa1))
	l.a.Define(1310, cat.DefMlx5Ring, l.qa, uint64(1), umem, uint64(0), uint64(64))
	l.a.Define(1315, cat.DefDoorbellWatch, "pause", uint64(2), uint64(128), "2-3", "")
	l.a.Define(1320, cat.DefDoorbellQueue, l.qa, uint64(0x7000), uint64(64), uint64(1), uint64(0), uint64(32))
	region := l.b.define(1300, cat.DefVerbsMr, uint64(0), uint64(0), uint64(0x1000), uint64(memoryGPU), uint64(1), uint64(keyGPU), uint64(0), uint64(1), uint64(0))
	l.b.Define(1310, cat.DefMemoryGpu, region, uint64(0), uuid(0xb0))
	l.b.define(1320, cat.DefVerbsMr, uint64(0), uint64(memoryHost), uint64(0x1000), uint64(memoryHost), uint64(1), uint64(keyHost), uint64(0), uint64(0), uint64(0))
	return l
}

// element records an element; call 0 begins a doorbell.
func (l *bells) element(at uint64, id uint16, bytes, flags, address, key, call uint64) {
	f := make([]uint64, len(cat.Default.Event(id).Layout.Fields))
	f[cat.DoorbellRequestQueuePair], f[cat.DoorbellRequestBytes], f[cat.DoorbellRequestFlags], f[cat.DoorbellRequestCall] = l.qa, bytes, flags, call
	f[cat.DoorbellRequestRemoteAddress], f[cat.DoorbellRequestRemoteKey] = address, key
	l.a.event(0, at, id, f...)
}

// Doorbells are operations of their own, of data and of control elements apart; elements end nowhere; those whose target is known to be a GPU have a flow to it.
func TestDoorbellsAndGPUs(t *testing.T) {
	l := newBells(t, cat.ModeFull)
	const control = cat.VerbsSendFlagsControl
	l.element(5000, cat.EventDoorbellWrite, 4096, 0, memoryGPU+64, keyGPU, 0)
	l.element(5000, cat.EventDoorbellWrite, 100, 0, memoryHost, keyHost, 1)
	l.element(5000, cat.EventDoorbellAtomic, 8, control, memoryGPU, keyGPU, 1)
	l.element(6000, cat.EventDoorbellAtomic, 8, control, memoryGPU, keyGPU, 0)
	l.element(6000, cat.EventDoorbellControl, 0, 0, 0, 0, 1)
	l.element(7000, cat.EventDoorbellRead, 30, 0, memoryGPU, keyUnknown, 0)
	l.close()
	m := l.open(merge.Options{})
	run := m.Run()
	if len(run.GPUs) != 2 || run.GPUs[0].UUID != "GPU-00000000-0000-0000-0000-0000000000a1" || run.GPUs[0].Name != "GPU 1 of rank 0 on one" || run.GPUs[1].Name != "GPU 0 of rank 1 on two" {
		t.Fatalf("GPUs: %+v", run.GPUs)
	}
	type row struct {
		at       uint64
		event    uint16
		flags    ops.Flag
		requests uint32
		bytes    uint64
		lane     uint16
		gpu      uint32
	}
	const unseen, bell = ops.Unseen, ops.Unseen | ops.Doorbell
	want := []row{
		{5000, cat.EventDoorbellWrite, unseen, 1, 4096, 0, 2},
		{5000, cat.EventDoorbellWrite, unseen, 1, 100, 1, 0}, // the host's memory
		{5000, cat.EventDoorbellAtomic, unseen | ops.Synchronizes, 1, 8, 2, 2},
		{5000, cat.EventDoorbellCall, bell, 2, 4196, 0, 2},
		{5000, cat.EventDoorbellCall, bell | ops.Synchronizes, 1, 8, 0, 2},
		{6000, cat.EventDoorbellAtomic, unseen | ops.Synchronizes, 1, 8, 0, 2},
		{6000, cat.EventDoorbellControl, unseen | ops.Synchronizes, 1, 0, 1, 2},
		{6000, cat.EventDoorbellCall, bell | ops.Synchronizes, 2, 8, 0, 2},
		{7000, cat.EventDoorbellRead, unseen, 1, 30, 0, 2},
		{7000, cat.EventDoorbellCall, bell, 1, 30, 0, 2},
	}
	var got []row
	for _, o := range all(t, m) {
		if o.Done != o.Post || run.Endpoints[o.Endpoint].GPU != 1 || (o.Flow != 0) != (o.Role == ops.OneSided && o.PeerGPU != 0) {
			t.Errorf("%+v", o)
		}
		got = append(got, row{uint64(o.Post-epoch) * 2, o.Event, o.Flags, o.Requests, o.Bytes, o.Lane, o.PeerGPU})
	}
	key := func(r row) string {
		return fmt.Sprintf("%d %v %03d %03d", r.at, r.flags&ops.Doorbell != 0, r.flags, r.lane)
	}
	for _, rows := range [][]row{got, want} {
		slices.SortFunc(rows, func(a, b row) int { return slices.Compare([]string{key(a)}, []string{key(b)}) })
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	i := m.Info()
	if i.Unfinished != 0 {
		t.Errorf("%d unfinished", i.Unfinished)
	}
	validate(t, i, m.Matrix())
	told := merge.Doorbells{Watches: []merge.Watch{{Processes: 1, Poll: "pause", Threads: 2, Threshold: 128, CPUs: "2-3"}}, Queues: []merge.RungQueue{{Queues: 1, Slots: 64, OfGPU: true, Threshold: 32, Asked: 128}}}
	if fmt.Sprint(*i.Doorbells) != fmt.Sprint(told) {
		t.Errorf("how doorbells were looked at: %+v, not %+v", *i.Doorbells, told)
	}

	dir := filepath.Join(t.TempDir(), "events")
	exporter, err := merge.FindExporter("parquet")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Export(context.Background(), exporter, dir, merge.ExportOptions{}); err != nil {
		t.Fatal(err)
	}
	tables := parquettest.Operations(t, dir)["doorbell"]
	if len(tables) != 1 || tables[0].Rows != 6 {
		t.Fatalf("a row for each element: %+v", tables)
	}
	var synchronizes, unseenOnes int
	for i := range tables[0].Rows {
		c := tables[0].Columns
		if c["gpu"][i] != uint64(0) || c["peer_gpu"][i] != uint64(1) && c["bytes"][i] != uint64(100) {
			t.Errorf("row %d: from GPU %v to %v", i, c["gpu"][i], c["peer_gpu"][i])
		}
		if c["synchronizes"][i] == true {
			synchronizes++
		}
		if c["completion_unseen"][i] == true {
			unseenOnes++
		}
	}
	if synchronizes != 3 || unseenOnes != 6 {
		t.Errorf("%d rows synchronize, %d have no completion", synchronizes, unseenOnes)
	}
}

// A queue that was rung at a page of the recorder's is named where it rings at the device later, whatever came before.
func TestDoorbellsThatAreLeftAloneLater(t *testing.T) {
	const reason = "its page of doorbells is shared by several queues: they ring at the device"
	l := newBells(t, cat.ModeFull)
	l.a.Define(1322, cat.DefVerbsBlind, l.qa, reason)
	l.a.Define(1324, cat.DefDoorbellQueue, l.qa, uint64(0x7000), uint64(64), uint64(1), uint64(0), uint64(32))
	l.element(5000, cat.EventDoorbellWrite, 4096, 0, memoryGPU+64, keyGPU, 0)
	l.close()
	if i := l.open(merge.Options{}).Info(); len(i.Blind) != 1 || i.Blind[0].Reason != reason || i.Operations["doorbell"] == nil {
		t.Errorf("not seen: %+v; %+v", i.Blind, i.Operations)
	}
}

// Bandwidth is that of an interval, also in what is left of time behind the last whole one.
func TestBandwidthAtTheEnd(t *testing.T) {
	l := newBells(t, cat.ModeFull)
	l.element(5000, cat.EventDoorbellWrite, 4096, 0, memoryGPU+64, keyGPU, 0)
	l.element(25000, cat.EventDoorbellWrite, 4096, 0, memoryGPU+64, keyGPU, 0)
	l.close()
	exporter, err := merge.FindExporter("json")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "trace.json")
	if err := l.open(merge.Options{}).Export(context.Background(), exporter, file, merge.ExportOptions{From: ns(5000), To: ns(25002)}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var trace struct {
		TraceEvents []struct {
			Ph, Name string
			Args     map[string]any
		}
	}
	if err := json.Unmarshal(text, &trace); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, e := range trace.TraceEvents {
		if e.Ph != "C" || !strings.Contains(e.Name, "initiated bytes per second") {
			continue
		}
		for _, v := range e.Args {
			if n, ok := v.(float64); ok && n > 0 {
				seen++
				if n > 4096/1000e-9 {
					t.Errorf("%s: %v", e.Name, n)
				}
			}
		}
	}
	if seen != 4 {
		t.Errorf("%d samples of a queue and a GPU", seen)
	}
}

// Traces cut by time, rank, or into pieces hold the doorbells of theirs, and import cleanly.
func TestDoorbellsOfPartsOfARun(t *testing.T) {
	tp.Need(t)
	l := newBells(t, cat.ModeFull)
	for i := range uint64(1000) {
		l.element(5000+20*i, cat.EventDoorbellWrite, 64, 0, memoryGPU, keyGPU, 0)
		l.element(5000+20*i, cat.EventDoorbellWrite, 64, 0, memoryGPU, keyGPU, 1)
	}
	l.close()
	m := l.open(merge.Options{})
	exporter, err := merge.FindExporter("perfetto")
	if err != nil {
		t.Fatal(err)
	}
	counts := func(file string) string {
		t.Helper()
		if err := tp.Check(file); err != nil {
			t.Error(err)
		}
		rows, err := tp.Query(file, `SELECT (SELECT count(*) FROM slice WHERE name = 'doorbell'), (SELECT count(*) FROM slice WHERE name = 'write'), (SELECT count(*) FROM flow),
			(SELECT count(*) FROM slice s JOIN track t ON t.id = s.track_id JOIN track g ON g.id = t.parent_id WHERE s.name = 'addressed' AND g.name = 'GPU 0 of rank 1 on two')`)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(rows[0])
	}
	for name, c := range map[string]struct {
		options merge.ExportOptions
		want    string
	}{
		"time":       {merge.ExportOptions{From: ns(5000 + 20*100), To: ns(5000 + 20*300)}, "[200 400 400 400]"},
		"rank":       {merge.ExportOptions{Ranks: func(r int64) bool { return r == 0 }}, "[1000 2000 2000 2000]"},
		"other rank": {merge.ExportOptions{Ranks: func(r int64) bool { return r == 1 }}, "[0 0 0 0]"},
	} {
		file := filepath.Join(t.TempDir(), "trace.pftrace")
		if err := m.Export(context.Background(), exporter, file, c.options); err != nil {
			t.Fatal(err)
		}
		if got := counts(file); got != c.want {
			t.Errorf("%s: doorbells, elements, flows and their ends: %s, not %s", name, got, c.want)
		}
	}
	path := filepath.Join(t.TempDir(), "pieces")
	x := pieces(t, m, path, merge.Split{Pieces: 2}, merge.ExportOptions{})
	sum := int64(0)
	for _, p := range x.Pieces {
		if counts(filepath.Join(path, p.File)) == "[0 0 0 0]" {
			t.Errorf("%s is empty", p.File)
		}
		sum += p.Operations
	}
	if len(x.Pieces) != 2 || sum != 3000 || x.FlowsCut != 0 {
		t.Errorf("%d operations, %d flows cut in pieces %+v", sum, x.FlowsCut, x.Pieces)
	}
}
