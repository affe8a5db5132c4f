//go:build vm

package check

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
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
	}{
		{"write_bw", totals{"vmb -> vma write": {200, 13107200}}, messages{}},
		{"send_bw-cm", nil, messages{matched: true}},
		{"peers", peers, messages{matched: true}},
		{"datagrams-cm", totals{"vma -> vmb send": {10, 1000}, "vmb -> vma send": {10, 1000}}, messages{matched: true}},
		{"ucx", nil, messages{matched: true, unpolled: 2, unsure: true}},
		{"collected", pingpong, messages{matched: true}},
		{"mpi", nil, messages{matched: true, unpolled: 4, unsure: true}},
		{"ahead", pingpong, messages{matched: true}},
		{"behind", pingpong, messages{matched: true}},
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
			// How far the clocks of two machines are apart nobody knows: null, and why.
			c := r.info.Clock
			hosts := map[string]bool{}
			for _, n := range c.Nodes {
				hosts[n.Host] = true
				if n.ErrorNS != nil || n.Reason == "" {
					t.Errorf("clock of %s: error %v, reason %q", n.Host, n.ErrorNS, n.Reason)
				}
			}
			if !maps.Equal(hosts, map[string]bool{"vma": true, "vmb": true}) || len(c.Nodes) != 2 || c.Source == nil || *c.Source != "system clock" {
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

// The two machines' clocks were set 30 s apart, give or take how long that took: all messages of one direction, and no other, were received
// before they were sent, by that much.
func TestReceivedBeforeSent(t *testing.T) {
	for _, name := range []string{"ahead", "behind"} {
		t.Run(name, func(t *testing.T) {
			const second = int64(1e9)
			b := load(t, "two", name).info.Clock.ReceiveBeforeSend
			if b.Count == nil || b.WorstNS == nil {
				t.Fatalf("not known: %+v", b)
			}
			if *b.Count != 100 || *b.WorstNS < 20*second || *b.WorstNS > 40*second {
				t.Errorf("%d messages, worst %d ns; want 100, about 30 s", *b.Count, *b.WorstNS)
			}
		})
	}
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
