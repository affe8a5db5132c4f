//go:build roots

package roots

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// UCX's function tables: those of Debian 13 are known, those of Debian 11 are not, and the account says so.
func TestUCT(t *testing.T) {
	programs := []program{
		{name: "ucp-client/shm", env: shm, argv: []string{"/tests/tests/ucp-client", "-n", "40"}, processes: 2},
		{name: "ucp-client/tcp", env: tcp, argv: []string{"/tests/tests/ucp-client", "-n", "40", "-s", "7"}, processes: 2},
		{name: "openmpi", env: shm, processes: 4,
			argv: openMPI("4", "--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any", "/tests/tests/mpi-app-openmpi", "-n", "5")},
	}
	for _, name := range allRoots {
		t.Run(name, func(t *testing.T) {
			root := need(t, name)
			for _, p := range programs {
				t.Run(p.name, func(t *testing.T) {
					p.providers, p.counted = "ucx", []string{"ucp"}
					if name == "debian13" {
						p.counted = append(p.counted, "uct")
					}
					work := p.launch(t, root)
					p.check(t, work)
					blind := blindOf(t, work+"/run/manifest.json")
					if name == "debian13" {
						if len(blind) != 0 {
							t.Errorf("%+v", blind)
						}
						return
					}
					for _, b := range blind {
						if b.Name != "layer uct" || !strings.HasPrefix(b.Reason, "UCX 1.10.") {
							t.Errorf("%+v", b)
						}
					}
					if len(blind) != p.processes || len(read(t, work+"/run/capture").tables["uct"]) != 0 {
						t.Errorf("UCT of %d processes is not recorded, of %d: %+v", len(blind), p.processes, blind)
					}
				})
			}
		})
	}
}

// blindOf reads what the merge's account says was not seen.
func blindOf(t *testing.T, path string) []merge.Blind {
	t.Helper()
	var m rundir.Manifest
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		t.Fatal(err)
	}
	info, err := merge.ParseInfo(m.Result)
	if err != nil {
		t.Fatal(err)
	}
	return info.Blind
}
