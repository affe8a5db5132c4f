//go:build slurm

package slurm

import (
	"strings"
	"testing"
)

// one rank pair's worth of traffic, with options of srun.
func (j *job) step(t *testing.T, options ...string) []string {
	line := append([]string{"srun", "--mpi=pmix", "-N2", "--ntasks-per-node=1", "--sigmatrace=full"}, options...)
	return append(line, built(t, "tests/mpi-app"), "-n", "2")
}

// The limits of srun's own merge are the profile's, with the site's above them; beyond them the command to run is said: in a job of its
// own where the allocation is gone, over the nodes where it goes on.
func TestLimitsOfSrunsMerge(t *testing.T) {
	for name, c := range map[string]struct {
		site    []string
		options []string
		says    string
		merged  bool
	}{
		"within all":          {nil, nil, "\nsigmatrace: run: ", true},
		"switched off":        {nil, []string{"--sigmatrace-set=merge.slurm_time=0s"}, "\nsigmatrace: merge with: sigmatrace merge RUN\n", false},
		"too large":           {nil, []string{"--sigmatrace-set=merge.slurm_bytes=4KiB"}, "KiB are more than srun merges (4KiB); merge with: sbatch --nodes=2 --partition=all --wrap='", false},
		"off at the site":     {[]string{"merge_seconds=0"}, []string{"--sigmatrace-set=merge.slurm_time=60s"}, "\nsigmatrace: merge with: sigmatrace merge RUN\n", false},
		"all cores, not nice": {nil, []string{"--sigmatrace-set=merge.slurm_workers=0", "--sigmatrace-set=merge.slurm_nice=0"}, "\nsigmatrace: run: ", true},
	} {
		t.Run(name, func(t *testing.T) {
			site(t, c.site...)
			j := newJob(t)
			j.environ = overUCX
			r := j.ok(j.step(t, c.options...)...)
			dir := j.one(r)
			if said := "\n" + strings.ReplaceAll(r.stderr, dir.Path(), "RUN"); !strings.Contains(said, c.says) {
				t.Errorf("standard error does not say %q:\n%s", c.says, said)
			}
			if got := len(manifest(t, dir).Result) > 0; got != c.merged {
				t.Errorf("merged: %v", got)
			}
			if m := manifest(t, dir); m.Run.Status == nil || m.Run.ExpectedRanks == nil || *m.Run.ExpectedRanks != 2 {
				t.Errorf("the run is not closed: %+v", m.Run)
			}
		})
	}
}
