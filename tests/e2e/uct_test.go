package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/tests/needs"
	"github.com/sigmatrace/sigmatrace/tests/tp"
)

// downToUCT records UCT whatever the mode.
var downToUCT = []string{"--set", "ucx.level=uct"}

// Programs that use UCT themselves, without UCP: every operation in every form that transports without devices have, counts and bytes
// equal to the counter's.
func TestPerftestUCT(t *testing.T) {
	tests := []struct{ test, layout, op, on string }{
		{"am_lat", "short", "am_send", "tcp/lo"}, {"am_bw", "bcopy", "am_send", "self/memory0"}, {"am_bw", "zcopy", "am_send", "tcp/lo"},
		{"put_lat", "short", "put", "posix/memory"}, {"put_bw", "bcopy", "put", "sysv/memory"}, {"put_bw", "zcopy", "put", "tcp/lo"},
		{"get", "bcopy", "get", "posix/memory"}, {"add_mr", "", "atomic", "sysv/memory"}, {"fadd", "", "atomic", "posix/memory"},
		{"swap", "", "atomic", "self/memory0"}, {"cswap", "", "atomic", "sysv/memory"},
	}
	for i, c := range tests {
		for _, mode := range needs.Modes() {
			if testing.Short() && i%4 != 0 {
				continue
			}
			t.Run(strings.Join([]string{c.test, c.layout, strings.ReplaceAll(c.on, "/", "-"), mode}, "_"), func(t *testing.T) {
				transport, device, _ := strings.Cut(c.on, "/")
				argv := []string{"ucx_perftest", "-t", c.test, "-x", transport, "-d", device, "-n", "300", "-w", "30", "-s", "8"}
				if c.layout != "" {
					argv = append(argv, "-D", c.layout)
				}
				r := newRun(t, spec{mode: mode, providers: "ucx", ahead: i%2 == 0, options: downToUCT})
				if transport == "self" { // to itself: one process
					argv = append(argv, "-l")
					r.launch(r.plain(argv...)...).succeed()
				} else {
					r.launch(r.pair(argv...)...).succeed()
				}
				i, saw := r.check("uct")
				if v := saw["uct"][c.op]; v.Count < 300 {
					t.Errorf("%s: %v", c.op, v)
				}
				if i.Layer != "uct" || i.Unfinished != 0 {
					t.Errorf("summary of layer %s; %d unfinished", i.Layer, i.Unfinished)
				}
				for name := range r.sources("uct") {
					if !strings.HasPrefix(name, c.on+" ep ") {
						t.Errorf("operations on %q", name)
					}
				}
			})
		}
	}
}

// sources are the names of what operations of a layer were made on.
func (r *run) sources(layer string) map[string]bool {
	r.t.Helper()
	var m struct {
		Layers map[string]struct {
			Endpoint []struct{ Source struct{ Name string } }
		}
	}
	readJSON(r.t, filepath.Join(r.path, "matrix.json"), &m)
	names := map[string]bool{}
	for _, row := range m.Layers[layer].Endpoint {
		names[row.Source.Name] = true
	}
	if len(names) == 0 {
		r.t.Errorf("nothing in the matrix of layer %s", layer)
	}
	return names
}

// UCT below UCP, also where the mode alone would not go there.
func TestUCTBelowUCP(t *testing.T) {
	tests := []struct {
		name string
		argv func(r *run) []string
	}{
		{"tag_lat", func(r *run) []string { return r.pair("ucx_perftest", "-t", "tag_lat", "-n", "300", "-w", "30") }},
		{"ucp_put_bw", func(r *run) []string {
			return r.pair("ucx_perftest", "-t", "ucp_put_bw", "-n", "300", "-w", "30", "-s", "100000")
		}},
		{"ucp_am_bw", func(r *run) []string {
			return r.pair("ucx_perftest", "-t", "ucp_am_bw", "-n", "300", "-w", "30", "-s", "20000")
		}},
		{"self", func(r *run) []string { return r.plain("ucx_perftest", "-t", "tag_bw", "-n", "300", "-w", "30", "-l") }},
		{"client", func(r *run) []string { return r.plain(built(r.t, "tests/ucp-client"), "-s", "5") }},
		{"openmpi", func(r *run) []string { return r.mpirun(4, built(r.t, "tests/mpi-app"), "-n", "5") }},
	}
	for k, c := range tests {
		for _, mode := range needs.Modes() {
			for tls, env := range transports {
				if testing.Short() && (k > 0 || tls != "shm") {
					continue
				}
				t.Run(c.name+"/"+mode+"/"+tls, func(t *testing.T) {
					r := newRun(t, spec{mode: mode, providers: "ucx", ahead: k%2 == 0, env: env, options: downToUCT})
					r.launch(c.argv(r)...).succeed()
					i, saw := r.check("ucp", "uct")
					if i.Layer != "ucp" {
						t.Errorf("summary of layer %s", i.Layer)
					}
					r.peersOfUCT()
					if mode == "full" && k == 4 && tls == "tcp" {
						r.parents(saw["uct"])
					}
				})
			}
		}
	}
}

