//go:build slurm

package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// kinds are the run directories of a job's folder by what follows the job's number: "batch", "0", ...
func (j *job) kinds() []string {
	j.t.Helper()
	var list []string
	for _, name := range j.runs() {
		list = append(list, name[strings.LastIndexByte(name, '.')+1:])
	}
	slices.Sort(list)
	return list
}

// mpirun in a batch script forks the ranks of the first node itself and has Slurm start its daemons on the others: all of them are in the
// script's run. Its own ways of handing variables on still work.
func TestMpirunInABatchScript(t *testing.T) {
	site(t)
	j := newJob(t)
	j.environ = overUCX
	app := built(t, "tests/mpi-app")
	out := j.batch([]string{"-N4", "-n8", "--ntasks-per-node=2"}, "#SBATCH --sigmatrace=full", "export MINE=7", "mpirun "+app+" -n 3 && echo first well",
		"mpirun -x MINE "+app+" -n 2 && echo second well", "ls / >/dev/null; env true")
	if !strings.Contains(out, "first well") || !strings.Contains(out, "second well") {
		t.Errorf("the script printed\n%s", out)
	}
	if got := j.kinds(); !slices.Equal(got, []string{"batch"}) {
		t.Fatalf("runs %v, want that of the batch script", got)
	}
	dir := j.dirOf(j.runs()[0])
	complete(t, dir, 8)
	var want []string
	for i := range 4 {
		for range 4 { // two ranks of two programs
			want = append(want, fmt.Sprintf("n%d", i+1))
		}
	}
	if got := captured(t, dir); !slices.Equal(got, want) {
		t.Errorf("captures of %v, want %v", got, want)
	}
	if m := manifest(t, dir); m.Run.Status == nil || *m.Run.Status != 0 || !slices.Equal(m.Run.Command, []string{"batch script"}) {
		t.Errorf("manifest %+v", m.Run)
	}
	idle(t)
	nothingAlive(t)
}

// A script that only starts steps leaves no run of its own, nor do steps in which nothing was recorded.
func TestScriptWithoutCommunicationLeavesNothing(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	j.batch([]string{"--sigmatrace=full"}, "srun hostname", "ls")
	if got := j.runs(); len(got) > 0 {
		t.Errorf("run directories %v", got)
	}
}

// --export takes variables away from steps and scripts, not the tracing.
func TestExport(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	for _, argv := range [][]string{
		{"srun", "--sigmatrace=full", "--export=NONE", "/bin/sh", "-c", printProfile},
		{"srun", "--sigmatrace=full", "--export=MINE=1", "/bin/sh", "-c", printProfile},
		{"srun", "--sigmatrace=full", "--export=HOME", "/bin/sh", "-c", printProfile},
	} {
		if got := profileIn(j.ok(argv...).stdout); got != "full" {
			t.Errorf("%q: profile %q", argv, got)
		}
	}
	inner := " /bin/sh -c '" + printProfile + "'"
	out := j.batch([]string{"--export=NONE", "--sigmatrace=full"}, printProfile, "srun"+inner, "srun --export=NONE"+inner, "srun --export=HOME"+inner)
	if strings.Count(out, "profile=full off=\n") != 4 {
		t.Errorf("the script and its steps printed\n%s", out)
	}
	id := strings.TrimSpace(j.ok("sbatch", "--parsable", "--output=wrapped", "--sigmatrace=full", "--wrap=srun"+inner).stdout)
	j.ended(id)
	if got := profileIn(j.read("wrapped")); got != "full" {
		t.Errorf("--wrap: profile %q", got)
	}
}

// Each task of an array has a run of its own name.
func TestArray(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	j.environ = overUCX
	id := j.submit([]string{"--array=1-2", "-n2", "--sigmatrace=full"}, "srun --mpi=pmix "+built(t, "tests/mpi-app")+" -n 2")
	j.ended(id)
	if got, want := j.runs(), []string{"sigmatrace-" + id + "_1.0", "sigmatrace-" + id + "_2.0"}; !slices.Equal(got, want) {
		t.Fatalf("runs %v, want %v", got, want)
	}
	for _, name := range j.runs() {
		complete(t, j.dirOf(name), 2)
	}
}

