//go:build vm

package check

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// program is a run of a guest script on one machine.
type program struct {
	name, mode string
	processes  int
	want       totals   // exactly these of the operations that it names
	messages   messages // what is known of them
}

// One machine: every program's account and matrix equal to the counters', and where the command line says it, to that.
func TestOneMachine(t *testing.T) {
	allOf(t, "one", append(libfabric, []program{
		{"write_bw", "full", 2, totals{"verbs write": {500, 2048000}, "verbs completion": {5, 0}}, messages{}}, // one of 100 asks for a completion
		{"read_bw", "simple", 2, totals{"verbs read": {200, 819200}, "verbs completion": {2, 0}}, messages{}},
		{"send_bw-cm", "full", 2, nil, messages{matched: true}},
		{"send_bw-ud", "aggregate", 2, totals{"verbs send": {200, 204800}}, messages{}},
		{"rc_pingpong", "full", 2, totals{"verbs send": {2000, 8192000}, "verbs completion": {4000, 0}}, messages{matched: true}},
		{"peers", "full", 2, twice(peerClient(20)), messages{matched: true}},
		{"datagrams-cm", "full", 2, totals{"verbs send": {20, 2000}}, messages{matched: true}}, // udaddy: 10 messages of 100 bytes each way
		{"sockets", "full", 2, nil, messages{matched: true, unpolled: 4}},                      // rsockets: a credit and the end, of each side
		{"client-aggregate", "aggregate", 1, nil, messages{}},
		{"client-simple", "simple", 1, nil, messages{}},
		{"client-full", "full", 1, nil, messages{matched: true}},
		{"client-wr", "full", 1, nil, messages{matched: true, unsure: true}}, // rdma-core 44's rxe sends other lengths than it is told, see README.md
		{"dlvsym", "full", 1, totals{"verbs write": {200, 409600}, "verbs completion": {200, 0}}, messages{}},
		{"ucx", "full", 2, nil, messages{matched: true, unpolled: 2, unsure: true}}, // two threads of UCX post on its datagram queue pair, and it ends without a last look
		{"mpi", "full", 2, nil, messages{matched: true, unpolled: 4, unsure: true}},
	}...))
}

// What a machine does over libfabric, whatever its version. ofi-client cancels a receive on each side.
var libfabric = []program{
	{"fi_pingpong-msg", "full", 2, nil, messages{matched: true}},
	{"fi_pingpong-rxm", "full", 2, nil, messages{matched: true, unpolled: 4}},
	{"ofi-msg", "full", 2, nil, messages{matched: true, unpolled: 4, taken: true}},
	{"ofi-rxm", "full", 2, nil, messages{matched: true, unpolled: 4, cancelled: 2, shared: 2}},
	{"mpi-ofi", "full", 2, nil, messages{matched: true, unpolled: 4}},
}

// allOf checks the programs of a guest script.
func allOf(t *testing.T, script string, programs []program) {
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			r := load(t, script, p.name)
			got := r.likeCounters(p.processes)
			if r.info.Mode != p.mode {
				t.Errorf("mode %q, want %q", r.info.Mode, p.mode)
			}
			for key, want := range p.want {
				if got[key] != want {
					t.Errorf("%s: %v, want %v", key, got[key], want)
				}
			}
			if p.messages.matched {
				r.everySendMatched(p.messages)
			}
			if (p.mode == "aggregate") != (r.info.Events.Total == 0) {
				t.Errorf("%d events in mode %s", r.info.Events.Total, p.mode)
			}
			// One machine has one clock, which its processors share.
			if c := r.info.Clock; len(c.Nodes) != 1 || c.Nodes[0].Host != "rig" || c.Source == nil || *c.Source != "system clock" {
				t.Errorf("clock: %+v", c)
			}
			if b := r.info.Clock.ReceiveBeforeSend; p.messages.matched && (b.Count == nil || *b.Count != 0) {
				t.Errorf("messages received before they were sent: %+v", b)
			}
		})
	}
}

// peerClient is what one side of tests/clients/peer-client.c does with n requests of each kind.
func peerClient(n int) totals {
	t := totals{}
	for kind, key := range []string{"verbs send", "verbs send", "verbs write_imm", "verbs write", "verbs read"} {
		for i := range n {
			t.add(key, 1, uint64(1+(i*97+kind*131)%2048))
		}
	}
	t.add("verbs recv", uint64(3*n), uint64(3*n*2048))
	t.add("verbs completion", uint64(3*n+5), 0)
	return t
}

