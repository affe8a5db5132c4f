package merge_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/calibration"
	cat "github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// skewed is a run of ranks on nodes of their own, whose counters and wall clocks are apart, each of which sends to every other now and then.
type skewed struct {
	*rig
	now      uint64
	sent     map[uint64]uint64 // true ticks, by unique number of a send
	received map[uint64]uint64 // of when a receive ended
}

// newSkewed makes n nodes whose wall clocks are ahead by skew ns. Messages take from least to twice that, ticks.
func newSkewed(t testing.TB, seed uint64, skew []int64, messages int, least uint64) *skewed {
	s := &skewed{rig: newRig(t), now: 100_000, sent: map[uint64]uint64{}, received: map[uint64]uint64{}}
	r := rand.New(rand.NewPCG(seed, 5))
	n := len(skew)
	workers := make([]uint64, n)
	endpoints := make([][]uint64, n)
	for i := range skew {
		p := s.process(fmt.Sprintf("n%d", i), uint32(100+i), int64(i))
		p.offset, p.step = r.Uint64N(1<<40), skew[i]
		workers[i] = p.worker(10_000, fmt.Sprint("w", i))
	}
	for i, p := range s.procs {
		endpoints[i] = make([]uint64, n)
		for j := range n {
			endpoints[i][j] = p.endpoint(20_000, workers[i], fmt.Sprint("w", j))
		}
	}
	type event struct {
		at   uint64
		do   func(at uint64)
		node int
	}
	uid := uint64(0)
	var events []event
	for range messages {
		s.now += r.Uint64N(3 * hz / uint64(messages))
		from := r.IntN(n)
		to := (from + 1 + r.IntN(n-1)) % n
		uid++
		id, tag := uid, uint64(from)<<32|uint64(uid)
		at, arrival := s.now, s.now+least+r.Uint64N(least)
		s.sent[id], s.received[id] = at, arrival
		events = append(events, event{at - 900, func(at uint64) {
			f := ucpRequest(workers[to], 8, tag, wholeMask, id, cat.UcpResultPending, 2)
			f[cat.UcpRequestLocalAddress] = id
			s.procs[to].event(0, at, cat.EventUcpTagRecv, f...)
		}, to}, event{at, func(at uint64) {
			f := ucpRequest(endpoints[from][to], 8, tag, 0, 0, cat.UcpResultDone, 2)
			f[cat.UcpRequestLocalAddress] = id
			s.procs[from].event(0, at, cat.EventUcpTagSend, f...)
		}, from}, event{arrival, func(at uint64) {
			s.procs[to].event(0, at, cat.EventUcpCompletion, workers[to], id, 8, tag, 0)
		}, to})
	}
	last := make([]uint64, n)
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	for _, e := range events {
		at := max(e.at, last[e.node]+4)
		last[e.node] = at
		e.do(at)
	}
	for _, p := range s.procs {
		p.pairs(s.now + hz)
	}
	return s
}

// apart returns the most by which a time of the merged run is off the truth, which is the clock of node 0 plus shift.
func (s *skewed) apart(m *merge.Merged, shift int64) (worst int64) {
	for _, o := range all(s.t, m) {
		id := o.Fields[cat.UcpRequestLocalAddress]
		if o.Event == cat.EventUcpTagSend {
			d := o.Post - ns(s.sent[id]) - shift
			worst = max(worst, d, -d)
		}
		if o.Event == cat.EventUcpTagRecv {
			d := o.Done - ns(s.received[id]) - shift
			worst = max(worst, d, -d)
		}
	}
	return worst
}

// orderKept fails where two operations of a node are in another order than without any correction.
func (s *skewed) orderKept(m *merge.Merged) {
	s.t.Helper()
	type time struct{ raw, placed int64 }
	raw := map[[3]uint64]ops.Op{}
	plain := s.open(merge.Options{})
	for _, o := range all(s.t, plain) {
		raw[[3]uint64{uint64(o.Process), uint64(o.Thread), o.Sequence}] = o
	}
	byNode := map[string][]time{}
	for _, o := range all(s.t, m) {
		was := raw[[3]uint64{uint64(o.Process), uint64(o.Thread), o.Sequence}]
		node := m.Run().Processes[o.Process].Node
		byNode[node] = append(byNode[node], time{was.Post, o.Post}, time{was.Done, o.Done})
	}
	for node, times := range byNode {
		placed := map[int64]int64{}
		low := int64(math.MaxInt64)
		for _, x := range times {
			placed[x.raw], low = x.placed, min(low, x.raw)
		}
		keys := make([]int64, 0, len(placed))
		for k := range placed {
			keys = append(keys, k)
		}
		for i := range keys {
			for j := range keys {
				if keys[i] < keys[j] && placed[keys[i]] > placed[keys[j]] {
					s.t.Fatalf("%s: %d was before %d, and is not", node, keys[i]-low, keys[j]-low)
				}
			}
		}
	}
}

