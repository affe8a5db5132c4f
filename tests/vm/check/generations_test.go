//go:build vm

package check

import (
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// The libraries of Debian 13: the same as on Debian 12.
func TestDebian13(t *testing.T) {
	allOf(t, "debian13", append(libfabric, []program{
		{"write_bw", "full", 2, totals{"verbs write": {500, 2048000}, "verbs completion": {5, 0}}, messages{}}, // one of 100 asks for a completion
		{"send_bw-cm", "full", 2, nil, messages{matched: true}},
		{"rc_pingpong", "full", 2, totals{"verbs send": {1000, 4096000}, "verbs completion": {2000, 0}}, messages{matched: true}},
		{"peers", "full", 2, twice(peerClient(20)), messages{matched: true}},
		{"client-full", "full", 1, nil, messages{matched: true}},
		{"client-wr", "full", 1, nil, messages{matched: true, unsure: true}}, // as on Debian 12
		{"dlvsym", "full", 1, totals{"verbs write": {200, 409600}, "verbs completion": {200, 0}}, messages{}},
		{"ucp-client", "full", 2, nil, messages{matched: true, unpolled: 4, unsure: true}},
		{"mpi", "full", 2, nil, messages{matched: true, unpolled: 4, unsure: true}},
		{"three", "full", 2, nil, messages{matched: true, unpolled: 4, unsure: true}},
	}...))
}

// rdma-core 33, whose rxe has no ibv_wr_*.
func TestDebian11(t *testing.T) {
	allOf(t, "debian11", []program{
		{"write_bw", "full", 2, totals{"verbs write": {500, 2048000}, "verbs completion": {5, 0}}, messages{}},
		{"rc_pingpong", "full", 2, totals{"verbs send": {1000, 4096000}, "verbs completion": {2000, 0}}, messages{matched: true}},
		{"peers", "full", 2, twice(peerClient(20)), messages{matched: true}},
		{"client-full", "full", 1, nil, messages{matched: true}},
		{"dlvsym", "full", 1, totals{"verbs write": {200, 409600}, "verbs completion": {200, 0}}, messages{}},
	})
	clientsOf(t, "debian11", map[string]int{"peers": 2, "client-full": 1}, "verbs")
}

func TestClientsDebian13(t *testing.T) {
	clientsOf(t, "debian13", map[string]int{"peers": 2, "client-full": 1, "client-wr": 1}, "verbs")
	clientsOf(t, "debian13", map[string]int{"ofi-msg": 2, "ofi-rxm": 2}, "ofi")
	clientsOf(t, "debian13", map[string]int{"ucp-client": 2}, "ucp")
}

func TestPeersDebian13(t *testing.T) { load(t, "debian13", "rc_pingpong").peersAsInKernel(2) }

// "three" has all providers in one process.
func TestRanksDebian13(t *testing.T) {
	for name, layers := range map[string][]string{"mpi": {"ucp", "uct", "verbs"}, "mpi-ofi": {"ofi", "verbs"}, "three": {"ofi", "ucp", "uct", "verbs"}} {
		t.Run(name, func(t *testing.T) { ranksOf(load(t, "debian13", name), layers, "rig", "rig") })
	}
}

func TestTraceDebian13(t *testing.T) {
	for _, name := range []string{"client-full", "three"} {
		t.Run(name, func(t *testing.T) { load(t, "debian13", name).importsCleanly() })
	}
}

// The machines' libraries are those that they are there for: rdma-core 33, then 56, libfabric 2.1, UCX 1.18, Open MPI 5.0; and the captures say so.
func TestLibraries(t *testing.T) {
	for script, libraries := range map[string][]string{
		"debian11": {"libibverbs.so.1.11.33.", "librdmacm.so.1.3.33."},
		"debian13": {"libibverbs.so.1.14.56.", "librdmacm.so.1.3.56.", "libmpi.so.40.40."},
	} {
		files := strings.Fields(string(exists(t, build("vm", "out", script, "libraries"))))
		for _, want := range libraries {
			if !slices.ContainsFunc(files, func(f string) bool { return strings.HasPrefix(f, want) }) {
				t.Errorf("%s: no %s* among %v", script, want, files)
			}
		}
	}
	told := 0
	definitions(t, "debian13", "three", func(d *capture.Definition) {
		switch d.ID {
		case catalogue.DefUcpVersion:
			told++
			if v := d.String(catalogue.DefUcpVersionVersion); !strings.HasPrefix(v, "1.18.") {
				t.Errorf("UCX %s", v)
			}
		case catalogue.DefOfiVersion:
			told++
			if v := d.Uint(catalogue.DefOfiVersionVersion); v != 2<<16|1 {
				t.Errorf("libfabric %#x", v)
			}
		}
	})
	if told != 4 {
		t.Errorf("%d versions told by two processes", told)
	}
}
