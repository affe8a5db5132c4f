//go:build slurm

package slurm

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// One line on srun's command line gives one merged run: every rank of every node, messages between nodes matched, all of it the user's.
func TestStepGivesOneMergedRun(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	j.environ = overUCX
	r := j.ok("srun", "--mpi=pmix", "-N4", "--ntasks-per-node=2", "--sigmatrace=full", built(t, "tests/mpi-app"), "-n", "3")
	dir := j.one(r)
	complete(t, dir, 8)
	if got := captured(t, dir); !slices.Equal(got, []string{"n1", "n1", "n2", "n2", "n3", "n3", "n4", "n4"}) {
		t.Errorf("captures of %v", got)
	}
	m := manifest(t, dir)
	if m.Run.Dialect != "slurm" || m.Run.Status == nil || *m.Run.Status != 0 || m.Run.User != "ann" || m.Profile.Name != "full" {
		t.Errorf("manifest %+v, profile %s", m.Run, m.Profile.Name)
	}
	if want := []string{"/tests/mpi-app", "-n", "3"}; len(m.Run.Command) != 3 || !strings.HasSuffix(m.Run.Command[0], want[0]) || !slices.Equal(m.Run.Command[1:], want[1:]) {
		t.Errorf("command %q", m.Run.Command)
	}
	if !strings.Contains(r.stderr, "\nsigmatrace: run: "+dir.Path()+"\n") {
		t.Errorf("standard error does not name the run:\n%s", r.stderr)
	}
	err := filepath.WalkDir(dir.Path(), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && (info.Mode().Perm()&0o077 != 0 || info.Sys().(*syscall.Stat_t).Uid != 61001) {
			t.Errorf("%s: mode %v, owner %d", path, info.Mode(), info.Sys().(*syscall.Stat_t).Uid)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// A UCX program of two steps at once, and steps that share nodes: each has a run of its own.
func TestStepsAtTheSameTimeHaveARunEach(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	j.environ = overUCX
	app := built(t, "tests/mpi-app")
	out := j.batch([]string{"-N2", "--ntasks-per-node=2", "--sigmatrace=full"}, "for i in 1 2 3; do srun --overlap --mpi=pmix -n4 "+app+" -n 2 & done; wait")
	want := []string{"0", "1", "2"}
	var got []string
	for _, name := range j.runs() {
		got = append(got, name[strings.LastIndexByte(name, '.')+1:])
		complete(t, j.dirOf(name), 4)
	}
	if !slices.Equal(got, want) {
		t.Errorf("runs of steps %v, want %v\n%s", got, want, out)
	}
}

// Without being asked the plugin does nothing: the environment of a task is what it is without the plugin, and no file appears.
func TestNothingHappensUnasked(t *testing.T) {
	j := newJob(t)
	environment := func() []string {
		var kept []string
		for line := range strings.Lines(j.ok("srun", "-w", "n1,n2", "env").stdout) {
			if name, _, _ := strings.Cut(line, "="); !ofOneJob[name] {
				kept = append(kept, line)
			}
		}
		slices.Sort(kept)
		return kept
	}
	if err := os.WriteFile(filepath.Join(cluster, "etc", "plugstack.conf"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	without := environment()
	site(t)
	with := environment()
	for _, line := range with {
		if !slices.Contains(without, line) {
			t.Errorf("with the plugin the environment has %s", line)
		}
	}
	for _, line := range without {
		if !slices.Contains(with, line) {
			t.Errorf("without the plugin the environment has %s", line)
		}
	}
	if list, err := os.ReadDir(j.dir); err != nil || len(list) > 0 {
		t.Errorf("files %v, %v", list, err)
	}
}

// ofOneJob are the variables that differ between two jobs.
var ofOneJob = map[string]bool{"SLURM_JOB_ID": true, "SLURM_JOBID": true, "SLURM_SRUN_COMM_PORT": true, "SLURM_STEP_LAUNCHER_PORT": true,
	"SLURM_TASK_PID": true, "SLURM_STEP_RESV_PORTS": true, "SLURM_JOB_START_TIME": true, "SLURM_JOB_SLUID": true, "SLURM_JOB_END_TIME": true}

// F16: a task's prolog, shells and helpers have the recorder in their environment; they work as before and leave no capture.
func TestF16ShellsAndHelpersLeaveNoCapture(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	prolog := j.write("prolog", "#!/bin/sh\nls / >/dev/null && echo export PROLOG=done\n")
	r := j.ok("srun", "-n2", "--sigmatrace", "--task-prolog="+prolog, "--task-epilog=/bin/true", "sh", "-c", "echo $PROLOG; ls /nonexistent; exec true")
	if r.stdout != "done\ndone\n" {
		t.Errorf("the tasks printed %q", r.stdout)
	}
	if strings.Contains(r.stderr, "ld.so") {
		t.Errorf("standard error\n%s", r.stderr)
	}
	dir := j.one(r)
	if got := captured(t, dir); len(got) > 0 {
		t.Errorf("captures of %v", got)
	}
	if m := manifest(t, dir); m.Run.Status == nil || *m.Run.Status != 0 {
		t.Errorf("status %v", m.Run.Status)
	}
}

// The step's status, and the signal that ended it, are in the manifest as the nodes saw them; srun's own status is what it is without us.
func TestStatusOfAStep(t *testing.T) {
	t.Parallel()
	site(t)
	for _, c := range []struct {
		script string
		status int
		signal string
	}{
		{"exit 7", 7, ""},
		{`[ $SLURM_PROCID = 0 ] || exit 3`, 3, ""},
		{"kill -SEGV $$", 139, "SIGSEGV"},
	} {
		j := newJob(t)
		plain := j.run("srun", "-N2", "sh", "-c", c.script)
		r := j.run("srun", "-N2", "--sigmatrace", "sh", "-c", c.script)
		if r.status != plain.status || r.status != c.status {
			t.Errorf("%s: status %d, without us %d, want %d", c.script, r.status, plain.status, c.status)
		}
		m := manifest(t, j.one(r))
		if m.Run.Status == nil || *m.Run.Status != c.status || (m.Run.Signal == nil) != (c.signal == "") || m.Run.Signal != nil && *m.Run.Signal != c.signal {
			t.Errorf("%s: the manifest has status %v and signal %v", c.script, m.Run.Status, m.Run.Signal)
		}
	}
}

// F17: what a task would preload without us stays, in its order, behind ours: the one object of the selection, or its parts where there is none.
func TestF17PreloadIsPrepended(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	libdir := filepath.Dir(built(t, "lib/sigmatrace/libsigmatrace.so"))
	const own = "/lib/x86_64-linux-gnu/libdl.so.2:/lib/x86_64-linux-gnu/librt.so.1"
	for providers, want := range map[string]string{
		"ucx,libfabric,ibverbs,mlx5dv": libdir + "/libsigmatrace.ibverbs+libfabric+mlx5dv+ucx.so",
		"ucx,libfabric,ibverbs":        libdir + "/libsigmatrace.ibverbs+libfabric+ucx.so",
		"ucx,ibverbs":                  libdir + "/libsigmatrace.so:" + libdir + "/provider-ucx.so:" + libdir + "/provider-ibverbs.so",
	} {
		j.environ = []string{"LD_PRELOAD=" + own}
		r := j.ok("srun", "--sigmatrace", "--sigmatrace-set=providers="+providers, "sh", "-c", "echo $LD_PRELOAD")
		if got := strings.TrimSpace(r.stdout); got != want+":"+own {
			t.Errorf("%s: the task has\n%s\nwant\n%s", providers, got, want+":"+own)
		}
	}
	j.environ = nil
	out := j.batch([]string{"--sigmatrace=full"}, "srun --sigmatrace-set=providers=ucx sh -c 'echo $LD_PRELOAD'")
	if want := libdir + "/libsigmatrace.ucx.so\n"; !strings.Contains(out, want) {
		t.Errorf("in a traced script a step has\n%swant\n%s", out, want)
	}
}
