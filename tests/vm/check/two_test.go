//go:build vm

package check

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/tests/tp"
)

// Programs on two machines in one run: counters, flows across the wire, and the node matrix, which the command lines tell.
func TestTwoMachines(t *testing.T) {
	pingpong := totals{"vma -> vmb send": {100, 409600}, "vmb -> vma send": {100, 409600}}
	peers := totals{}
	for key, v := range peerClient(20) {
		switch key {
		case "verbs send", "verbs write", "verbs write_imm", "verbs read":
			peers["vma -> vmb "+key[len("verbs "):]] = v
			peers["vmb -> vma "+key[len("verbs "):]] = v
		}
	}
	programs := []struct {
		name     string
		nodes    totals // of layer verbs, all of it
		messages messages
		clock    string // what places the machines' times: messages, where there are some both ways
	}{
		{"write_bw", totals{"vmb -> vma write": {200, 13107200}}, messages{}, "system clock"},
		{"send_bw-cm", nil, messages{matched: true}, ""},
		{"peers", peers, messages{matched: true}, "messages"},
		{"datagrams-cm", totals{"vma -> vmb send": {10, 1000}, "vmb -> vma send": {10, 1000}}, messages{matched: true}, "messages"},
		{"ucx", nil, messages{matched: true, unpolled: 2, unsure: true}, ""},
		{"collected", totals{"vma -> vmb send": {1000, 4096000}, "vmb -> vma send": {1000, 4096000}}, messages{matched: true}, "messages"},
		{"mpi", nil, messages{matched: true, unpolled: 4, unsure: true}, ""},
		{"ahead", pingpong, messages{matched: true}, "messages"},
		{"behind", pingpong, messages{matched: true}, "messages"},
	}
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			r := load(t, "two", p.name)
			r.likeCounters(2)
			if p.nodes != nil {
				same(t, "nodes", r.nodes("verbs"), p.nodes)
			}
			if p.messages.matched {
				r.everySendMatched(p.messages)
			}
			c := r.info.Clock
			hosts := map[string]bool{}
			for _, n := range c.Nodes {
				hosts[n.Host] = true
				if (n.ErrorNS == nil) != (n.Reason != "") || (n.ErrorNS != nil) != (n.How != "") {
					t.Errorf("clock of %s: error %v, reason %q, how %q", n.Host, n.ErrorNS, n.Reason, n.How)
				}
				if n.ErrorNS != nil && *c.Source == "system clock" {
					t.Errorf("clock of %s: how far it is off the other machine's nobody knows, and it says %g ns", n.Host, *n.ErrorNS)
				}
			}
			if !maps.Equal(hosts, map[string]bool{"vma": true, "vmb": true}) || len(c.Nodes) != 2 || c.Source == nil || (p.clock != "" && *c.Source != p.clock) {
				t.Errorf("clock: %+v", c)
			}
			if known := c.ReceiveBeforeSend.Count != nil && c.ReceiveBeforeSend.WorstNS != nil; known != p.messages.matched {
				t.Errorf("received before sent: %+v", c.ReceiveBeforeSend)
			}
		})
	}
}

func TestPeersTwo(t *testing.T) {
	for _, name := range []string{"write_bw", "collected"} {
		t.Run(name, func(t *testing.T) { load(t, "two", name).peersAsInKernel(2) })
	}
}

