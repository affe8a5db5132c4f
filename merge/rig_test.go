package merge_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/capture/capturetest"
	cat "github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// The rig's clock: tick 0 is at epoch, hz ticks a second. A second has 2e9 ticks, so that a tick is half a nanosecond.
const (
	hz    = 2_000_000_000
	epoch = int64(1_700_000_000_000_000_000)
)

func ns(ticks uint64) int64 { return epoch + int64(ticks/2) }

// rig is a run directory in the making.
type rig struct {
	t     testing.TB
	dir   *rundir.Dir
	procs []*proc
}

func newRig(t testing.TB) *rig {
	t.Helper()
	dir, err := rundir.Create(filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t: t, dir: dir}
}

// proc is a process that writes its capture.
type proc struct {
	*capturetest.Writer
	r       *rig
	header  capture.Header
	threads []*capturetest.Thread
	object  uint64
	posted  map[uint64]uint64
	recvd   map[uint64]uint64
	done    map[uint64]uint64
	tables  map[[4]uint64]*capture.Aggregate
	offset  uint64 // ticks that the node's counter is ahead
	step    int64  // ns that the node's wall clock is ahead
}

// process adds a process; rank -1 is none.
func (r *rig) process(host string, pid uint32, rank int64, change ...func(*capture.Header)) *proc {
	r.t.Helper()
	h := capture.Header{
		Pid: pid, Hostname: host, Rank: rank, World: -1, Mode: cat.ModeFull, StartTime: 1000 + uint64(pid), PidNamespace: 7,
		RealtimeNS: uint64(epoch), ClockHz: hz, ClockFlags: 1, Executable: "/bin/app", Providers: "ucx", Profile: "full", ChunkBytes: 16 << 10,
	}
	copy(h.BootID[:], host+"-boot-id-0123456789")
	for _, f := range change {
		f(&h)
	}
	w, err := capturetest.Create(r.dir.Capture(), h, cat.Default)
	if err != nil {
		r.t.Fatal(err)
	}
	p := &proc{Writer: w, r: r, header: h, posted: map[uint64]uint64{}, recvd: map[uint64]uint64{}, done: map[uint64]uint64{}, tables: map[[4]uint64]*capture.Aggregate{}}
	r.procs = append(r.procs, p)
	return p
}

// pairs writes clock pairs from tick 1000 on to end, a second apart.
func (p *proc) pairs(end uint64) {
	for at := uint64(1000); at <= end+1000; at += hz {
		p.pair(at)
	}
}

func (p *proc) pair(at uint64) {
	p.Define(at+p.offset, cat.DefClockPair, cat.DomainTsc, at+p.offset-40, at+p.offset+40, uint64(ns(at)+p.step), at/2+5000)
}

func (p *proc) thread(i int) *capturetest.Thread {
	for len(p.threads) <= i {
		t := p.Thread()
		t.Counters = func(o uint64) (uint64, uint64, uint64) { return p.posted[o], p.recvd[o], p.done[o] }
		p.threads = append(p.threads, t)
	}
	return p.threads[i]
}

// define writes a definition whose first field is a new object, and returns its number.
func (p *proc) define(at uint64, id uint16, values ...any) uint64 {
	p.object++
	p.Define(at+p.offset, id, append([]any{p.object}, values...)...)
	return p.object
}

// event records an event and counts it in the tables, as the recorder does.
func (p *proc) event(thread int, at uint64, id uint16, fields ...uint64) {
	var raw [][]byte
	for _, f := range cat.Default.Event(id).Layout.Fields {
		if f.Type == cat.Raw {
			raw = append(raw, nil)
		}
	}
	p.thread(thread).Event(at+p.offset, id, fields, raw...)
	p.count(thread, at, id, fields...)
}

