package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/tests/needs"
)

var transports = map[string][]string{
	"tcp": {"UCX_TLS=tcp,self", "UCX_NET_DEVICES=lo"},
	"shm": {"UCX_TLS=posix,sysv,self"},
}

// Every operation of UCP by a program nobody here wrote, server and client in one run: counts and bytes equal the counter's.
func TestPerftestUCX(t *testing.T) {
	tests := map[string]string{ // test: the operation that it is about
		"tag_lat": "tag_send", "tag_bw": "tag_send", "ucp_put_bw": "put", "ucp_put_lat": "put", "ucp_get": "get", "ucp_am_bw": "am_send",
		"stream_bw": "stream_send", "ucp_fadd": "atomic", "ucp_cswap": "atomic",
	}
	if testing.Short() {
		tests = map[string]string{"tag_lat": "tag_send", "ucp_put_bw": "put"}
	}
	n := 0
	for test, op := range tests {
		for tls, env := range transports {
			for _, mode := range needs.Modes() {
				n++
				ahead := n%2 == 0
				t.Run(fmt.Sprintf("%s/%s/%s", test, tls, mode), func(t *testing.T) {
					r := newRun(t, spec{mode: mode, providers: "ucx", ahead: ahead, env: env})
					r.launch(r.pair("ucx_perftest", "-t", test, "-n", "300", "-w", "30", "-s", "8")...).succeed()
					i, saw := r.check("ucp")
					if v := saw["ucp"][op]; v.Count < 300 || v.Bytes != 8*v.Count {
						t.Errorf("%s: %v", op, v)
					}
					if i.Processes.Total != 2 {
						t.Errorf("%d captures of two processes", i.Processes.Total)
					}
					if mode == "full" && (i.Flows.Matched != saw["ucp"]["tag_send"].Count || len(i.Flows.Unmatched) != 0 || i.Unfinished != 0) {
						t.Errorf("flows %+v of %d messages, %d unfinished", i.Flows, saw["ucp"]["tag_send"].Count, i.Unfinished)
					}
				})
			}
		}
	}
}

// Random numbers of every operation in every form of its call; what the client says it sent is a third opinion.
func TestUCPClient(t *testing.T) {
	for k, mode := range needs.Modes() {
		for tls, env := range transports {
			t.Run(mode+"/"+tls, func(t *testing.T) {
				r := newRun(t, spec{mode: mode, providers: "ucx", ahead: (k+len(tls))%2 == 0, env: env})
				r.launch(r.plain(built(t, "tests/ucp-client"), "-s", fmt.Sprint(32078+k))...).succeed()
				i, saw := r.check("ucp")
				equal(t, "what the client says", sum(r.read("sent.")), saw["ucp"])
				if i.Ranks.Expected == nil || *i.Ranks.Expected != 2 || i.Ranks.Complete != 2 {
					t.Errorf("ranks: %+v", i.Ranks)
				}
				if mode == "full" {
					if i.Flows.Matched != saw["ucp"]["tag_send"].Count || len(i.Flows.Unmatched) != 0 || i.Unfinished != 0 {
						t.Errorf("flows %+v, unfinished %d", i.Flows, i.Unfinished)
					}
					if !testing.Short() {
						r.checkTrace(i, saw)
					}
				}
			})
		}
	}
}

// Open MPI's messages, of which the application sees only a part: all are counted, and all are matched.
func TestOpenMPI(t *testing.T) {
	for k, mode := range needs.Modes() {
		for tls, env := range transports {
			t.Run(mode+"/"+tls, func(t *testing.T) {
				r := newRun(t, spec{mode: mode, providers: "ucx", ahead: (k+len(tls))%2 == 0, env: env})
				r.launch(r.mpirun(4, built(t, "tests/mpi-app"), "-n", "5")...).succeed()
				i, saw := r.check("ucp")
				if i.Ranks.Complete != 4 || i.Processes.Total != 4 {
					t.Errorf("ranks: %+v, processes: %+v", i.Ranks, i.Processes)
				}
				own := sum(r.read("sent."))
				if got := saw["ucp"]["tag_send"]; own["mpi_send"].Count != 120 || got.Count <= own["mpi_send"].Count || got.Bytes <= own["mpi_send"].Bytes {
					t.Errorf("the program's own messages %v are not among %v", own, saw["ucp"])
				}
				// Nothing that Open MPI asks for here is left to a flush: each request has a completion of its own, immediate ones too.
				if got, want := i.Completions["ucp"], saw["ucp"]["tag_send"].Count+saw["ucp"]["tag_recv"].Count; got != want {
					t.Errorf("%d completions of %d requests", got, want)
				}
				if mode == "full" {
					if i.Flows.Matched != saw["ucp"]["tag_send"].Count || i.Flows.Ambiguous != 0 || len(i.Flows.Unmatched) != 0 || i.Unfinished != 0 {
						t.Errorf("flows %+v of %d messages, %d unfinished", i.Flows, saw["ucp"]["tag_send"].Count, i.Unfinished)
					}
					if tls == "shm" || !testing.Short() {
						r.checkTrace(i, saw)
					}
				}
			})
		}
	}
}

// With provider ibverbs and no device there is nothing to record: no capture, the program's output and status untouched.
func TestNoDevice(t *testing.T) {
	if _, err := os.Stat("/sys/class/infiniband"); err == nil {
		t.Skip("this machine has RDMA devices")
	}
	perftest := []string{"UCX_TLS=tcp,self", "UCX_NET_DEVICES=lo"}
	for _, c := range []struct {
		argv []string
		env  []string
	}{
		{argv: []string{"ibv_devices"}},
		{argv: []string{"ibv_devinfo"}},
		{argv: []string{"ib_write_bw", "-n", "5"}},
		{argv: []string{built(t, "tests/dlv-client")}},
		{argv: []string{"ucx_info", "-v"}, env: perftest},
		{argv: []string{built(t, "tests/ucp-client"), "-n", "2", "-s", "3", "-o", "put,tag,am"}, env: perftest},
	} {
		t.Run(c.argv[0][strings.LastIndex(c.argv[0], "/")+1:], func(t *testing.T) {
			need(t, c.argv[0])
			r := newRun(t, spec{mode: "full", providers: "ibverbs", noCount: true, env: c.env}).launch(c.argv...)
			plain := exec.Command(c.argv[0], c.argv[1:]...)
			plain.Env = append(os.Environ(), c.env...)
			out, errs, status := execute(t, plain)
			if r.status != status || withoutPids(r.stdout) != withoutPids(out) || !strings.HasPrefix(r.stderr, errs) {
				t.Errorf("traced: %d\n%s%s\nuntraced: %d\n%s%s", r.status, r.stdout, r.stderr, status, out, errs)
			}
			if i := r.info(); i.Processes.Total != 0 || len(i.Operations) != 0 || i.Events.Total != 0 {
				t.Errorf("something was captured: %+v", i)
			}
		})
	}
}

// withoutPids takes the numbers of processes out of the clients' lines, and their order.
func withoutPids(text string) string {
	lines := map[string]int{}
	for line := range strings.Lines(text) {
		if _, rest, ok := strings.Cut(line, `"ops":`); ok {
			line = rest
		}
		lines[line]++
	}
	var b strings.Builder
	for _, line := range slices.Sorted(maps.Keys(lines)) {
		fmt.Fprintf(&b, "%d %s", lines[line], line)
	}
	return b.String()
}
