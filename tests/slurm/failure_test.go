//go:build slurm

package slurm

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// A program that sends for long enough to be ended in the middle.
func (j *job) busy(t *testing.T) []string {
	return []string{"srun", "--mpi=pmix", "-N2", "--ntasks-per-node=1", "--kill-on-bad-exit=1", "--sigmatrace=full", built(t, "tests/mpi-app"), "-n", "1000000"}
}

// started runs the command line behind and returns when both nodes have a capture, in which there is something, with the run directory.
func (j *job) started(t *testing.T, argv []string) (*exec.Cmd, *rundir.Dir) {
	t.Helper()
	line := append([]string{"run", "--user=" + j.user, "env", "-C", j.dir}, j.environ...)
	cmd := exec.Command("../../scripts/cluster", append(line, argv...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for range 600 {
		if names, _ := filepath.Glob(filepath.Join(j.dir, "sigmatrace-*", "capture", "*", "*.capture")); len(names) == 2 {
			dir := j.dirOf(j.runs()[0])
			j.recorded(dir.Path(), 2)
			return cmd, dir
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("no captures of two ranks within 60 s")
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
			cut(t, j, dir)
			if r := j.run(built(t, "bin/sigmatrace"), "info", dir.Path()); name == "all tasks killed" {
				out := r.stdout + r.stderr // one that saw the other go may have ended by itself before it was killed
				if strings.Count(out, "(the task ended ") != 2 || !strings.Contains(out, "(the task ended by SIG") {
					t.Errorf("info does not tell what ended the tasks\n%s", out)
				}
			}
		})
	}
}

// A plugin that is not there, and one of another Slurm: jobs run, and only the option is unknown.
func TestPluginThatCannotBeLoaded(t *testing.T) {
	j := newJob(t)
	conf := filepath.Join(cluster, "etc", "plugstack.conf")
	other := filepath.Join(cluster, "etc", "other.so")
	// The plugin itself, built with the headers of a Slurm that says it is 21.08.
	headers := filepath.Join(t.TempDir(), "slurm")
	if err := os.CopyFS(headers, os.DirFS("/usr/include/slurm")); err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(#define SLURM_VERSION_NUMBER\s+)\S+`)
	text, err := os.ReadFile(filepath.Join(headers, "slurm_version.h"))
	if err != nil || !version.Match(text) {
		t.Fatalf("no version in Slurm's headers: %v", err)
	}
	if err := os.WriteFile(filepath.Join(headers, "slurm_version.h"), version.ReplaceAll(text, []byte("${1}0x150800")), 0o644); err != nil {
		t.Fatal(err)
	}
	sources, err := filepath.Glob("../../spank/*.c")
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-std=gnu11", "-fPIC", "-shared", "-isystem", filepath.Dir(headers), "-Wl,--version-script,../../spank/sigmatrace.map", "-o", other}, sources...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
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
	if profileIn(r.stdout) != "" || !strings.Contains(r.stderr, "sigmatrace: warning: the step is not traced: its run directory could not be made\nsigmatrace: hint: --sigmatrace-output=DIR") {
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
	empty := func() { j.run("sh", "-c", "rm -rf "+small+"/*") }
	empty() // of an earlier run
	t.Cleanup(empty)
	j.ok("dd", "if=/dev/zero", "of="+small+"/filler", "bs=1k", "count=900", "status=none")
	r := j.ok("srun", "--mpi=pmix", "-N2", "--ntasks-per-node=1", "--sigmatrace=full", "--sigmatrace-output="+small, built(t, "tests/mpi-app"), "-n", "2")
	if !strings.Contains(r.stdout, "mpi-app ok 2 2") {
		t.Errorf("the program printed\n%s\n%s", r.stdout, r.stderr)
	}
	said := strings.Contains(r.stderr, "sigmatrace: incomplete: ") || strings.Contains(r.stderr, "sigmatrace: warning: merging ") // or there is no room for the result
	if !said || !strings.Contains(r.stderr, "No space left on device") && !strings.Contains(r.stderr, "no space left on device") {
		t.Errorf("standard error does not say what is missing:\n%s", r.stderr)
	}
	// With room again what there is merges, and the rest is told.
	j.ok("rm", small+"/filler")
	r = j.run("sh", "-c", built(t, "bin/sigmatrace")+" merge "+small+"/sigmatrace-*.0")
	var m rundir.Manifest
	if err := json.Unmarshal([]byte(j.ok("sh", "-c", "cat "+small+"/sigmatrace-*.0/manifest.json").stdout), &m); err != nil {
		t.Fatal(err)
	}
	var info merge.Info
	if err := json.Unmarshal(m.Result, &info); err != nil {
		t.Fatalf("the run does not merge: %v\n%s", err, r.stderr)
	}
	if info.Complete() || info.Ranks.Expected == nil || *info.Ranks.Expected != 2 {
		t.Errorf("ranks %+v, lost %+v, exact %v", info.Ranks, info.Lost, info.Exact)
	}
	idle(t)
}