// early counts messages received before they were sent, in the operations themselves.
func early(t testing.TB, m *merge.Merged) (n int) {
	t.Helper()
	sends := map[uint64]int64{}
	operations := all(t, m)
	for _, o := range operations {
		if o.Role == ops.Initiator && o.Flow != 0 {
			sends[o.Flow] = o.Post
		}
	}
	for _, o := range operations {
		if sent, ok := sends[o.Flow]; o.Role == ops.Target && o.Flow != 0 && ok && o.Done < sent {
			n++
		}
	}
	return n
}

// Without calibrations, a known skew is taken out by matched messages to within one round trip, and the bound that is told holds.
func TestSkewIsTakenOutByMessages(t *testing.T) {
	for seed := range uint64(4) {
		skew := []int64{0, 30_000_000_000, -7_000_000, 1234}[:2+seed%3]
		const least = 4000 // ticks: a round trip is 4 to 8 us
		s := newSkewed(t, seed, skew, 500, least)
		s.close()
		before := s.open(merge.Options{})
		if x := before.Info().Clock.ReceiveBeforeSend; *x.Count == 0 || early(t, before) != int(*x.Count) {
			t.Fatalf("without a correction, received before sent: %d", *x.Count)
		}
		m := s.open(merge.Options{ClockSource: merge.ClockAuto})
		c := m.Info().Clock
		if *c.Source != "messages" || c.Nodes[0].Source != "system clock" || *c.Nodes[0].OffsetNS != 0 {
			t.Errorf("clock %+v", c)
		}
		if d := s.apart(m, 0); d > 2*least/2 {
			t.Errorf("seed %d: %d ns off, a round trip is %d", seed, d, 2*least/2)
		} else {
			for _, n := range c.Nodes[1:] {
				if n.ErrorNS == nil || *n.ErrorNS < float64(d)/2 && len(skew) == 2 || *n.ErrorNS > 2*least {
					t.Errorf("seed %d: %+v, off by %d", seed, n, d)
				}
			}
		}
		for i, n := range c.Nodes[1:] {
			if n.Source != "messages" || n.How == "" || n.OffsetNS == nil || math.Abs(float64(*n.OffsetNS-skew[i+1])) > *n.ErrorNS {
				t.Errorf("node %d, %d ahead: %+v", i+1, skew[i+1], n)
			}
			if n.DriftPPM == nil || n.DriftErrorPPM == nil || math.Abs(*n.DriftPPM) > *n.DriftErrorPPM { // the clocks go alike
				t.Errorf("drift of node %d: %+v", i+1, n)
			}
		}
		if n := early(t, m); n > 0 || *c.ReceiveBeforeSend.Count != 0 {
			t.Errorf("received before sent: %d", n)
		}
		if len(skew) > 2 && (c.Triangles == nil || c.Triangles.WorstNS > 2*least) {
			t.Errorf("triangles %+v", c.Triangles)
		}
		var text strings.Builder
		if m.Info().Summary(&text); strings.Count(text.String(), " gained or lost no more than ") != len(skew)-1 {
			t.Errorf("a drift is told of clocks that go alike:\n%s", &text)
		}
		s.orderKept(m)
		validate(t, m.Info(), m.Matrix())
	}
}

// record is a calibration of a node's clock, at a tick.
func (p *proc) record(at uint64, offset, bound int64, grandmaster string) *calibration.Record {
	return &calibration.Record{Node: p.header.Hostname, Boot: fmt.Sprintf("%x", p.header.BootID), When: calibration.During, Tool: "test",
		Reading: calibration.Reading{Counter: "tsc", Before: at + p.offset - 20, After: at + p.offset + 20, Realtime: ns(at) + p.step, Monotonic: int64(at/2) + 5000},
		Source:  calibration.PTP, PTP: &calibration.PTPState{Grandmaster: grandmaster, PortState: "SLAVE", Servo: "locked"}, OffsetNS: &offset, ErrorNS: &bound, How: "offset and half the path"}
}

