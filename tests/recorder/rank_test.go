package recorder

import (
	"path/filepath"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
)

// F22: what has no MPI must not look like rank 0 in every process, and what several launchers have handed down must not be mistaken for the
// process's own rank.
func TestF22RankIsThatOfTheInnermostLauncher(t *testing.T) {
	client := build(t)
	slurm := []string{"SLURM_PROCID=0", "SLURM_NTASKS=2"}
	for _, c := range []struct {
		name        string
		environ     []string
		source      string
		rank, world int64
	}{
		{"Open MPI under Slurm", append(slurm, "OMPI_COMM_WORLD_RANK=5", "OMPI_COMM_WORLD_SIZE=8"), "OMPI_COMM_WORLD_RANK", 5, 8},
		{"Hydra under Slurm", append(slurm, "PMI_RANK=3", "PMI_SIZE=4"), "PMI_RANK", 3, 4},
		{"torchrun", []string{"RANK=6", "LOCAL_RANK=2", "WORLD_SIZE=8"}, "RANK", 6, 8},
		{"torchrun's agents are Slurm's tasks", append(slurm, "RANK=6", "LOCAL_RANK=2", "WORLD_SIZE=16"), "RANK", 6, 16},
		{"torchrun's agents are MPI's ranks", []string{"PMI_RANK=1", "PMI_SIZE=2", "PMIX_RANK=1", "TORCHELASTIC_RUN_ID=x", "RANK=9", "WORLD_SIZE=16"}, "RANK", 9, 16},
		{"torchrun's agents are Flux's tasks", []string{"FLUX_TASK_RANK=1", "FLUX_JOB_SIZE=2", "RANK=9", "WORLD_SIZE=16"}, "RANK", 9, 16},
		{"a RANK of the user's beside MPI", []string{"RANK=0", "PMI_RANK=1", "PMI_SIZE=2"}, "PMI_RANK", 1, 2},
		{"Flux", []string{"FLUX_TASK_RANK=1", "FLUX_JOB_SIZE=2"}, "FLUX_TASK_RANK", 1, 2},
		{"PALS", []string{"PALS_RANKID=7", "PMI_SIZE=8"}, "PALS_RANKID", 7, 8},
		{"ALPS", []string{"ALPS_APP_PE=7"}, "ALPS_APP_PE", 7, -1},
		{"JSM", []string{"JSM_NAMESPACE_RANK=7", "JSM_NAMESPACE_SIZE=8"}, "JSM_NAMESPACE_RANK", 7, 8},
		{"Slurm", []string{"SLURM_PROCID=1", "SLURM_NTASKS=2"}, "SLURM_PROCID", 1, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			env, captures := configure(t, t.TempDir(), nil)
			run(t, append(env, c.environ...), client, "idle")
			names, _ := filepath.Glob(captures + "/*/alive")
			if len(names) != 1 {
				t.Fatalf("proofs of life %v, want one", names)
			}
			a, err := capture.ReadAlive(names[0])
			if err != nil || len(a) != 1 {
				t.Fatalf("%v, %v", a, err)
			}
			if a[0].Rank != c.rank || a[0].World != c.world || a[0].RankSource.String() != c.source {
				t.Errorf("rank %d of %d by %s, want %d of %d by %s", a[0].Rank, a[0].World, a[0].RankSource, c.rank, c.world, c.source)
			}
		})
	}
}

// A batch script, and the shell of an interactive step, have SLURM_PROCID=0 and the job's SLURM_NTASKS: no process in them is rank 0 of that.
func TestProcessesOfABatchScriptHaveNoRank(t *testing.T) {
	client := build(t)
	for _, c := range []struct {
		environ []string
		proofs  int
	}{
		{[]string{"SLURM_JOB_ID=7", "SLURM_PROCID=0", "SLURM_NTASKS=8"}, 0},
		{[]string{"SLURM_JOB_ID=7", "SLURM_PROCID=0", "SLURM_STEP_ID=4294967290"}, 0},
		{[]string{"SLURM_JOB_ID=7", "SLURM_PROCID=0", "SLURM_STEP_ID=12"}, 1},
	} {
		env, captures := configure(t, t.TempDir(), nil)
		run(t, append(env, c.environ...), client, "idle")
		if names, _ := filepath.Glob(captures + "/*/alive"); len(names) != c.proofs {
			t.Errorf("%v: proofs of life %v, want %d", c.environ, names, c.proofs)
		}
	}
}