// count counts an event without recording it, as the recorder does when it has no room.
func (p *proc) count(thread int, at uint64, id uint16, fields ...uint64) {
	e := cat.Default.Event(id)
	object := fields[0]
	bytes, peer := uint64(0), uint64(0)
	if i := e.Layout.FieldIndex("bytes"); i >= 0 {
		bytes = fields[i]
	}
	if id == cat.EventVerbsDatagram {
		peer = fields[cat.VerbsDatagramAddressHandle]<<24 | fields[cat.VerbsDatagramRemoteQpn]
	}
	if e.Layout.Name == "doorbell_request" {
		peer = fields[cat.DoorbellRequestTarget] << 24
	}
	switch {
	case e.Kind == cat.Completion:
		p.done[object]++
	case e.Operation == "recv" || e.Operation == "tag_recv":
		p.recvd[object]++
	case e.Kind == cat.Request || e.Kind == cat.Control:
		p.posted[object]++
	}
	if e.Operation == "" && e.Kind != cat.Completion {
		return
	}
	k := [4]uint64{object, uint64(id), peer, uint64(thread)}
	a := p.tables[k]
	if a == nil {
		a = &capture.Aggregate{Object: uint32(object), Event: id, Thread: uint32(thread), Peer: peer, First: at + p.offset}
		p.tables[k] = a
	}
	a.Count++
	a.Bytes += bytes
	a.Calls++
}

// close ends all captures, in orderly fashion.
func (r *rig) close() {
	r.t.Helper()
	for _, p := range r.procs {
		if err := p.end(false); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (p *proc) end(kill bool) error {
	for _, a := range p.tables {
		p.Aggregate(*a)
	}
	if kill {
		return p.Kill()
	}
	return p.Close()
}

// open merges what is there, without exports. Unless o says otherwise, times stay as the nodes' clocks were.
func (r *rig) open(o merge.Options) *merge.Merged {
	r.t.Helper()
	if o.ClockSource == "" {
		o.ClockSource = merge.ClockSystem
	}
	m, err := merge.Open(context.Background(), r.dir, o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { m.Close() })
	return m
}

// all reads all operations and checks their order.
func all(t testing.TB, src ops.Source) []ops.Op {
	t.Helper()
	var out []ops.Op
	for i := range src.Run().Partitions {
		if err := src.Partition(context.Background(), i, func(part []ops.Op) error {
			out = append(out, part...)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for i := 1; i < len(out); i++ {
		a, b := &out[i-1], &out[i]
		if a.Post > b.Post || (a.Post == b.Post && (a.Process > b.Process || (a.Process == b.Process && a.Thread > b.Thread))) {
			t.Fatalf("operation %d at %d comes after one at %d", i, b.Post, a.Post)
		}
	}
	if int64(len(out)) != src.Run().Operations {
		t.Fatalf("%d operations in the partitions, the run has %d", len(out), src.Run().Operations)
	}
	checkLanes(t, out)
	return out
}

// checkLanes tells whether operations of one lane overlap.
func checkLanes(t testing.TB, all []ops.Op) {
	t.Helper()
	type lane struct {
		endpoint uint32
		lane     uint16
	}
	busy := map[lane]int64{}
	for i := range all {
		o := &all[i]
		k := lane{o.Endpoint, o.Lane}
		if end, ok := busy[k]; ok && o.Post < end {
			t.Fatalf("endpoint %d lane %d: an operation from %d begins before the one ending at %d", o.Endpoint, o.Lane, o.Post-epoch, end-epoch)
		}
		busy[k] = o.Done
	}
}

// fields of a UCP request.
func ucpRequest(endpoint, bytes, tag, mask, request, status, duration uint64) []uint64 {
	return []uint64{endpoint, bytes, tag, mask, 0x1000, 0x2000, 0x3000, request, status, cat.UcpApiNbx, duration}
}

func address(name string) []byte {
	return []byte(fmt.Sprintf("worker address of %s, long enough", name))
}

// worker defines a worker that handed its address out.
func (p *proc) worker(at uint64, name string) uint64 {
	w := p.define(at, cat.DefUcpWorker, uint64(0xc0))
	a := address(name)
	p.Define(at+p.offset, cat.DefUcpWorkerAddress, w, uint64(len(a)), uint64(1), a)
	return w
}

// endpoint defines an endpoint to the worker of a name; what the recorder read behind the address is rubbish.
func (p *proc) endpoint(at, worker uint64, name string) uint64 {
	return p.define(at, cat.DefUcpEndpoint, worker, uint64(cat.UcpEndpointSourceWorkerAddress), append(address(name), fmt.Sprintf(" rubbish %d", p.object)...), "")
}
