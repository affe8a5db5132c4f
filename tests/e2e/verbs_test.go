package e2e

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/tests/needs"
)

// verbsNames are the software HCA's names of requests as those of the layer.
var verbsNames = map[string]string{"send_imm": "send", "compare_swap": "atomic", "fetch_add": "atomic"}

// checkHCA holds a run's account and flows against the software HCA itself, which executed every request. Each receive it completed and
// the program polled is a matched message; a send of which the receiver never polled the completion is not, and a receive that was
// posted and not used is unfinished, neither lost.
func (r *run) checkHCA(i *info, tags uint64) {
	r.t.Helper()
	did := r.hca()
	want := totals{}
	for op, n := range did.Requests {
		name, other := verbsNames[op]
		if !other {
			name = op
		}
		want.add(name, tally{n, did.Bytes[op]})
	}
	got := i.layer("verbs")
	delete(got, "recv")
	equal(r.t, "requests, and what the HCA executed", got, want)
	if n := i.Operations["verbs"]["recv"].Count; n != did.RecvsPosted {
		r.t.Errorf("%d receives, the HCA was given %d", n, did.RecvsPosted)
	}
	if n := i.Completions["verbs"]; n != did.SendCQEs+did.RecvCQEs {
		r.t.Errorf("%d completions, the HCA gave out %d", n, did.SendCQEs+did.RecvCQEs)
	}
	if did.Errors != 0 {
		r.t.Errorf("%d completions with error", did.Errors)
	}
	if r.spec.mode != "full" {
		return
	}
	open, unheard := did.RecvsPosted-did.RecvCQEs, want["send"].Count+want["write_imm"].Count-did.RecvCQEs
	if i.Flows.Matched != did.RecvCQEs+tags {
		r.t.Errorf("%d messages matched, %d tags and %d receives were completed", i.Flows.Matched, tags, did.RecvCQEs)
	}
	// Which receive a connection's send would have filled is known, and that it did not end; which a datagram would have filled is not.
	none := i.Flows.Unmatched["no receive recorded"]
	if got := i.Flows.Unmatched["unfinished"] + none; none > unheard || got != open+unheard || len(i.Flows.Unmatched) > 2 {
		r.t.Errorf("%d receives never filled, %d sends whose receive was never polled: %v", open, unheard, i.Flows.Unmatched)
	}
	if i.Unfinished < open {
		r.t.Errorf("%d unfinished requests, %d receives are open", i.Unfinished, open)
	}
}

// Programs nobody here wrote, both sides traced: every request, completion and message.
func TestVerbsPrograms(t *testing.T) {
	// Each case: what the client's and server's requests together must be, as the command line says it.
	cases := []struct {
		args        string
		want        totals
		completions uint64 // polled; 0: as many as the counter says
		trace       bool
	}{
		{"ib_write_bw -n 500 -s 4096", totals{"write": {500, 2048000}}, 5, true},
		{"ib_write_bw -n 500 -s 4096 --use_old_post_send", totals{"write": {500, 2048000}}, 5, false},
		{"ib_read_bw -n 200 -s 4096", totals{"read": {200, 819200}}, 0, false},
		{"ib_send_bw -n 500 -s 4096", totals{"send": {500, 2048000}}, 0, false},
		{"ib_send_bw --use-srq -q 2 -n 200 -s 1024", totals{"send": {400, 409600}}, 0, true},
		{"ib_atomic_bw -n 200", totals{"atomic": {200, 1600}}, 0, false},
		{"ib_atomic_bw -n 200 -A CMP_AND_SWAP", totals{"atomic": {200, 1600}}, 0, false},
		{"ibv_rc_pingpong -N -n 300", totals{"send": {600, 2457600}}, 1200, true},
		{"ibv_rc_pingpong -e -n 300", totals{"send": {600, 2457600}}, 1200, false},
		{"ibv_ud_pingpong -n 300 -s 2048", totals{"send": {600, 1228800}}, 1200, true},
		{"ibv_srq_pingpong -n 300 -q 4", nil, 0, true},
	}
	n := 0
	for _, c := range cases {
		argv := strings.Fields(c.args)
		if testing.Short() && c.completions == 0 {
			continue
		}
		for _, mode := range needs.Modes() {
			n++
			ahead := n%2 == 0
			t.Run(strings.ReplaceAll(c.args, " ", "_")+"/"+mode, func(t *testing.T) {
				r := newRun(t, spec{mode: mode, providers: "ibverbs", hca: true, ahead: ahead})
				r.launch(r.pair(argv...)...).succeed()
				i, saw := r.check("verbs")
				for op, want := range c.want {
					if got := saw["verbs"][op]; got != want {
						t.Errorf("%s: %v, want %v", op, got, want)
					}
				}
				if got := i.Completions["verbs"]; c.completions != 0 && got != c.completions {
					t.Errorf("%d completions, want %d", got, c.completions)
				}
				r.checkHCA(i, 0)
				if mode != "full" {
					return
				}
				// ibv_srq_pingpong ends each side at its own last round: it may leave a message of each queue pair in the air.
				unpolled := uint64(0)
				if c.completions == 0 && strings.HasPrefix(c.args, "ibv_srq") {
					unpolled = 4
				}
				if sends := saw["verbs"]["send"].Count + saw["verbs"]["write_imm"].Count; i.Flows.Matched > sends || i.Flows.Matched+unpolled < sends {
					t.Errorf("%d of %d messages matched", i.Flows.Matched, sends)
				}
				if c.trace && !testing.Short() {
					r.checkTrace(i, saw)
				}
			})
		}
	}
}

