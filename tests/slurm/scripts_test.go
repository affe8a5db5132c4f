//go:build slurm

package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// withScripts gives the cluster, for a test, a prolog and an epilog of jobs and of tasks that write down their environment; the tasks' prolog
// also sets a variable and prints, by Slurm's rules for it. The folder is where they write, each file all at once.
func withScripts(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(cluster, "etc", "scripts")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	lines := ""
	for _, name := range []string{"Prolog", "Epilog", "TaskProlog", "TaskEpilog"} {
		script := fmt.Sprintf("#!/bin/sh\numask 022\n/usr/bin/env >%[1]s/.$$\n/bin/mv %[1]s/.$$ %[1]s/%[2]s.$SLURM_JOB_ID.$$\n/bin/ls / >/dev/null || exit 1\n", dir, name)
		if name == "TaskProlog" {
			script += "echo export PROLOG=done\necho print from the prolog\necho unset GONE\n"
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		lines += name + "=" + path + "\n"
	}
	// The nodes are told of it, and do not say when they have read it.
	configure(t, func(conf string) string { return conf + lines }, func(root *job, changed bool) bool {
		root.ok("srun", "-N4", "--chdir=/", "true")
		names, err := filepath.Glob(filepath.Join(dir, "TaskProlog.*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
		return changed && len(names) == 4 || !changed && len(names) == 0
	})
	return dir
}

// environments are what the scripts of this name have written for the job, waited for until there are so many.
func environments(t *testing.T, dir, name, id string, n int) [][]string {
	t.Helper()
	var all [][]string
	for range 300 {
		names, err := filepath.Glob(filepath.Join(dir, name+"."+id+".*"))
		if err != nil {
			t.Fatal(err)
		}
		all = nil
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, strings.Split(strings.TrimSpace(string(text)), "\n"))
		}
		if len(all) >= n {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if len(all) != n {
		t.Errorf("%s of job %s has run %d times, want %d", name, id, len(all), n)
	}
	return all
}

// ours are the variables that are of the plugin's making, or name what is ours.
func ours(environment []string) (list []string) {
	for _, line := range environment {
		name, value, _ := strings.Cut(line, "=")
		if name == "SIGMATRACE_CLUSTER" { // of those who brought the cluster up
			continue
		}
		if strings.Contains(name, "SIGMATRACE") || strings.Contains(name, "sigmatrace") || strings.Contains(name, "PRELOAD") || strings.Contains(value, "libsigmatrace") {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

// F16: with a tasks' prolog and epilog set up for the cluster, tasks of traced steps and scripts get what the prolog says, print what they print
// without us, and only the ranks have captures: not these scripts, shells, MPI's daemons or helpers. Variables given to mpirun reach all ranks.
// The job's prolog and epilog and the external step have nothing in their environment but Slurm's own form of the options.
func TestF16ScriptsOfTheSite(t *testing.T) {
	site(t)
	written := withScripts(t)
	j := newJob(t)
	j.environ = append(slices.Clone(overUCX), "GONE=here")
	show := "sh -c 'echo \"PROLOG=$PROLOG GONE=$GONE\"; ls / >/dev/null'"
	lines := []string{"srun -N2 -n2 " + show, "export MINE=7", "mpirun -x MINE sh -c 'echo MINE=$MINE; exec " + built(t, "tests/mpi-app") + " -n 2'",
		// mpirun does not wait for its daemons' steps, and the end of the job ends them before their epilog has run.
		"for i in $(seq 300); do [ $(ls " + written + "/TaskEpilog.$SLURM_JOB_ID.* | wc -l) -lt 3 ] || break; sleep 0.1; done 2>/dev/null"}
	plain := j.submit([]string{"-N2", "-n4", "--ntasks-per-node=2"}, lines...)
	j.ended(plain)
	want := sorted(j.read("out"))
	if !strings.Contains(want, "PROLOG=done GONE=\nPROLOG=done GONE=\n") || strings.Count(want, "MINE=7\n") != 4 || !strings.Contains(want, "from the prolog\n") {
		t.Fatalf("without us the script printed\n%s", want)
	}
	lines = append([]string{"touch started"}, lines...)
	lines = append(lines, "for i in $(seq 300); do [ ! -e seen ] || break; sleep 0.1; done") // the external step lives as long as the job
	traced := j.submit([]string{"-N2", "-n4", "--ntasks-per-node=2", "--sigmatrace=full"}, lines...)
	extern := j.extern(t, traced)
	j.write("seen", "")
	j.ended(traced)
	if got := sorted(j.read("out")); got != want {
		t.Errorf("the script printed\n%s\nwithout us\n%s", got, want)
	}
	if got := j.kinds(); !slices.Equal(got, []string{"batch"}) {
		t.Fatalf("runs %v, want that of the script", got)
	}
	dir := j.dirOf(j.runs()[0])
	complete(t, dir, 4)
	if got := captured(t, dir); len(got) != 4 {
		t.Errorf("captures of %v, want one of each rank", got)
	}

	const tasks = 4 // the script, two of srun's, mpirun's daemon on the second node
	environments(t, written, "TaskProlog", plain, tasks)
	environments(t, written, "TaskEpilog", plain, tasks)
	for _, name := range []string{"TaskProlog", "TaskEpilog"} {
		for _, environment := range environments(t, written, name, traced, tasks) {
			if !slices.Contains(ours(environment), "LD_PRELOAD") {
				t.Errorf("%s of a task is not started as the task is: %v", name, ours(environment))
			}
		}
	}
	slurms := []string{"SPANK_SIGMATRACE_JOB", "SPANK__SLURM_SPANK_OPTION_sigmatrace_sigmatrace"}
	for _, name := range []string{"Prolog", "Epilog"} {
		for _, environment := range environments(t, written, name, traced, 2) {
			if got := ours(environment); !slices.Equal(got, slurms) {
				t.Errorf("%s has %v in its environment, want what Slurm makes of the options", name, got)
			}
		}
		for _, environment := range environments(t, written, name, plain, 2) {
			if got := ours(environment); len(got) > 0 {
				t.Errorf("%s of a job that did not ask has %v in its environment", name, got)
			}
		}
	}
	if !strings.HasPrefix(extern[0], "PROCESS=") {
		t.Error("the external step has no process")
	}
	if got := ours(extern); len(got) > 0 {
		t.Errorf("the external step has %v in its environment", got)
	}
	idle(t)
}

// extern is the environment of the job's external steps: of what keeps them alive, and, where a release needs nothing for that, of Slurm's own
// process alone. They are there before the script starts, which says so.
func (j *job) extern(t *testing.T, id string) []string {
	t.Helper()
	root := &job{t: t, user: "root", dir: j.dir}
	r := root.ok("timeout", "60", "sh", "-c", `until [ -e started ]; do sleep 0.1; done
for p in $(pgrep -f "^slurmstepd: .`+id+`.extern"); do for c in $p $(pgrep -P $p); do echo "PROCESS=$c"; tr '\0' '\n' </proc/$c/environ; done; done`)
	return strings.Split(strings.TrimSpace(r.stdout), "\n")
}

// sorted are the lines of what a script printed, in order, but for what differs between two jobs.
func sorted(text string) string {
	text = regexp.MustCompile(`(?m)^(sigmatrace|srun): .*\n`).ReplaceAllString(text, "")
	text = regexp.MustCompile(`"pid":\d+`).ReplaceAllString(text, "")
	lines := strings.Split(strings.TrimSpace(text), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}
