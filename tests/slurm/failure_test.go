//go:build slurm

package slurm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// A program that sends for long enough to be ended in the middle.
func (j *job) busy(t *testing.T) []string {
	return []string{"srun", "--mpi=pmix", "-N2", "--ntasks-per-node=1", "--kill-on-bad-exit=1", "--sigmatrace=full", built(t, "tests/mpi-app"), "-n", "1000000"}
}

// started runs the command line behind and returns when both nodes have a capture, with the run directory.
func (j *job) started(t *testing.T, argv []string) (*exec.Cmd, *rundir.Dir) {
	t.Helper()
	line := append([]string{"run", "--user=" + j.user, "env", "-C", j.dir}, j.environ...)
	cmd := exec.Command("../../scripts/cluster", append(line, argv...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for range 300 {
		if names, _ := filepath.Glob(filepath.Join(j.dir, "sigmatrace-*", "capture", "*", "*.capture")); len(names) == 2 {
			time.Sleep(500 * time.Millisecond)
			return cmd, j.dirOf(j.runs()[0])
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("no captures of two ranks within 30 s")
	return nil, nil
}

// jobOf is the number in a run directory's name.
func jobOf(dir *rundir.Dir) string {
	number, _, _ := strings.Cut(strings.TrimPrefix(dir.Name(), "sigmatrace-"), ".")
	return number
}

// However a step ends, the cluster is idle afterwards and what was recorded merges, if not by srun, then by hand.
func TestWhatEndsAStep(t *testing.T) {
	for name, end := range map[string]func(root *job, id string){
		"scancel": func(root *job, id string) { root.ok("scancel", id) },
		"one task killed": func(root *job, id string) {
			root.ok("sh", "-c", "kill -KILL $(pgrep -u ann -f '^[^ ]*mpi-app -n 1000000' | head -1)")
		},
		"slurmstepd of a node killed": func(root *job, id string) {
			root.ok("sh", "-c", "kill -KILL $(pgrep -f '^slurmstepd: .'"+id+".0 | head -1)")
			time.Sleep(time.Second)
			root.ok("scancel", id) // srun itself waits for the lost node, longer than a test should
		},
		"srun killed":      func(root *job, id string) { root.ok("sh", "-c", "pkill -KILL -u ann -f '^srun .*-n 1000000'") },
		"all tasks killed": func(root *job, id string) { root.ok("scancel", "--signal=KILL", id) },
	} {
		t.Run(name, func(t *testing.T) {
			site(t)
			j := newJob(t)
			j.environ = overUCX
			cmd, dir := j.started(t, j.busy(t))
			root := &job{t: t, user: "root", dir: j.dir}
			end(root, jobOf(dir))
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Error("srun has not ended within a minute")
			}
			root.run("scancel", "--full", "--signal=KILL", jobOf(dir))
			root.run("scancel", jobOf(dir))
			idle(t)
			if name == "srun killed" {
				j.run(built(t, "bin/sigmatrace"), "merge", dir.Path())
			} else {
				merged(t, dir)
			}
			m := manifest(t, dir)
			if len(m.Result) == 0 {
				t.Fatal("the run is not merged")
			}
			if name != "srun killed" && (m.Run.Status == nil || *m.Run.Status == 0) {
				t.Errorf("the manifest has status %v", m.Run.Status)
			}
			if got := captured(t, dir); len(got) != 2 {
				t.Errorf("captures of %v", got)
			}
		})
	}
}

// A plugin that is not there, and one of another Slurm: jobs run, and only the option is unknown.
func TestPluginThatCannotBeLoaded(t *testing.T) {
	j := newJob(t)
	conf := filepath.Join(cluster, "etc", "plugstack.conf")
	other := filepath.Join(cluster, "etc", "other.so")
	source := j.write("other.c", "#include <slurm/slurm_errno.h>\nconst char plugin_name[] = \"sigmatrace\", plugin_type[] = \"spank\";\n"+
		"const unsigned plugin_version = 0x150800, spank_plugin_version = 1;\nint slurm_spank_init(void *a, int b, char **c) { return 0; }\n")
	if out, err := exec.Command("gcc", "-fPIC", "-shared", "-o", other, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, plugin := range []string{"/nonexistent/spank_sigmatrace.so", other} {
		if err := os.WriteFile(conf, []byte("optional "+plugin+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if r := j.ok("srun", "-N2", "echo", "ran"); r.stdout != "ran\nran\n" {
			t.Errorf("%s: %q", plugin, r.stdout)
		}
		if r := j.run("srun", "--sigmatrace", "true"); r.status != 255 {
			t.Errorf("%s: status %d with the option", plugin, r.status)
		}
		if out := j.batch(nil, "echo ran"); !strings.Contains(out, "ran") {
			t.Errorf("%s: the batch script printed %q", plugin, out)
		}
	}
	idle(t)
}

// A run directory that cannot be made, or that the nodes do not have: the step runs as it would without us, and srun says what is missing.
func TestRunDirectoryThatIsNotThere(t *testing.T) {
	site(t)
	j := newJob(t)
	r := j.ok("srun", "--sigmatrace", "--sigmatrace-output=/root/no", "sh", "-c", printProfile)
	if profileIn(r.stdout) != "" || !strings.Contains(r.stderr, "sigmatrace: warning: the step is not traced: its run directory could not be made\n") {
		t.Errorf("%s\n%s", r.stdout, r.stderr)
	}
	// local/ is a disk of each node's own.
	r = j.ok("srun", "-N2", "--sigmatrace", "--sigmatrace-output="+cluster+"/local/ann", "sh", "-c", printProfile)
	if profileIn(r.stdout) != "" {
		t.Errorf("the tasks printed %s", r.stdout)
	}
	idle(t)
}

// A full file system costs the trace, not the job.
func TestFullFileSystem(t *testing.T) {
	site(t)
	j := newJob(t)
	j.environ = overUCX
	small := filepath.Join(cluster, "small")
	j.ok("dd", "if=/dev/zero", "of="+small+"/filler", "bs=1k", "count=900", "status=none")
	r := j.ok("srun", "--mpi=pmix", "-N2", "--ntasks-per-node=1", "--sigmatrace=full", "--sigmatrace-output="+small, built(t, "tests/mpi-app"), "-n", "2")
	if !strings.Contains(r.stdout, "mpi-app ok 2 2") {
		t.Errorf("the program printed\n%s\n%s", r.stdout, r.stderr)
	}
	if !strings.Contains(r.stderr, "sigmatrace: incomplete: ") || !strings.Contains(r.stderr, "No space left on device") && !strings.Contains(r.stderr, "no space left on device") {
		t.Errorf("standard error does not say what is missing:\n%s", r.stderr)
	}
	j.run("sh", "-c", "rm -rf "+small+"/*")
	idle(t)
}