// The two machines' clocks were set 30 s apart, give or take how long that took: by them all messages of one direction, and no other, were received
// before they were sent, by that much. Their messages take that out, to within a round trip: the offset is between what the messages one way
// and the other allow, which is what the test looks for itself, and none is received before it was sent any more.
func TestSkewOfTwoMachines(t *testing.T) {
	const second = int64(1e9)
	for name, sign := range map[string]int64{"ahead": 1, "behind": -1} {
		t.Run(name, func(t *testing.T) {
			r := load(t, "two", name)
			m := r.open(merge.Options{ClockSource: merge.ClockSystem})
			b := m.Info().Clock.ReceiveBeforeSend
			if b.Count == nil || b.WorstNS == nil {
				t.Fatalf("not known: %+v", b)
			}
			if *b.Count != 100 || *b.WorstNS < 20*second || *b.WorstNS > 40*second {
				t.Errorf("%d messages, worst %d ns; want 100, about 30 s", *b.Count, *b.WorstNS)
			}
			low, high := apart(t, m)
			c := r.info.Clock
			if *c.Source != "messages" || *c.ReceiveBeforeSend.Count != 0 {
				t.Errorf("%+v", c)
			}
			off := c.Nodes[1].OffsetNS
			if c.Nodes[0].OffsetNS == nil || off == nil {
				t.Fatalf("%+v", c.Nodes)
			}
			skew := *off - *c.Nodes[0].OffsetNS
			t.Logf("by their messages vmb is ahead by %d to %d ns, a round trip of %d ns; told are %d ns, error %v %s", low, high, high-low, skew, c.Nodes[1].ErrorNS, c.Nodes[1].Reason)
			if skew < low-(high-low) || skew > high+(high-low) || skew*sign < 20*second || skew*sign > 40*second {
				t.Errorf("vmb is ahead by %d to %d ns, and %d ns is told", low, high, skew)
			}
			if e := c.Nodes[1].ErrorNS; e != nil && *e > float64(high-low) {
				t.Errorf("the bound is %g ns, a round trip %d", *e, high-low)
			}
		})
	}
}

// apart returns between which bounds the messages say that vmb's clock is ahead of vma's, in a run whose times are those of the clocks.
func apart(t *testing.T, m *merge.Merged) (low, high int64) {
	t.Helper()
	type end struct {
		host string
		at   int64
	}
	sent, received := map[uint64]end{}, map[uint64]end{}
	run := m.Run()
	for i := range run.Partitions {
		if err := m.Partition(t.Context(), i, func(part []ops.Op) error {
			for _, o := range part {
				switch host := run.Processes[o.Process].Host; {
				case o.Flow == 0:
				case o.Role == ops.Initiator:
					sent[o.Flow] = end{host, o.Post}
				case o.Role == ops.Target:
					received[o.Flow] = end{host, o.Done}
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	low, high = math.MinInt64, math.MaxInt64
	for flow, s := range sent {
		switch r := received[flow]; {
		case s.host == "vma" && r.host == "vmb":
			high = min(high, r.at-s.at)
		case s.host == "vmb" && r.host == "vma":
			low = max(low, s.at-r.at)
		}
	}
	return low, high
}

// A run directory on a network file system is written to by write(2), memory is mapped.
func TestBackEnds(t *testing.T) {
	for name, want := range map[string]capture.BackEnd{"write_bw": capture.Written, "collected": capture.Mapped} {
		for _, h := range headers(t, "two", name) {
			if h.BackEnd != want {
				t.Errorf("%s on %s: back end %v, want %v", name, h.Hostname, h.BackEnd, want)
			}
		}
	}
}

func TestRanksTwo(t *testing.T) {
	ranksOf(load(t, "two", "mpi"), []string{"ucp", "uct", "verbs"}, "vma", "vmb")
}

// Perfetto imports the traces, also those of clocks that disagree, and shows each message as an arrow from one machine to the other.
func TestTraceTwo(t *testing.T) {
	for _, name := range []string{"peers", "ahead", "mpi"} {
		t.Run(name, func(t *testing.T) {
			r := load(t, "two", name)
			rows, err := tp.Query(r.importsCleanly(), `select p.name, q.name from flow f
				join slice a on f.slice_out = a.id join process_track x on a.track_id = x.id join process p on x.upid = p.upid
				join slice b on f.slice_in = b.id join process_track y on b.track_id = y.id join process q on y.upid = q.upid
				where p.upid != q.upid`)
			if err != nil {
				t.Fatal(err)
			}
			// Each process is on a machine of its own. Ranks send to themselves as well.
			messages := 0
			for layer := range r.matrix.Layers {
				for key, v := range r.nodes(layer) {
					if f := strings.Fields(key); f[0] != f[2] && slices.Contains([]string{"send", "write_imm", "tag_send"}, f[3]) {
						messages += int(v.Count)
					}
				}
			}
			if len(rows) != messages || messages == 0 {
				t.Errorf("%d arrows between processes, %d messages", len(rows), messages)
			}
		})
	}
}
