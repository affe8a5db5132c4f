//go:build slurm

package slurm

import (
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// nodeLocal makes a step's captures stay on its nodes until the last task of each has ended: in the disk of each node's own, local/.
func nodeLocal(more ...string) []string {
	return append([]string{"--sigmatrace=full", "--sigmatrace-set=record.scratch=" + cluster + "/local", "--sigmatrace-set=record.budget=1MiB"}, more...)
}

// program is an MPI program that calls UCX.
func (j *job) program(nodes string, options ...string) []string {
	j.environ = overUCX
	return append(append([]string{"srun", "--mpi=pmix", "-N" + nodes, "--ntasks-per-node=2"}, options...), built(j.t, "tests/mpi-app"), "-n", "5")
}

// placed checks where the nodes had their captures, and returns their accounts.
func placed(t *testing.T, dir *rundir.Dir, place string, nodes int) []rundir.Node {
	t.Helper()
	list := manifest(t, dir).Run.Nodes
	if len(list) != nodes {
		t.Fatalf("the manifest has %d nodes, want %d: %+v", len(list), nodes, list)
	}
	for _, n := range list {
		if n.Place != place || n.Bandwidth <= 0 || n.Bytes <= 0 || n.Reason == "" {
			t.Errorf("%+v, want place %s with its numbers", n, place)
		}
		if place != rundir.PlaceShared && (n.Collected == nil || n.Collected.Files == 0 || len(n.Collected.Left) > 0 || n.Collected.Packed == 0) {
			t.Errorf("%s: collected %+v", n.Part, n.Collected)
		}
	}
	return list
}

func TestCapturesInScratchAreCollected(t *testing.T) {
	site(t)
	j := newJob(t)
	r := j.ok(j.program("4", nodeLocal()...)...)
	dir := j.one(r)
	complete(t, dir, 8)
	placed(t, dir, rundir.PlaceScratch, 4)
	idle(t)
}
