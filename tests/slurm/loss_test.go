//go:build slurm

package slurm

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// ends waits for the command, a minute at most.
func ends(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("srun has not ended within a minute")
	}
}

// recorded waits until the captures of so many ranks are there with something in them: a capture is made by the first call, which may be seconds
// before anything is sent.
func (j *job) recorded(run string, ranks int) {
	j.t.Helper()
	var r result
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if names, _ := filepath.Glob(filepath.Join(run, "capture", "*", "*.capture")); len(names) != ranks {
			continue
		}
		r = j.run(built(j.t, "bin/sigmatrace"), "info", "--json", run)
		var info merge.Info
		if json.Unmarshal([]byte(r.stdout), &info) == nil && info.Events.Total > 0 {
			return
		}
	}
	j.t.Fatalf("nothing was recorded of %d ranks within two minutes\n%s%s", ranks, r.stdout, r.stderr)
}

// cut checks a run whose two ranks were ended in the middle: it merges, if srun had no time for it by hand, with what both recorded; the ranks
// expected are those that Slurm counted, none is taken for complete, and each is named as cut short.
func cut(t *testing.T, j *job, dir *rundir.Dir) *rundir.Manifest {
	t.Helper()
	m := manifest(t, dir)
	if len(m.Result) == 0 {
		r := j.run(built(t, "bin/sigmatrace"), "merge", dir.Path())
		if m = manifest(t, dir); len(m.Result) == 0 {
			t.Fatalf("the run does not merge: status %d\n%s", r.status, r.stderr)
		}
	}
	var info merge.Info
	if err := json.Unmarshal(m.Result, &info); err != nil {
		t.Fatal(err)
	}
	if info.Complete() || info.Ranks.Expected == nil || *info.Ranks.Expected != 2 || info.Ranks.Complete != 0 || info.Events.Total == 0 {
		t.Errorf("ranks %+v, %d events", info.Ranks, info.Events.Total)
	}
	if got := captured(t, dir); len(got) != 2 {
		t.Errorf("captures of %v", got)
	}
	r := j.run(built(t, "bin/sigmatrace"), "info", dir.Path())
	for rank := range 2 {
		if want := fmt.Sprintf("incomplete: rank %d pid ", rank); !strings.Contains(r.stdout+r.stderr, want) {
			t.Errorf("info has no %q\n%s", want, r.stdout)
		}
	}
	return m
}

