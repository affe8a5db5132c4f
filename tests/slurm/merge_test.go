//go:build slurm

package slurm

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/rundir"
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
		if strings.Contains(r.stderr, "no process called a library") { // and its run was removed
			t.Errorf("the merge's own step was traced:\n%s", r.stderr)
		}
	}
	if r := j.run(sigmatrace, "merge", "--slurm", dir.Path()); r.status != 2 || !strings.Contains(r.stderr, "sigmatrace: hint: run it in salloc or in a batch script\n") {
		t.Errorf("without an allocation: status %d\n%s", r.status, r.stderr)
	}
	idle(t)
}

// A worker that is killed in mid-merge costs its units' time: the others do them, and the bytes are the same.
func TestWorkerOfAMergeIsKilled(t *testing.T) {
	site(t)
	j := newJob(t)
	dir := j.generated(t, 6, 25_000)
	sigmatrace := built(t, "bin/sigmatrace")
	j.ok(sigmatrace, "merge", exports, dir.Path())
	want := results(t, dir)
	// One is killed when the first unit was begun. Until then workers go on for moments only: looking may take longer than the merge.
	kill := `exec 2>/dev/null
	workers() {
		pgrep -u ann -f 'merge --worker=.*'` + dir.Name() + ` | while read -r p; do
			case $(cut -d' ' -f2,3 /proc/$p/stat) in *Z) ;; "(sigmatrace)"*) echo $p ;; esac
		done
	}
	until [ -e over ]; do
		set -- $(workers)
		[ $# = 0 ] || kill -STOP "$@"
		for f in ` + dir.Path() + `/.merge-*/p*-*.1; do
			[ -e "$f" ] && [ $# != 0 ] || continue
			kill -KILL $1 && echo killed $1
			kill -CONT "$@"
			exit
		done
		[ $# = 0 ] || kill -CONT "$@"
		sleep 0.02
		[ $# = 0 ] || kill -STOP "$@"
	done
	kill -CONT "$@"`
	r := j.ok("salloc", "--quiet", "-N2", "sh", "-c", "("+kill+") & "+sigmatrace+" merge --slurm "+exports+" "+dir.Path()+"; s=$?; touch over; wait; exit $s")
	if !strings.Contains(r.stdout, "killed ") || !strings.Contains(r.stderr, "sigmatrace: warning: not all workers of the merge have ended well") {
		t.Errorf("no worker was killed:\n%s\n%s", r.stdout, r.stderr)
	}
	sameResults(t, results(t, dir), want)
	idle(t)
}

// Captures beyond the limit are merged over the nodes of the allocation by srun itself, as long as that goes on.
func TestStepInAnAllocationMergesOverItsNodes(t *testing.T) {
	site(t)
	j := newJob(t)
	j.environ = overUCX
	line := strings.Join(j.step(t, "--sigmatrace-set=merge.slurm_bytes=4KiB"), " ")
	r := j.ok("salloc", "--quiet", "-N2", "--ntasks-per-node=1", "sh", "-c", line)
	dir := j.one(r)
	complete(t, dir, 2)
	if !strings.Contains(r.stderr, "KiB are more than srun merges alone (4KiB)\n") || !strings.Contains(r.stderr, "sigmatrace: units of the merge by node: n") {
		t.Errorf("standard error says\n%s", r.stderr)
	}
	idle(t)
}

