//go:build slurm && release

package slurm

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What the plugin does on every release, whatever MPI that has: a step, a script's steps, one of them off and one with a profile of its own.
func TestReleaseTracesSteps(t *testing.T) {
	site(t)
	j := newJob(t)
	t.Log(strings.TrimSpace(j.ok("srun", "--version").stdout))
	j.environ = overUCX
	app := ranks(t, j)
	dir := j.one(j.ok(append([]string{"srun", "-N4", "--ntasks-per-node=2", "--sigmatrace=full"}, app...)...))
	complete(t, dir, 8)
	if got := captured(t, dir); !slices.Equal(got, []string{"n1", "n1", "n2", "n2", "n3", "n3", "n4", "n4"}) {
		t.Errorf("captures of %v", got)
	}
	if m := manifest(t, dir); m.Run.Status == nil || *m.Run.Status != 0 || m.Run.User != "ann" || m.Profile.Name != "full" {
		t.Errorf("manifest %+v, profile %s", m.Run, m.Profile.Name)
	}

	script := newJob(t)
	script.environ = overUCX
	step := strings.Join(app, " ")
	out := script.batch([]string{"-N2", "-n4", "--ntasks-per-node=2"}, "#SBATCH --sigmatrace=simple", "srun "+step, "srun --sigmatrace=off "+step,
		"srun --sigmatrace=full "+step, "echo $?")
	if got := script.kinds(); !slices.Equal(got, []string{"0", "2"}) || !strings.HasSuffix(out, "\n0\n") {
		t.Fatalf("runs of steps %v, want 0 and 2; the script printed\n%s", got, out)
	}
	for i, want := range []string{"simple", "full"} {
		dir := script.dirOf(script.runs()[i])
		if got := captured(t, dir); manifest(t, dir).Profile.Name != want || !slices.Equal(got, []string{"n1", "n1", "n2", "n2"}) {
			t.Errorf("%s: profile %q, want %q, captures of %v", dir.Path(), manifest(t, dir).Profile.Name, want, got)
		}
	}
	complete(t, script.dirOf(script.runs()[1]), 4)
	idle(t)
}

// Slurm tells the components of a heterogeneous step apart in other ways from release to release: all of them find the one run.
func TestReleaseTracesComponents(t *testing.T) {
	site(t)
	j := newJob(t)
	shell := []string{"sh", "-c", printProfile}
	line := append([]string{"srun", "--sigmatrace=full", "-n1"}, shell...)
	r := j.ok(append(append(line, ":", "-n2"), shell...)...)
	if got := strings.Count(r.stdout, "profile=full off=\n"); got != 3 {
		t.Errorf("%d of 3 tasks have the profile:\n%s\n%s", got, r.stdout, r.stderr)
	}
	dir := j.one(r)
	if m := manifest(t, dir); m.Run.ExpectedRanks == nil || *m.Run.ExpectedRanks != 3 || m.Run.Status == nil || *m.Run.Status != 0 {
		t.Errorf("manifest %+v", m.Run)
	}
	if nodes, err := filepath.Glob(filepath.Join(dir.Path(), "tasks", "*")); err != nil || len(nodes) == 0 {
		t.Errorf("no node wrote how its tasks ended: %v", err)
	}
}

// Slurm takes plugins of its own release only. That of another costs a line on standard error, and the job nothing.
func TestReleaseRefusesAnothersPlugin(t *testing.T) {
	other, err := filepath.Abs("../../build/lib/slurm/spank_sigmatrace.so")
	if err != nil {
		t.Fatal(err)
	}
	if other == built(t, "lib/slurm/spank_sigmatrace.so") {
		t.Fatal("the cluster is of this system's release")
	}
	if err := os.WriteFile(filepath.Join(cluster, "etc", "plugstack.conf"), []byte("optional "+other+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	j := newJob(t)
	if r := j.ok("srun", "-N2", "hostname"); len(strings.Fields(r.stdout)) != 2 || !strings.Contains(r.stderr, "Incompatible") {
		t.Errorf("srun printed\n%s\n%s", r.stdout, r.stderr)
	}
	if r := j.run("srun", "--sigmatrace", "hostname"); r.status != 255 || r.stdout != "" {
		t.Errorf("with the option srun's status is %d:\n%s", r.status, r.stderr)
	}
	if out := j.batch(nil, "srun hostname && echo well"); !strings.Contains(out, "\nwell\n") {
		t.Errorf("a script printed\n%s", out)
	}
	idle(t)
}