// peersOfUCT holds that UCT's traffic is between ranks between which there is traffic of UCP too, or which answer such. All peers are known.
func (r *run) peersOfUCT() {
	r.t.Helper()
	var m matrix
	readJSON(r.t, filepath.Join(r.path, "matrix.json"), &m)
	pairs := map[string]bool{}
	for _, row := range m.Layers["ucp"].Rank {
		pairs[fmt.Sprint(row.Source, row.Destination)] = true
		pairs[fmt.Sprint(row.Destination, row.Source)] = true
	}
	for _, row := range m.Layers["uct"].Rank {
		if row.Destination == nil || !pairs[fmt.Sprint(row.Source, row.Destination)] {
			r.t.Errorf("UCT: %d %s from %v to %v", row.Count, row.Operation, row.Source, row.Destination)
		}
	}
}

// parents holds that in the trace each operation of UCT with a parent lies in the slice of a UCP request of the same process, and that there are
// such.
func (r *run) parents(saw totals) {
	r.t.Helper()
	tp.Need(r.t)
	rows, err := tp.Query(filepath.Join(r.path, "trace.pftrace"), `
		with arg as (select arg_set_id, key, int_value as v from args where key in ('debug.request', 'debug.parent_request')),
		s as (select s.id, s.ts, s.dur, s.category, s.arg_set_id, p.upid from slice s join process_track t on t.id = s.track_id join process p using (upid)),
		lower as (select s.*, arg.v from s join arg using (arg_set_id) where category = 'uct' and key = 'debug.parent_request'),
		upper as (select s.*, arg.v from s join arg using (arg_set_id) where category = 'ucp' and key = 'debug.request')
		select 'operations', count(*) from s where category = 'uct'
		union all select 'with parent', count(*) from lower
		union all select 'in place', count(*) from lower join upper using (upid, v) where lower.ts >= upper.ts and lower.ts <= upper.ts + upper.dur`)
	if err != nil {
		r.t.Fatal(err)
	}
	got := map[string]string{}
	for _, row := range rows {
		got[row[0]] = row[1]
	}
	if got["with parent"] == "0" || got["with parent"] != got["in place"] {
		r.t.Errorf("%v of %v", got, saw)
	}
}

// A UCX whose tables are not known: UCP is recorded as ever, UCT is not, and the account and the manifest say so; the program sees nothing.
func TestUnknownUCX(t *testing.T) {
	need(t, "ucx_perftest")
	r := newRun(t, spec{mode: "full", providers: "ucx", noCount: true, env: transports["shm"]})
	cmd := r.command("sh", "-c", `LD_PRELOAD=$LD_PRELOAD:$FAKE exec "$@"`, "sh", built(t, "tests/ucp-client"), "-s", "7", "-o", "put,tag,am")
	cmd.Env = append(cmd.Env, "FAKE="+built(t, "tests/ucp-version.so"))
	r.stdout, r.stderr, r.status = execute(t, cmd)
	r.succeed()
	i := r.info()
	if len(i.Operations["ucp"]) == 0 || len(i.Operations["uct"]) != 0 || len(i.Blind) != 2 {
		t.Fatalf("%+v", i)
	}
	for _, b := range i.Blind {
		if b.Name != "layer uct" || b.Reason != "UCX 1.99.7: function table of this version is not known" {
			t.Errorf("%+v", b)
		}
	}
	if out, _, _ := execute(t, sigmatrace(t, "info", r.path)); !strings.Contains(out, "not seen: rank 1") || !strings.Contains(out, "layer uct: UCX 1.99.7") {
		t.Errorf("info says %s", out)
	}
	if text, err := os.ReadFile(filepath.Join(r.path, "manifest.json")); err != nil || strings.Count(string(text), "UCX 1.99.7") != 2 {
		t.Errorf("manifest: %v, %s", err, text)
	}
	plain := exec.Command(built(t, "tests/ucp-client"), "-s", "7", "-o", "put,tag,am")
	plain.Env = append(os.Environ(), transports["shm"]...)
	if out, _, status := execute(t, plain); status != 0 || withoutPids(out) != withoutPids(r.stdout) {
		t.Errorf("traced\n%s\nuntraced\n%s", r.stdout, out)
	}
}
