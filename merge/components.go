package merge

import (
	"fmt"
	"slices"

	"github.com/sigmatrace/sigmatrace/merge/capture"
)

// component names what a process's rank counts in: a component of a heterogeneous job, one of several mpiruns or torchruns. It is made of
// what is the same for all ranks of one: an MPI's namespace, torchrun's run and port, the job.
func component(h *capture.Header) string {
	job := h.JobValues()
	keys := []string{"SLURM_JOB_ID", "SLURM_HET_JOB_OFFSET"}
	switch h.RankSource.String() {
	case "OMPI_COMM_WORLD_RANK", "PMIX_RANK":
		keys = append(keys, "PMIX_NAMESPACE")
	case "RANK":
		keys = append(keys, "TORCHELASTIC_RUN_ID", "MASTER_PORT")
	case "SLURM_PROCID":
		keys = append(keys, "SLURM_STEP_ID")
	}
	values := make([]string, len(keys))
	for i, k := range keys {
		values[i] = job[k]
	}
	return fmt.Sprintf("%q", values)
}

// components tells the ranks of several components apart, where any two have a rank in common: each process's component, numbered in the order
// of processes. Nil where a rank's number is enough.
func (in *inventory) components() []int {
	var names []string
	of := make([]int, len(in.processes))
	first := map[int64]int{}
	shared := false
	for i, p := range in.processes {
		if p.header.Rank < 0 {
			continue
		}
		name := component(&p.header)
		if of[i] = slices.Index(names, name); of[i] < 0 {
			of[i] = len(names)
			names = append(names, name)
		}
		c, seen := first[p.header.Rank]
		shared = shared || (seen && c != of[i])
		first[p.header.Rank] = of[i]
	}
	if !shared {
		return nil
	}
	return of
}