// The components of a heterogeneous step are one run, with the ranks of all.
func TestHeterogeneousStep(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	j.environ = overUCX
	app := built(t, "tests/mpi-app")
	r := j.run("srun", "--mpi=pmix", "--sigmatrace=full", "-n1", app, "-n", "2", ":", "-n2", app, "-n", "2")
	dir := j.one(r)
	if m := manifest(t, dir); m.Run.ExpectedRanks == nil || *m.Run.ExpectedRanks != 3 {
		t.Errorf("expected ranks %v, want 3", m.Run.ExpectedRanks)
	}
	if r.status != 0 {
		t.Logf("srun's status is %d: not every Slurm runs MPI over components", r.status)
	}
	if got := captured(t, dir); r.status == 0 && len(got) != 3 {
		t.Errorf("captures of %v", got)
	}
}

// In salloc's shell on the submitting host srun and mpirun are traced by what salloc was given, and mpirun's ranks are one run.
func TestSalloc(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	j.environ = overUCX
	app := built(t, "tests/mpi-app")
	j.ok("salloc", "--quiet", "-N2", "-n4", "--ntasks-per-node=2", "--sigmatrace=full", "sh", "-c", "srun --mpi=pmix "+app+" -n 2; mpirun "+app+" -n 2")
	if got := j.kinds(); !slices.Equal(got, []string{"0", "1"}) {
		t.Fatalf("runs %v, want those of two steps", got)
	}
	for _, name := range j.runs() {
		merged(t, j.dirOf(name)) // mpirun does not wait for the srun that it started
		complete(t, j.dirOf(name), 4)
	}
}