func (r *rig) calibrate(records map[*proc][]*calibration.Record) {
	r.t.Helper()
	dir := filepath.Join(r.dir.Path(), calibration.DirName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		r.t.Fatal(err)
	}
	for p, list := range records {
		var b bytes.Buffer
		for _, x := range list {
			line, err := x.Line()
			if err != nil {
				r.t.Fatal(err)
			}
			b.Write(line)
		}
		if err := os.WriteFile(filepath.Join(dir, p.header.Hostname), b.Bytes(), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
}

// Calibrations against one grandmaster take every node to its time, whatever their system clocks say, with the bound that they have.
func TestSkewIsTakenOutByCalibrations(t *testing.T) {
	for _, source := range []string{merge.ClockAuto, merge.ClockCalibration} {
		skew := []int64{0, 30_000_000_000, -5_000_000}
		s := newSkewed(t, 9, skew, 300, 20_000)
		records := map[*proc][]*calibration.Record{}
		const ahead = 1_000_000_000 // all clocks, of the grandmaster
		for i, p := range s.procs {
			for k, at := 0, uint64(50_000); at < s.now+hz; at, k = at+hz/4, k+1 {
				wrong := []int64{30, -30}[k%2]
				records[p] = append(records[p], p.record(at, skew[i]+ahead+wrong, 100, "aa"))
			}
		}
		s.close()
		s.calibrate(records)
		m := s.open(merge.Options{ClockSource: source})
		c := m.Info().Clock
		if *c.Source != "ptp" || len(c.Nodes) != 3 {
			t.Fatalf("%+v", c)
		}
		worst := s.apart(m, -ahead)
		for i, n := range c.Nodes {
			if n.Source != "ptp" || n.ErrorNS == nil || *n.ErrorNS < float64(worst) || *n.ErrorNS > 400 || n.Readings != len(records[s.procs[i]]) || !strings.Contains(n.How, "half the path") {
				t.Errorf("%s, times are off by %d: %+v", source, worst, n)
			}
			if n.OffsetNS == nil || math.Abs(float64(*n.OffsetNS-skew[i]-ahead)) > 400 || n.DriftPPM == nil || math.Abs(*n.DriftPPM) > 1 {
				t.Errorf("%s: offset of %s: %+v", source, n.Host, n)
			}
			if n.JitterNS == nil || *n.JitterNS < 50 || *n.JitterNS > 70 { // readings are 60 ns apart, one this way and one that way
				t.Errorf("%s: jitter of %s: %+v", source, n.Host, n)
			}
		}
		s.orderKept(m)
		validate(t, m.Info(), m.Matrix())
	}
}

// A calibration that messages prove wrong is not used, and the account says so.
func TestMessagesContradictACalibration(t *testing.T) {
	skew := []int64{0, 3_000_000, -5_000_000}
	s := newSkewed(t, 3, skew, 300, 4000)
	records := map[*proc][]*calibration.Record{}
	for i, p := range s.procs {
		lie := int64(0)
		if i == 1 {
			lie = 500_000
		}
		for at := uint64(50_000); at < s.now+hz; at += hz / 2 {
			records[p] = append(records[p], p.record(at, skew[i]+lie, 100, "aa"))
		}
	}
	s.close()
	s.calibrate(records)
	m := s.open(merge.Options{ClockSource: merge.ClockAuto})
	c := m.Info().Clock
	if worst := s.apart(m, 0); worst > 4000 {
		t.Errorf("%d ns off", worst)
	}
	if n := c.Nodes[1]; n.Source != "messages" || n.Readings != 0 || n.ErrorNS == nil {
		t.Errorf("%+v", n)
	}
	if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "n1: messages contradict its calibrations") {
		t.Errorf("warnings %v", c.Warnings)
	}
	validate(t, m.Info(), m.Matrix())
}

// Where it cannot be told whose calibrations are wrong, none are used.
func TestMessagesContradictOneOfTwo(t *testing.T) {
	s := newSkewed(t, 5, []int64{0, 3_000_000}, 300, 4000)
	records := map[*proc][]*calibration.Record{}
	for i, p := range s.procs {
		records[p] = append(records[p], p.record(100_000, int64(i)*2_000_000, 100, "aa"), p.record(s.now, int64(i)*2_000_000, 100, "aa"))
	}
	s.close()
	s.calibrate(records)
	m := s.open(merge.Options{ClockSource: merge.ClockAuto})
	c := m.Info().Clock
	if *c.Source != "messages" || len(c.Warnings) != 2 || c.Nodes[1].ErrorNS == nil || s.apart(m, 0) > 4000 {
		t.Errorf("%+v", c)
	}
	validate(t, m.Info(), m.Matrix())
}

// What cannot be used is not: the bound is null, with the reason of the calibration; and clock.warn_above warns of it and of what is above.
func TestUnusableCalibrations(t *testing.T) {
	s := newSkewed(t, 4, []int64{0, 500}, 60, 4000)
	records := map[*proc][]*calibration.Record{}
	for _, p := range s.procs {
		r := p.record(100_000, 0, 100, "aa")
		records[p] = append(records[p], r)
	}
	bad := records[s.procs[1]][0]
	bad.OffsetNS, bad.ErrorNS, bad.How = nil, nil, "not known: ptp4l's servo is not locked"
	bad.Problems = []calibration.Problem{{Name: calibration.FreeRunning, Clock: "system", Text: "nobody steers it"}}
	s.close()
	s.calibrate(records)
	m := s.open(merge.Options{ClockSource: merge.ClockCalibration, ClockWarnAbove: 50 * time.Nanosecond})
	c := m.Info().Clock
	if n := c.Nodes[1]; n.ErrorNS != nil || n.Reason != "ptp4l's servo is not locked" || n.OffsetNS != nil || !n.Above || len(n.Problems) != 1 {
		t.Errorf("%+v", n)
	}
	if n := c.Nodes[0]; n.ErrorNS == nil || *n.ErrorNS < 100 || !n.Above {
		t.Errorf("%+v", n)
	}
	if len(c.Warnings) != 2 {
		t.Errorf("warnings %v", c.Warnings)
	}
	var text strings.Builder
	m.Info().Summary(&text)
	for _, want := range []string{"clock of n1: error not known: ptp4l's servo is not locked", "warning: clock: n0: the error may be", "system: free-running: nobody steers it"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, &text)
		}
	}
	validate(t, m.Info(), m.Matrix())
}

