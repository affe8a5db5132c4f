package launchers

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/tests/needs"
)

func TestSlurm(t *testing.T) {
	c := startCluster(t)
	app := needs.Built(t, "tests/mpi-app")
	scratch := []string{"--set", "record.scratch=" + c.scratch}

	t.Run("TwoNodesWriteToTheSharedRunDirectory", func(t *testing.T) {
		r, run := c.launch(t, true, nil, "srun", "--mpi=pmix", "-n2", "--ntasks-per-node=1", app, "-n", "3")
		r.succeed(t).says(t, "sigmatrace: captures of 2 nodes go to the run directory (")
		complete(t, run, 2)
		if got := nodes(t, run); !slices.Equal(got, []string{"n1", "n2"}) {
			t.Errorf("captures of %v", got)
		}
	})

	t.Run("ScratchOfTwoNodesIsCollected", func(t *testing.T) {
		r, run := c.launch(t, true, scratch, "srun", "--mpi=pmix", "-n2", "--ntasks-per-node=1", app, "-n", "3")
		r.succeed(t).says(t, "sigmatrace: captures of 2 nodes stay in "+c.scratch)
		complete(t, run, 2)
		if got := nodes(t, run); !slices.Equal(got, []string{"n1", "n2"}) {
			t.Errorf("captures of %v", got)
		}
		left, _ := c.run(t, true, "srun", "-N2", "ls", "-A", c.scratch)
		if left.succeed(t).stdout != "" {
			t.Errorf("left on the nodes: %s", left.stdout)
		}
	})

	t.Run("ScratchUnderMpirunIsCollected", func(t *testing.T) {
		r, run := c.launch(t, true, scratch, "mpirun", "--map-by", "node", "--oversubscribe", "-np", "2", app, "-n", "3")
		r.succeed(t)
		complete(t, run, 2)
		if got := nodes(t, run); !slices.Equal(got, []string{"n1", "n2"}) {
			t.Errorf("captures of %v", got)
		}
	})

	// A step that fills the allocation and forbids sharing must not keep the collecting step out, nor a failed command.
	t.Run("ScratchIsCollectedAfterAFailure", func(t *testing.T) {
		r, run := c.launch(t, true, scratch, "srun", "--exclusive", "--exact", "-n2", "--ntasks-per-node=1", "sh", "-c", "exit 7")
		if r.status != 7 {
			t.Errorf("status %d, want 7\n%s", r.status, r.stderr)
		}
		if got := alive(t, run); !slices.Equal(got, []string{"n1 0 SLURM_PROCID", "n2 1 SLURM_PROCID"}) {
			t.Errorf("proofs of life %v", got)
		}
	})

	t.Run("ScratchWithoutAnAllocationIsRefused", func(t *testing.T) {
		r, run := c.launch(t, false, scratch, "srun", "-N2", "touch", "ran")
		if r.status != 1 {
			t.Errorf("status %d, want 1", r.status)
		}
		r.says(t, "sigmatrace: error: record.scratch keeps captures on the nodes, and nothing would bring them home: ")
		for _, name := range []string{run, filepath.Join(filepath.Dir(run), "ran")} {
			if _, err := os.Stat(name); err == nil {
				t.Errorf("%s was made", name)
			}
		}
	})

	t.Run("F15ExportOfNothingOrOfOneVariable", func(t *testing.T) {
		for _, export := range []string{"--export=NONE", "--export=MYVAR=1", "--export=ALL,MYVAR=1", "--export=HOME"} {
			plain, _ := c.run(t, false, "srun", "-n1", "-w", "n1", export, "/usr/bin/env")
			r, _ := c.launch(t, false, []string{"--no-merge"}, "srun", "-n1", "-w", "n1", export, "/usr/bin/env")
			with, without := variables(r.succeed(t).stdout), variables(plain.succeed(t).stdout)
			if !strings.Contains(with["LD_PRELOAD"], "/libsigmatrace.") || !strings.HasSuffix(with["SIGMATRACE_CONFIG"], "/run/profile.resolved") {
				t.Errorf("%s: the task has LD_PRELOAD=%s SIGMATRACE_CONFIG=%s", export, with["LD_PRELOAD"], with["SIGMATRACE_CONFIG"])
			}
			delete(with, "LD_PRELOAD")
			delete(with, "SIGMATRACE_CONFIG")
			delete(with, "NVTX_INJECTION64_PATH") // the recorder's own, set in the process
			for name, value := range without {
				if with[name] != value && !ofOneJob.MatchString(name) {
					t.Errorf("%s: %s is %q, without us %q", export, name, with[name], value)
				}
			}
			for name := range with {
				if _, had := without[name]; !had {
					t.Errorf("%s: %s is set, without us it is not", export, name)
				}
			}
		}
	})

	// A file of variables is an option of sbatch's, which srun refuses with us as without; what such a job starts is traced as any other.
	t.Run("F15FileOfVariables", func(t *testing.T) {
		vars := filepath.Join(c.dir, "vars")
		text := strings.Join([]string{"PATH=" + os.Getenv("PATH"), "SLURM_CONF=" + filepath.Join(c.dir, "slurm.conf"), "MYVAR=1", ""}, "\x00")
		if err := os.WriteFile(vars, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		plain, _ := c.run(t, false, "srun", "-n1", "--export-file="+vars, "true")
		r, _ := c.launch(t, false, []string{"--no-merge"}, "srun", "-n1", "--export-file="+vars, "true")
		if plain.status == 0 || r.status != plain.status {
			t.Errorf("status %d, without us %d", r.status, plain.status)
		}
		r.says(t, "srun: unrecognized option '--export-file=")
		wrap := needs.Built(t, "bin/sigmatrace") + " launch --no-merge --providers ucx -o run -- srun -n1 env"
		job, dir := c.run(t, false, "sbatch", "--quiet", "--wait", "-n1", "--export-file="+vars, "-o", "out", "--wrap", wrap)
		out, err := os.ReadFile(filepath.Join(dir, "out"))
		if err != nil || job.status != 0 {
			t.Fatalf("sbatch ended with %d, %v\n%s%s", job.status, err, job.stderr, out)
		}
		got := variables(string(out))
		if got["MYVAR"] != "1" || !strings.HasSuffix(got["LD_PRELOAD"], "/libsigmatrace.ucx.so") || got["SIGMATRACE_CONFIG"] != filepath.Join(dir, "run", "profile.resolved") {
			t.Errorf("the task's environment\n%s", out)
		}
	})

	// The task prolog has the task's environment; it runs well there and srun itself, which runs --prolog, has no preload at all.
	t.Run("F16PreloadIsOfTheTaskNotOfSrun", func(t *testing.T) {
		prolog := filepath.Join(c.dir, "srun-prolog")
		text := "#!/bin/sh\necho \"preload=$LD_PRELOAD config=$SIGMATRACE_CONFIG\" >" + c.dir + "/of-srun\n"
		if err := os.WriteFile(prolog, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		r, _ := c.launch(t, false, []string{"--no-merge"}, "srun", "-n1", "--prolog="+prolog, "sh", "-c", "echo $PROLOG $LD_PRELOAD")
		if !strings.HasPrefix(r.succeed(t).stdout, "done /") {
			t.Errorf("the task printed %q", r.stdout)
		}
		if strings.Contains(r.stderr, "ld.so") || strings.Contains(r.stderr, "rolog") {
			t.Errorf("standard error\n%s", r.stderr)
		}
		if got, err := os.ReadFile(filepath.Join(c.dir, "of-srun")); err != nil || string(got) != "preload= config=\n" {
			t.Errorf("srun has %q, %v", got, err)
		}
	})

	t.Run("F17PreloadIsPrepended", func(t *testing.T) {
		own := "/lib/x86_64-linux-gnu/libdl.so.2"
		for _, argv := range [][]string{
			{"srun", "-n1", "--export=ALL,LD_PRELOAD=" + own, "sh", "-c", "echo $LD_PRELOAD"},
			{"srun", "-n1", "--export=LD_PRELOAD=" + own, "/bin/sh", "-c", "echo $LD_PRELOAD"},
		} {
			r, _ := c.launch(t, false, []string{"--no-merge"}, argv...)
			if got := r.succeed(t).stdout; !regexp.MustCompile(`^/[^:]*/libsigmatrace.ucx.so:` + own + `\n$`).MatchString(got) {
				t.Errorf("%q: the task has %s", argv, got)
			}
		}
	})

	t.Run("F21HeterogeneousStep", func(t *testing.T) {
		echo := `echo "$0 $SLURM_PROCID $LD_PRELOAD"`
		r, run := c.launch(t, false, []string{"--no-merge"}, "srun", "-n1", "--export=NONE", "/bin/sh", "-c", echo, "a", ":", "-n2", "sh", "-c", echo, "b")
		lines := strings.Split(strings.TrimSpace(r.succeed(t).stdout), "\n")
		slices.Sort(lines)
		for i, want := range []string{"a 0 /", "b 1 /", "b 2 /"} {
			if len(lines) != 3 || !strings.HasPrefix(lines[i], want) || !strings.Contains(lines[i], "/libsigmatrace.") {
				t.Fatalf("tasks printed\n%s", r.stdout)
			}
		}
		if flat, err := os.ReadFile(filepath.Join(run, "profile.resolved")); err != nil || !strings.Contains(string(flat), "\nrun.world=3\n") {
			t.Errorf("the flat profile does not say 3 ranks: %v\n%s", err, flat)
		}
	})

	t.Run("F21SeveralProgramsOfAFile", func(t *testing.T) {
		conf := filepath.Join(c.dir, "programs")
		if err := os.WriteFile(conf, []byte("0 "+app+" -n 2\n1-2 "+app+" -n 2\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		r, run := c.launch(t, false, nil, "srun", "--mpi=pmix", "-n3", "--multi-prog", conf)
		r.succeed(t)
		complete(t, run, 3)
	})

	// The agents are Slurm's tasks 0 and 1; the ranks that they start are 0 to 3.
	t.Run("F22TorchrunUnderSrun", func(t *testing.T) {
		agent := filepath.Join(c.dir, "torchrun")
		text := "#!/bin/sh\nfor i in 0 1; do RANK=$((SLURM_PROCID * 2 + i)) LOCAL_RANK=$i WORLD_SIZE=4 TORCHELASTIC_RUN_ID=x /bin/true; done\n"
		if err := os.WriteFile(agent, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		r, run := c.launch(t, true, []string{"--no-merge"}, "srun", "-n2", "--ntasks-per-node=1", agent, "--nproc-per-node=2", "train.py")
		r.succeed(t)
		got := slices.DeleteFunc(alive(t, run), func(a string) bool { return strings.HasSuffix(a, "SLURM_PROCID") })
		if want := []string{"n1 0 RANK", "n1 1 RANK", "n2 2 RANK", "n2 3 RANK"}; !slices.Equal(got, want) {
			t.Errorf("ranks %v, want %v", got, want)
		}
		if flat, err := os.ReadFile(filepath.Join(run, "profile.resolved")); err != nil || !strings.Contains(string(flat), "\nrun.world=4\n") {
			t.Errorf("the flat profile does not say 4 ranks: %v\n%s", err, flat)
		}
	})

	// MPICH's proxies are started on both nodes by Slurm; whatever they keep of the environment, ranks have the preload and proxies have not.
	t.Run("F15HydraOnTwoNodes", func(t *testing.T) {
		need(t, "mpiexec.hydra")
		show := filepath.Join(c.dir, "show")
		text := `#!/bin/sh
echo "rank $PMI_RANK on $(hostname) ${LD_PRELOAD##*/} $(cat /proc/$PPID/comm) $(tr '\0' '\n' </proc/$PPID/environ | grep -c ^LD_PRELOAD)"
sleep 2
`
		if err := os.WriteFile(show, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{"-genvlist PATH -n 2 -ppn 1 SHOW", "-genvnone -n 2 -ppn 1 SHOW", "-n 1 -envlist PATH SHOW : -n 1 -envnone SHOW"} {
			r, _ := c.launch(t, true, []string{"--no-merge"}, strings.Fields("mpiexec.hydra "+strings.ReplaceAll(line, "SHOW", show))...)
			lines := strings.Split(strings.TrimSpace(r.succeed(t).stdout), "\n")
			slices.Sort(lines)
			if want := []string{"rank 0 on n1 libsigmatrace.ucx.so hydra_pmi_proxy 0", "rank 1 on n2 libsigmatrace.ucx.so hydra_pmi_proxy 0"}; !slices.Equal(lines, want) {
				t.Errorf("%s: %q, want %q", line, lines, want)
			}
		}
	})

	t.Run("StatusIsSruns", func(t *testing.T) {
		r, _ := c.launch(t, false, []string{"--no-merge"}, "srun", "-n1", "sh", "-c", "exit 7")
		if r.status != 7 {
			t.Errorf("status %d, want 7\n%s", r.status, r.stderr)
		}
	})
}

// ofOneJob are the variables that differ between two jobs.
var ofOneJob = regexp.MustCompile(`^(SLURM_(JOB_?ID|SRUN_COMM_PORT|STEP_LAUNCHER_PORT|TASK_PID|SUBMIT_DIR|LAUNCH_NODE_IPADDR|JOB_START_TIME|JOB_END_TIME)|PWD|OLDPWD|_)$`)

// variables reads what env(1) prints.
func variables(text string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, is := strings.Cut(strings.TrimSuffix(line, "\n"), "="); is {
			all[name] = value
		}
	}
	return all
}