func twice(a totals) totals {
	b := totals{}
	for k, v := range a {
		b[k] = tally{2 * v.Count, 2 * v.Bytes}
	}
	return b
}

// The tests' own clients say of themselves what the counters saw.
func TestClients(t *testing.T) {
	clientsOf(t, "one", map[string]int{"peers": 2, "client-aggregate": 1, "client-simple": 1, "client-full": 1, "client-wr": 1}, "verbs")
	clientsOf(t, "one", map[string]int{"ofi-msg": 2, "ofi-rxm": 2}, "ofi")
}

func clientsOf(t *testing.T, script string, runs map[string]int, layer string) {
	for name, clients := range runs {
		t.Run(name, func(t *testing.T) {
			(&result{T: t, dir: build("vm", "out", script, name)}).sentLikeCounted(clients, layer)
		})
	}
}

// ib_write_bw's traffic goes from the client's queue pair to the server's, whose numbers it prints, at every level of the matrix.
func TestMatrixLevels(t *testing.T) {
	r := load(t, "one", "write_bw")
	l := r.matrix.Layers["verbs"]
	if l == nil || len(l.Endpoint) != 1 || l.Endpoint[0].Source == nil || l.Endpoint[0].Destination == nil {
		t.Fatalf("not one row of queue pairs: %+v", l)
	}
	row := l.Endpoint[0]
	if row.Operation != "write" || row.Count != 500 || row.Bytes != 2048000 {
		t.Errorf("queue pairs: %s %d %d", row.Operation, row.Count, row.Bytes)
	}
	var printed []string
	for line := range strings.Lines(string(exists(t, filepath.Join(r.dir, "client")))) { // " local address: LID 0000 QPN 0x0015 PSN ..."
		if f := strings.Fields(line); len(f) > 5 && f[1] == "address:" && f[4] == "QPN" {
			printed = append(printed, f[0]+" "+f[5])
		}
	}
	want := []string{fmt.Sprintf("local 0x%04x", numberOf(row.Source.Name)), fmt.Sprintf("remote 0x%04x", numberOf(row.Destination.Name))}
	if !slices.Equal(printed, want) {
		t.Errorf("ib_write_bw prints %v, want %v", printed, want)
	}
	if row.Source.Pid == row.Destination.Pid {
		t.Error("both queue pairs are one process's")
	}
	wrote := func(from, to any) totals { return totals{fmt.Sprintf("%v -> %v write", from, to): {500, 2048000}} }
	same(t, "processes", rows(l.Rank), wrote(fmt.Sprintf("rig:%d", row.Source.Pid), fmt.Sprintf("rig:%d", row.Destination.Pid)))
	same(t, "nodes", r.nodes("verbs"), wrote("rig", "rig"))
}

func TestPeersOne(t *testing.T) {
	for _, name := range []string{"rc_pingpong", "ucx"} {
		t.Run(name, func(t *testing.T) { load(t, "one", name).peersAsInKernel(2) })
	}
}

// Ranks of Open MPI: who sent how much to whom adds up to what the counters saw, and all layers have both ranks.
func TestRanks(t *testing.T) {
	for name, layers := range map[string][]string{"mpi": {"ucp", "uct", "verbs"}, "mpi-ofi": {"ofi", "verbs"}} {
		t.Run(name, func(t *testing.T) { ranksOf(load(t, "one", name), layers, "rig", "rig") })
	}
}