// Whatever the skew, after --clock-repair nothing is received before it was sent, each node's own order is kept, and the account tells
// what was moved. Without any source the system clocks are repaired as they are.
func TestRepairRemovesReceiveBeforeSend(t *testing.T) {
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 11))
		skew := make([]int64, 2+r.IntN(5))
		for i := range skew {
			skew[i] = int64(r.NormFloat64() * []float64{1e3, 1e6, 1e9}[seed%3])
		}
		s := newSkewed(t, seed, skew, 400, 1000)
		s.close()
		before := s.open(merge.Options{})
		n := early(t, before)
		if n == 0 {
			t.Fatalf("seed %d: nothing to repair", seed)
		}
		m := s.open(merge.Options{ClockSource: merge.ClockSystem, ClockRepair: true})
		c := m.Info().Clock
		if early(t, m) != 0 || *c.ReceiveBeforeSend.Count != 0 {
			t.Errorf("seed %d: %d messages are still received before they were sent", seed, early(t, m))
		}
		if c.Repaired == nil || c.Repaired.Count != int64(n) {
			t.Errorf("seed %d: repaired %+v of %d", seed, c.Repaired, n)
		}
		most := int64(0)
		for _, x := range c.Nodes {
			if x.CorrectionNS == nil {
				t.Fatalf("%+v", x)
			}
			most = max(most, *x.CorrectionNS)
		}
		if most != c.Repaired.MostNS || most < *before.Info().Clock.ReceiveBeforeSend.WorstNS {
			t.Errorf("seed %d: times were moved by up to %d, %d was the worst", seed, most, *before.Info().Clock.ReceiveBeforeSend.WorstNS)
		}
		s.orderKept(m)
		validate(t, m.Info(), m.Matrix())
	}
}

// Corrected and repaired, the output is the same for any number of workers and any memory.
func TestCorrectionsAreDeterministic(t *testing.T) {
	s := newSkewed(t, 21, []int64{0, 40_000, -3_000_000, 77}, 2000, 1000)
	s.close()
	var first []byte
	for _, o := range []merge.Options{{Workers: 1}, {Workers: 4}, {Workers: 2, Memory: merge.MinMemory}} {
		o.ClockRepair, o.Exports = true, []string{"perfetto", "matrix"}
		if _, err := merge.Run(context.Background(), s.dir, o); err != nil {
			t.Fatal(err)
		}
		var out []byte
		for _, name := range []string{"trace.pftrace", "manifest.json"} {
			b, err := os.ReadFile(filepath.Join(s.dir.Path(), name))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, b...)
		}
		if first == nil {
			first = out
		} else if !bytes.Equal(first, out) {
			t.Errorf("other bytes with %d workers and %d of memory", o.Workers, o.Memory)
		}
	}
}
