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
		"too large":           {nil, []string{"--sigmatrace-set=merge.slurm_bytes=4KiB"}, "KiB are more than srun merges alone (4KiB)\nsigmatrace: merge with: sbatch --nodes=2 --partition=all --wrap='", false},
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

// all exports, so that their bytes can be compared.
const exports = "--exports=perfetto,json,parquet,matrix"

func sameResults(t *testing.T, got, want map[string]string) {
	t.Helper()
	if len(want) < 8 { // manifest, matrix, two traces, index and tables
		t.Fatalf("the plain merge left %d files", len(want))
	}
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%s differs: %d bytes, by the plain merge %d", name, len(got[name]), len(text))
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d files, by the plain merge %d", len(got), len(want))
	}
}

// A merge as a job step gives the same bytes on one, two and four nodes as the plain one, and is itself not traced.
func TestMergeAsAJobStep(t *testing.T) {
	site(t, "default_profile=full")
	j := newJob(t)
	dir := j.generated(t, 6, 25_000)
	sigmatrace := built(t, "bin/sigmatrace")
	j.ok(sigmatrace, "merge", exports, dir.Path())
	want := results(t, dir)
	for _, nodes := range []string{"1", "2", "4"} {
		r := j.ok("salloc", "--quiet", "-N"+nodes, sigmatrace, "merge", "--slurm", exports, dir.Path())
		sameResults(t, results(t, dir), want)
		if _, list, _ := strings.Cut(r.stderr, "sigmatrace: units of the merge by node: n"); list == "" || nodes == "1" && strings.Contains(list, ", n") {
			t.Errorf("on %s nodes the merge said\n%s", nodes, r.stderr)
		}
	}
	if got := j.runs(); len(got) != 1 {
		t.Errorf("runs %v: the merge's own steps were traced", got)
	}
	if r := j.run(sigmatrace, "merge", "--slurm", dir.Path()); r.status != 2 || !strings.Contains(r.stderr, "sigmatrace: hint: run it in salloc or in a batch script\n") {
		t.Errorf("without an allocation: status %d\n%s", r.status, r.stderr)
	}
	idle(t)
}