// A job that depends on the traced one merges its run, by the script that is shipped, and by the line that srun prints.
func TestMergeAsADependentJob(t *testing.T) {
	site(t)
	j := newJob(t)
	j.environ = overUCX
	script, err := filepath.Abs("../../scripts/merge.sbatch")
	if err != nil {
		t.Fatal(err)
	}
	traced := j.submit([]string{"-N2", "--ntasks-per-node=1"}, strings.Join(j.step(t, "--sigmatrace-set=merge.at_job_end=false"), " "))
	after := strings.TrimSpace(j.ok("sbatch", "--parsable", "--dependency=afterany:"+traced, "--nodes=2", "--export=ALL,SIGMATRACE_COMMAND="+built(t, "bin/sigmatrace"), script,
		j.dir+"/sigmatrace-"+traced+".*").stdout)
	j.ended(after)
	if dir := j.dirOf("sigmatrace-" + traced + ".0"); len(manifest(t, dir).Result) == 0 {
		t.Fatalf("it is not merged:\n%s", j.read("sigmatrace-merge-"+after+".out"))
	}
	complete(t, j.dirOf("sigmatrace-"+traced+".0"), 2)

	r := j.ok(j.step(t, "--sigmatrace-set=merge.slurm_bytes=4KiB")...)
	_, line, found := strings.Cut(r.stderr, "sigmatrace: merge with: ")
	if line, _, _ = strings.Cut(line, "\n"); !found {
		t.Fatalf("srun says\n%s", r.stderr)
	}
	out := j.ok("sh", "-c", line+" --output=printed").stdout // sbatch takes options behind --wrap as well
	j.ended(strings.Fields(out)[3])
	_, run, _ := strings.Cut(line, "/sigmatrace-")
	number, _, _ := strings.Cut(run, ".")
	complete(t, j.dirOf("sigmatrace-"+number+".0"), 2)
	idle(t)
}

// recording waits until both nodes of a batch script's mpirun have a capture.
func (j *job) recording(t *testing.T, id string) *rundir.Dir {
	t.Helper()
	for range 600 {
		if names, _ := filepath.Glob(filepath.Join(j.dir, "sigmatrace-"+id+".batch", "capture", "*", "*.capture")); len(names) == 2 {
			return j.dirOf("sigmatrace-" + id + ".batch")
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("no captures of two ranks within a minute")
	return nil
}

// A batch script that is cancelled, or reaches its time limit, has its run closed, and its output says what merges it; one that ends in order
// has it merged, and its output says where it is.
func TestEndOfABatchScript(t *testing.T) {
	for name, c := range map[string]struct {
		count string
		end   func(root *job, id string)
		says  string
	}{
		"in order":   {"2", func(*job, string) {}, "\nsigmatrace: run: RUN\n"},
		"cancelled":  {"1000000", func(root *job, id string) { root.ok("scancel", id) }, "\nsigmatrace: merge with: sigmatrace merge RUN\n"},
		"time limit": {"1000000", func(root *job, id string) { root.ok("scontrol", "update", "jobid="+id, "EndTime=now") }, "\nsigmatrace: merge with: sigmatrace merge RUN\n"},
	} {
		t.Run(name, func(t *testing.T) {
			site(t)
			j := newJob(t)
			j.environ = overUCX
			id := j.submit([]string{"-N2", "-n2", "--ntasks-per-node=1", "--sigmatrace=full"}, "mpirun "+built(t, "tests/mpi-app")+" -n "+c.count)
			dir := j.recording(t, id)
			c.end(&job{t: t, user: "root", dir: j.dir}, id)
			j.ended(id)
			idle(t)
			if out := "\n" + strings.ReplaceAll(j.read("out"), dir.Path(), "RUN"); !strings.Contains(out, c.says) {
				t.Errorf("the script's output does not say %q:\n%s", c.says, out)
			}
			m := manifest(t, dir)
			if m.Run.End == nil || m.Run.Status == nil || (*m.Run.Status == 0) != (name == "in order") || (len(m.Result) > 0) != (name == "in order") {
				t.Errorf("the manifest says end %v, status %v, result of %d bytes", m.Run.End, m.Run.Status, len(m.Result))
			}
			r := j.run(built(t, "bin/sigmatrace"), "merge", dir.Path())
			if got := captured(t, dir); len(got) != 2 || len(manifest(t, dir).Result) == 0 {
				t.Errorf("captures of %v; the merge says\n%s", got, r.stderr)
			}
		})
	}
}