// A node that is lost in the middle of a step: the node's daemon, the step's and its task are gone at once, and Slurm finds it out.
func TestNodeIsLost(t *testing.T) {
	site(t)
	j := newJob(t)
	j.environ = overUCX
	cmd, dir := j.started(t, []string{"srun", "--mpi=pmix", "-w", "n1,n2", "--ntasks-per-node=1", "--sigmatrace=full", built(t, "tests/mpi-app"), "-n", "1000000"})
	root := &job{t: t, user: "root", dir: j.dir}
	// What is left of the node is a shell that keeps its network and disk, and becomes its daemon when it is to come back.
	holder := j.write("holder", `#!/bin/bash
exec </dev/null >/dev/null 2>&1
for p in $(pgrep -f '^slurmstepd: '); do [ "$(readlink /proc/$p/ns/net)" != "$(readlink /proc/self/ns/net)" ] || kill -KILL $p $(pgrep -P $p); done
kill -KILL $(cat `+cluster+`/run/n2.pid)
echo $$ >`+cluster+`/run/n2.pid
: >gone
until [ -e back ]; do sleep 0.1; done
exec slurmd -D -N n2
`)
	root.on("n2", "setsid", "--fork", holder)
	root.ok("timeout", "60", "sh", "-c", "until [ -e gone ]; do sleep 0.1; done")
	root.ok("scontrol", "update", "nodename=n2", "state=down", "reason=lost")
	ends(t, cmd)
	if err := os.WriteFile(filepath.Join(j.dir, "back"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	root.ok("timeout", "100", "sh", "-c", "until scontrol show node n2 | grep -q State=IDLE; do scontrol update nodename=n2 state=resume; sleep 0.5; done")
	idle(t)
	if m := cut(t, j, dir); m.Run.Status == nil || *m.Run.Status == 0 {
		t.Errorf("the manifest has status %v", m.Run.Status)
	}
	if r := j.ok("srun", "-w", "n2", "hostname"); r.stdout != "n2\n" {
		t.Errorf("on the node that has come back srun prints %q", r.stdout)
	}
}

// A job of a partition that goes before takes the nodes away.
func TestStepIsPreempted(t *testing.T) {
	site(t)
	configure(t, func(conf string) string {
		return strings.Replace(conf, "PartitionName=quiet", "PreemptType=preempt/partition_prio\nPreemptMode=CANCEL\nPartitionName=quiet PriorityTier=10", 1)
	}, func(root *job, changed bool) bool {
		return strings.Contains(root.ok("scontrol", "show", "config").stdout, "preempt/partition_prio") == changed
	})
	j := newJob(t)
	j.environ = overUCX
	cmd, dir := j.started(t, append(j.busy(t)[:1], append([]string{"--exclusive"}, j.busy(t)[1:]...)...))
	if r := j.ok("srun", "-p", "quiet", "-N4", "--exclusive", "echo", "before all"); strings.Count(r.stdout, "before all\n") != 4 {
		t.Errorf("the job that goes before printed %q", r.stdout)
	}
	ends(t, cmd)
	idle(t)
	if m := cut(t, j, dir); m.Run.Status == nil || *m.Run.Status == 0 {
		t.Errorf("the manifest has status %v", m.Run.Status)
	}
}

// A job's time is up, in a script with a step: Slurm looks at limits twice a minute. The tasks are stopped meanwhile, since other tests run.
func TestTimeLimit(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	j.environ = overUCX
	const program = "mpi-app -n 1000002" // of this test alone
	id := j.submit([]string{"-N2", "--ntasks-per-node=1", "--time=1", "--sigmatrace=full"}, "srun --mpi=pmix "+filepath.Dir(built(t, "tests/mpi-app"))+"/"+program)
	run := filepath.Join(j.dir, "sigmatrace-"+id+".0")
	j.recorded(run, 2)
	root := &job{t: t, user: "root", dir: j.dir}
	root.ok("sh", "-c", "kill -STOP $(pgrep -f '^[^ ]*"+program+"')")
	root.ok("timeout", "240", "sh", "-c", "while squeue -h -j "+id+" 2>/dev/null | grep -q .; do sleep 0.5; done")
	if out := j.read("out"); !strings.Contains(out, "DUE TO TIME LIMIT") {
		t.Errorf("the script printed\n%s", out)
	}
	if m := cut(t, j, j.dirOf("sigmatrace-"+id+".0")); m.Run.Status != nil && *m.Run.Status == 0 {
		t.Errorf("the manifest has status %v", m.Run.Status)
	}
	if out := root.ok("sinfo", "-h", "-p", "all", "-t", "down,drain,drained,draining,fail,unknown", "-o", "%N").stdout; strings.TrimSpace(out) != "" {
		t.Errorf("nodes %s are out of use", out)
	}
}

// A site's profiles that users cannot read: who asks for one is told, and everything else runs.
func TestProfileDirectoryThatCannotBeRead(t *testing.T) {
	dir := filepath.Join(cluster, "etc", "profiles-unreadable")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ours.toml"), []byte("extends = \"full\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	site(t, "profile_dir="+dir, "default_profile=ours")
	j := newJob(t)
	for _, argv := range [][]string{{"srun", "--sigmatrace=ours", "true"}, {"srun", "--sigmatrace", "true"}, {"sbatch", "--sigmatrace=ours", "--wrap=true"}} {
		if r := j.run(argv...); r.status != 255 || !strings.Contains(r.stderr, "unknown profile \"ours\" ("+dir+" cannot be read)\n") {
			t.Errorf("%v: status %d\n%s", argv, r.status, r.stderr)
		}
	}
	if got := j.traced("srun", "-N2"); got != "" {
		t.Errorf("an srun that does not ask has profile %q", got)
	}
	if out := j.batch(nil, "echo ran", printProfile); !strings.Contains(out, "ran\n") || profileIn(out) != "" {
		t.Errorf("a batch script that does not ask printed\n%s", out)
	}
	if got := j.traced("srun", "--sigmatrace=full"); got != "full" {
		t.Errorf("a built-in profile: %q", got)
	}
	idle(t)
}