// merged waits for the end of a merge that goes on behind the command.
func merged(t *testing.T, dir *rundir.Dir) {
	t.Helper()
	for range 600 {
		if m := manifest(t, dir); len(m.Result) > 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// The interactive step is like a batch script: its mpirun's ranks are its run.
func TestInteractiveStep(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	j.environ = overUCX
	commands := j.write("commands", "mpirun "+built(t, "tests/mpi-app")+" -n 2 && echo well\n")
	r := j.run("sh", "-c", "salloc --quiet -N2 -n4 --ntasks-per-node=2 --sigmatrace=full <"+commands)
	if !strings.Contains(r.stdout, "well") {
		t.Fatalf("the shell printed\n%s\n%s", r.stdout, r.stderr)
	}
	if got := j.kinds(); !slices.Equal(got, []string{"interactive"}) {
		t.Fatalf("runs %v", got)
	}
	complete(t, j.dirOf(j.runs()[0]), 4)
}

// What was started again has a run of its own.
func TestRequeue(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	j.environ = overUCX
	app := built(t, "tests/mpi-app")
	id := j.submit([]string{"-n2", "--requeue", "--sigmatrace=full"}, "srun --mpi=pmix "+app+" -n 2", "touch once-$SLURM_RESTART_COUNT",
		"[ -n \"$SLURM_RESTART_COUNT\" ] || sleep 60")
	j.requeue(id)
	if got, want := j.runs(), []string{"sigmatrace-" + id + ".0", "sigmatrace-" + id + ".r1.0"}; !slices.Equal(got, want) {
		t.Errorf("runs %v, want %v", got, want)
	}
	for _, name := range j.runs() {
		complete(t, j.dirOf(name), 2)
	}
}

// `sigmatrace launch` in a traced job has the run: the plugin leaves its step, and its mpirun's, alone.
func TestLaunchInATracedJob(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	j.environ = overUCX
	app := built(t, "tests/mpi-app")
	launch := built(t, "bin/sigmatrace") + " launch -p full -o "
	out := j.batch([]string{"-N2", "-n4", "--ntasks-per-node=2", "--sigmatrace=simple"}, launch+"by-srun -- srun --mpi=pmix "+app+" -n 2",
		launch+"by-mpirun -- mpirun "+app+" -n 2")
	for _, name := range []string{"by-srun", "by-mpirun"} {
		complete(t, j.dirOf(name), 4)
	}
	if got := j.runs(); len(got) > 0 {
		t.Errorf("other runs %v\n%s", got, out)
	}
}

// The nodes do not need the files of the profile that a job was submitted with.
func TestProfileTravels(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	profile := j.write("mine.toml", "extends = \"full\"\n[record]\nbudget = \"9MiB\"\n")
	id := j.submit([]string{"--sigmatrace=" + profile, "--hold"}, "cat $SIGMATRACE_CONFIG", `srun sh -c 'cat $SIGMATRACE_CONFIG'`, "exec 2>&1", "srun --sigmatrace=full true; echo $?")
	if err := os.Remove(profile); err != nil {
		t.Fatal(err)
	}
	j.ok("scontrol", "release", id)
	j.ended(id)
	if out := j.read("out"); strings.Count(out, "\nname=mine\nmode=full\n") != 2 || strings.Count(out, "\nrecord.budget=9437184\n") != 2 || !strings.HasSuffix(out, "\n0\n") && !strings.HasPrefix(out, "0\n") {
		t.Errorf("the script printed\n%s", out)
	}
}

// A job that a traced script submits has a run of its own, or none, and writes nothing into the script's. The merge at a script's end is nice and has
// little time: other tests' ranks, which spin, would leave it none.
func TestScriptThatSubmits(t *testing.T) {
	site(t)
	j := newJob(t)
	j.environ = overUCX
	app := built(t, "tests/mpi-app")
	j.write("second", "#!/bin/bash\necho \"config=$SIGMATRACE_CONFIG\"\nmpirun -n 2 "+app+" -n 2\n")
	out := j.batch([]string{"-n2", "--sigmatrace=full"}, "sbatch --wait -n2 --output=second.out --sigmatrace=off second", "sbatch --wait -n2 --output=third.out second",
		"mpirun -n 2 "+app+" -n 2")
	if got := j.read("second.out"); !strings.HasPrefix(got, "config=\n") {
		t.Errorf("the second job, which is off, printed\n%s", got)
	}
	runs := j.runs()
	if len(runs) != 2 || len(j.kinds()) != 2 {
		t.Fatalf("runs %v, want those of the first and the third job\n%s", runs, out)
	}
	for _, name := range runs {
		if got := captured(t, j.dirOf(name)); len(got) != 2 {
			t.Errorf("%s has captures of %v", name, got)
		}
		complete(t, j.dirOf(name), 2)
	}
}

// A script that is cancelled has no time for a merge: its run is closed, says so, and merges by hand.
func TestScriptThatIsCancelled(t *testing.T) {
	site(t)
	j := newJob(t)
	j.environ = overUCX
	id := j.submit([]string{"-N2", "-n2", "--ntasks-per-node=1", "--sigmatrace=full"}, "mpirun "+built(t, "tests/mpi-app")+" -n 1000000")
	for range 600 {
		if names, _ := filepath.Glob(filepath.Join(j.dir, "sigmatrace-*", "capture", "*", "*.capture")); len(names) == 2 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	j.ok("scancel", id)
	j.ended(id)
	idle(t)
	dir := j.dirOf("sigmatrace-" + id + ".batch")
	m := manifest(t, dir)
	if m.Run.End == nil || m.Run.Status == nil || *m.Run.Status == 0 || len(m.Result) > 0 {
		t.Errorf("the manifest says end %v, status %v, result of %d bytes", m.Run.End, m.Run.Status, len(m.Result))
	}
	r := j.run(built(t, "bin/sigmatrace"), "merge", dir.Path())
	if got := captured(t, dir); len(got) != 2 || len(manifest(t, dir).Result) == 0 {
		t.Errorf("captures of %v; the merge says\n%s", got, r.stderr)
	}
}