// ranksOf: the two ranks, each on its host, are all that a matrix knows, at these layers, of which the first is nearest to the program,
// and each sends to the other.
func ranksOf(r *result, layers []string, hosts ...string) {
	r.Helper()
	if k := r.info.Ranks; k.Expected == nil || *k.Expected != 2 || k.Injected != 2 || k.Active != 2 || k.Complete != 2 {
		r.Errorf("ranks: %+v", k)
	}
	for name, l := range r.matrix.Layers {
		sums := rows(l.Rank)
		for key := range sums {
			// A lane that UCX makes on its own while it connects, and uses from its progress only, tells no UCP endpoint; a worker's flush
			// goes to nobody.
			nobody := name == "uct" || strings.HasSuffix(key, " flush")
			if !strings.HasPrefix(key, "0 -> ") && !strings.HasPrefix(key, "1 -> ") || (strings.Contains(key, "nil") && !nobody) {
				r.Errorf("layer %s: %s", name, key)
			}
		}
		send := map[string]string{"ucp": "tag_send", "uct": "am_send", "verbs": "send", "ofi": "tagged_send"}[name]
		for _, way := range []string{"0 -> 1 ", "1 -> 0 "} {
			if sums[way+send].Count == 0 {
				r.Errorf("layer %s: no %s%s:%v", name, way, send, sums)
			}
		}
		for _, row := range l.Endpoint {
			if s := row.Source; s.Rank == nil || s.Host != hosts[*s.Rank] {
				r.Errorf("layer %s: a row of %+v", name, s)
			}
		}
	}
	if got := slices.Collect(maps.Keys(r.matrix.Layers)); len(got) != len(layers) {
		r.Errorf("layers %v, want %v", got, layers)
	}
	if r.info.Layer == nil || *r.info.Layer != layers[0] {
		r.Errorf("summary layer %v", r.info.Layer)
	}
}

// The merge in the guest, by the launcher, and the one here make the same of the same captures, byte for byte.
func TestMergedInGuest(t *testing.T) {
	r := load(t, "one", "write_bw")
	var m rundir.Manifest
	r.read("manifest.guest", &m)
	guest, err := merge.ParseInfo(m.Result)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := json.Marshal(guest)
	b, _ := json.Marshal(r.info)
	if !bytes.Equal(a, b) {
		t.Errorf("in the guest %s\nhere %s", a, b)
	}
	if m.Run.Status == nil || *m.Run.Status != 0 || m.Run.Host != "rig" || m.Run.Dialect != "plain" {
		t.Errorf("manifest: %+v", m.Run)
	}
	if !bytes.Equal(exists(t, filepath.Join(r.dir, "trace.guest")), exists(t, filepath.Join(r.dir, "run", "trace.pftrace"))) {
		t.Error("the traces differ")
	}
}

func TestTraceOne(t *testing.T) { load(t, "one", "client-full").importsCleanly() }

// definitions calls fn with each definition of every capture of a run.
func definitions(t *testing.T, script, name string, fn func(d *capture.Definition)) {
	t.Helper()
	for _, p := range captures(t, script, name) {
		f, err := capture.Open(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Definitions(catalogue.Default, func(d *capture.Definition) error { fn(d); return nil }); err != nil {
			t.Error(err)
		}
		f.Close()
	}
}

// The device is as the kernel describes it, and was described once a process.
func TestDevice(t *testing.T) {
	text, err := os.ReadFile(build("vm", "out", "one", "gids"))
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for line := range strings.Lines(string(text)) {
		if g := strings.ReplaceAll(strings.TrimSpace(line), ":", ""); strings.Trim(g, "0") != "" {
			want = append(want, g, g) // two processes
		}
	}
	ports := 0
	definitions(t, "one", "write_bw", func(d *capture.Definition) {
		switch d.ID {
		case catalogue.DefVerbsGid:
			got = append(got, fmt.Sprintf("%x", d.Bytes(catalogue.DefVerbsGidGid)))
		case catalogue.DefVerbsPort:
			ports++
			if state, mtu := d.Uint(catalogue.DefVerbsPortState), d.Uint(catalogue.DefVerbsPortMtu); state != 4 || mtu != 4096 {
				t.Errorf("port: state %d, mtu %d; want 4 (active), 4096", state, mtu)
			}
		}
	})
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) || len(want) == 0 {
		t.Errorf("GIDs %v, want %v", got, want)
	}
	if ports != 2 {
		t.Errorf("%d ports of two processes", ports)
	}
}

// ibv_reg_mr registers by ibv_reg_mr_iova2, through another hook.
func TestRegionOnce(t *testing.T) {
	n := 0
	definitions(t, "one", "dlvsym", func(d *capture.Definition) {
		if d.ID == catalogue.DefVerbsMr {
			n++
		}
	})
	if n != 1 {
		t.Errorf("%d regions, the program registers 1", n)
	}
}
