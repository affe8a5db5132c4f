package ofi

import (
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// With the providers that profiles have by themselves, each program is summed up by the layer that it uses; the others have nothing to
// say. mpi-app is the same whatever library Open MPI and MPICH take.
func TestSummaryLayer(t *testing.T) {
	need(t, "mpirun", "mpirun.mpich", "mpicc.mpich")
	mpich := filepath.Join(t.TempDir(), "mpi-app")
	if out, err := exec.Command("mpicc.mpich", "-O2", "-Wno-stringop-overflow", "-o", mpich, "../clients/mpi-app.c").CombinedOutput(); err != nil {
		t.Fatalf("building the client: %v\n%s", err, out)
	}
	openMPI := func(args ...string) []string {
		line := []string{"mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", "--mca", "plm", "isolated"}
		return append(append(line, args...), built(t, "tests/mpi-app"), "-n", "3")
	}
	for _, c := range []struct {
		name  string
		argv  []string
		layer string   // "": nothing is captured
		also  []string // further layers with operations
	}{
		{"openmpi-ucx", openMPI("--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any", "--mca", "btl", "^openib"), "ucp", []string{"uct"}},
		{"openmpi-mtl-ofi", openMPI("--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "tcp", "--mca", "btl", "^openib"), "ofi", nil},
		{"openmpi-btl-ofi", openMPI("--mca", "pml", "ob1", "--mca", "btl", "ofi,self", "--mca", "btl_ofi_mode", "2", "--mca", "osc", "rdma"), "ofi", nil},
		{"openmpi-shared-memory", openMPI("--mca", "pml", "ob1", "--mca", "btl", "vader,self"), "", nil},
		{"mpich-ucx", []string{"env", "UCX_TLS=posix,sysv,self", "mpirun.mpich", "-n", "2", mpich, "-n", "3"}, "ucp", []string{"uct"}},
		{"fi_info", []string{"fi_info", "-p", "tcp"}, "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &run{t: t, dir: t.TempDir(), shipped: true}
			if out, err := r.command("full", c.argv...).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			i := r.info()
			var layer string
			if i.Layer != nil {
				layer = *i.Layer
			}
			want := c.also
			if c.layer != "" {
				want = append(slices.Clone(c.also), c.layer)
			}
			var have []string
			for l, ops := range i.Operations {
				for _, x := range ops {
					if x.Count > 0 {
						have = append(have, l)
						break
					}
				}
			}
			slices.Sort(have)
			slices.Sort(want)
			if layer != c.layer || !slices.Equal(have, want) || (c.layer == "") != (i.Processes.Total == 0) {
				t.Errorf("summed up by %q, operations of %v, of %d processes", layer, have, i.Processes.Total)
			}
		})
	}
}
