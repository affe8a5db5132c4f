//go:build slurm

package slurm

import (
	"strings"
	"testing"
)

// ranks are srun's words and the program for an MPI step on this cluster: Open MPI by PMIx where Slurm was built with it, else MPICH by PMI-2.
func ranks(t *testing.T, j *job) []string {
	t.Helper()
	if list := j.ok("srun", "--mpi=list"); strings.Contains(list.stdout+list.stderr, "pmix") {
		return []string{"--mpi=pmix", built(t, "tests/mpi-app"), "-n", "2"}
	}
	return []string{"--mpi=pmi2", built(t, "tests/mpi-app-mpich"), "-n", "2"}
}