// Clients that know what they posted, in every form that verbs has; one looks its functions up with dlvsym.
func TestVerbsClients(t *testing.T) {
	forms := []string{"post,chain", "wr", "ex", "srq", "ud", "event", "rejected"}
	clients := [][]string{{"dlv-client"}, {"verbs-client"}}
	for _, f := range forms {
		clients = append(clients, []string{"verbs-client", "-n", "20", "-m", f})
	}
	for n, argv := range clients {
		if testing.Short() && len(argv) > 1 {
			continue
		}
		for k, mode := range needs.Modes() {
			t.Run(strings.Join(argv, "_")+"/"+mode, func(t *testing.T) {
				// A look-up by dlvsym with a handle ends at the first preload, which then has the real function: another one behind it,
				// as the counter, is not asked.
				ahead := argv[0] == "dlv-client" || (n+k)%2 == 0
				r := newRun(t, spec{mode: mode, providers: "ibverbs", hca: true, ahead: ahead})
				r.launch(r.plain(append([]string{built(t, "tests/"+argv[0])}, argv[1:]...)...)...).succeed()
				i, saw := r.check("verbs")
				said := sum(r.read("sent."))
				if got := i.Completions["verbs"]; got != said["completion"].Count {
					t.Errorf("%d completions, the client says %d", got, said["completion"].Count)
				}
				delete(said, "completion")
				equal(t, "what the client says", said, saw["verbs"])
				if mode != "full" {
					return
				}
				if sends := saw["verbs"]["send"].Count + saw["verbs"]["write_imm"].Count; i.Flows.Matched != sends || len(i.Flows.Unmatched) != 0 || i.Unfinished != 0 {
					t.Errorf("%+v of %d messages, %d unfinished", i.Flows, sends, i.Unfinished)
				}
				if len(argv) == 1 && !testing.Short() {
					r.checkTrace(i, saw)
				}
			})
		}
	}
}

// Both layers in one trace, each against its own truth.
func TestBothLayers(t *testing.T) {
	programs := []struct {
		name string
		line func(*run) []string
	}{
		{"openmpi", func(r *run) []string { return r.mpirun(4, built(t, "tests/mpi-app"), "-n", "5") }},
		{"ucp-client", func(r *run) []string { return r.plain(built(t, "tests/ucp-client"), "-s", "7") }},
	}
	for _, test := range []string{"tag_lat", "ucp_put_bw", "ucp_am_bw", "ucp_get"} {
		programs = append(programs, struct {
			name string
			line func(*run) []string
		}{test, func(r *run) []string {
			return r.pair("ucx_perftest", "-t", test, "-n", "200", "-w", "20", "-s", "8192")
		}})
	}
	if testing.Short() {
		programs = programs[:1]
	}
	for n, p := range programs {
		for k, mode := range needs.Modes() {
			t.Run(p.name+"/"+mode, func(t *testing.T) {
				r := newRun(t, spec{mode: mode, providers: "ucx,ibverbs", hca: true, ahead: (n+k)%2 == 0, env: []string{"UCX_TLS=rc_v,self"}})
				r.launch(p.line(r)...).succeed()
				i, saw := r.check("ucp", "verbs")
				tags := saw["ucp"]["tag_send"].Count
				if tags != saw["ucp"]["tag_recv"].Count {
					t.Errorf("not every message was received: %v", saw["ucp"])
				}
				r.checkHCA(i, tags)
				// What UCX moves, it moves over verbs, in messages or in reads of its own.
				moved, carried := uint64(0), uint64(0)
				for op, v := range saw["ucp"] {
					if !strings.HasSuffix(op, "recv") {
						moved += v.Bytes
					}
				}
				for op, v := range saw["verbs"] {
					if op != "recv" {
						carried += v.Bytes
					}
				}
				if moved == 0 || carried < moved && p.name != "openmpi" {
					t.Errorf("UCX moved %d bytes by %d bytes of verbs", moved, carried)
				}
				if mode == "full" && n < 2 && !testing.Short() {
					r.checkTrace(i, saw)
				}
			})
		}
	}
}

// More ranks than the demo has, so that the lists of peers and queue pairs are longer: the matrix of ranks is full.
func TestSixRanks(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	r := newRun(t, spec{mode: "aggregate", providers: "ucx,ibverbs", hca: true, env: []string{"UCX_TLS=rc_v,self"}})
	r.launch(r.mpirun(6, built(t, "tests/mpi-app"), "-n", "2")...).succeed()
	r.check("ucp", "verbs")
	var m matrix
	readJSON(t, r.path+"/matrix.json", &m)
	pairs := map[string]bool{}
	for _, row := range m.Layers["ucp"].Rank {
		pairs[fmt.Sprint(row.Source, row.Destination)] = true
	}
	for a := range 6 {
		for b := range 6 {
			if k := fmt.Sprint(a, b); a != b && !pairs[k] {
				t.Errorf("no traffic from rank %d to rank %d in %v", a, b, maps.Clone(pairs))
			}
		}
	}
}
