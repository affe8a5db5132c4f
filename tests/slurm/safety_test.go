//go:build slurm

package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Every option and variable has a length beyond which it is refused, where the user sits, before there is a job.
func TestLengthsAreChecked(t *testing.T) {
	site(t)
	j := newJob(t)
	number := func() string { return j.ok("sh", "-c", "scontrol show config | grep ^NEXT_JOB_ID").stdout }
	before := number()
	x := func(n int) string { return strings.Repeat("x", n) }
	good := j.write("good", "#!/bin/sh\ntrue\n")
	for _, c := range []struct {
		environ []string
		argv    []string
		status  int
		says    string
	}{
		{nil, []string{"srun", "--sigmatrace=" + x(1023), "true"}, 255, "unknown profile"},
		{nil, []string{"srun", "--sigmatrace=" + x(1024), "true"}, 255, "--sigmatrace: the profile's name is too long\n"},
		{nil, []string{"sbatch", "--sigmatrace=" + x(100000), good}, 255, "--sigmatrace: the profile's name is too long\n"},
		{[]string{"SIGMATRACE_PROFILE=" + x(1024)}, []string{"salloc", "true"}, 1, "--sigmatrace: the profile's name is too long\n"},
		{[]string{option + "=" + x(1024)}, []string{"srun", "true"}, 1, "--sigmatrace: the profile's name is too long\n"},
		{nil, []string{"srun", "--sigmatrace-set=" + x(4221) + "=1", "true"}, 255, ": unknown key "},
		{nil, []string{"srun", "--sigmatrace-set=" + x(100000) + "=1", "true"}, 255, "--sigmatrace-set: the value is too long\n"},
		{[]string{option + "_set=mode=" + x(4219)}, []string{"srun", "--sigmatrace", "true"}, 1, "--sigmatrace-set: the value is too long\n"},
		{nil, []string{"srun", "--sigmatrace-output=/" + x(100000), "true"}, 255, "--sigmatrace-output: the value is too long\n"},
		{nil, []string{"srun", "--sigmatrace-output=/" + x(4095), "true"}, 255, "output.directory: value of 4096 bytes; at most 4095 fit\n"},
		{[]string{option + "_output=/" + x(4206)}, []string{"sbatch", "--sigmatrace", good}, 1, "--sigmatrace-output: the value is too long\n"},
		{[]string{"SIGMATRACE_OUTPUT_DIRECTORY=/" + x(4095)}, []string{"srun", "--sigmatrace", "true"}, 255, "SIGMATRACE_OUTPUT_DIRECTORY: value of 4096 bytes; at most 4095 fit\n"},
	} {
		j.environ = c.environ
		if r := j.run(c.argv...); r.status != c.status || !strings.Contains(r.stderr, c.says) {
			t.Errorf("%.40v %.60q: status %d, want %d; standard error\n%.300s", c.environ, c.argv, r.status, c.status, r.stderr)
		}
	}
	j.environ = nil
	if after := number(); after != before {
		t.Errorf("jobs were made: %s %s", before, after)
	}
}

// What is too long only together with what the plugin adds costs the trace of the step, said by srun or in the manifest, and not the step.
func TestLengthsThatShowLate(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	deep := j.dir
	for len(deep) < 4060 {
		deep += "/" + strings.Repeat("x", min(200, 4061-len(deep)))
	}
	r := j.ok("srun", "--sigmatrace", "--sigmatrace-output="+deep, "sh", "-c", printProfile)
	if profileIn(r.stdout) != "" || !strings.Contains(r.stderr, "sigmatrace: warning: the step is not traced: ") {
		t.Errorf("the task printed %s\n%.300s", r.stdout, r.stderr)
	}
	r = j.ok("srun", "--sigmatrace", "--sigmatrace-output="+deep, "sh", "-c", printProfile, ":", "sh", "-c", printProfile)
	if strings.Contains(r.stdout, "simple") || !strings.Contains(r.stderr, "traced: ") {
		t.Errorf("the tasks of two components printed %s\n%.300s", r.stdout, r.stderr)
	}

	j = newJob(t)
	j.environ = []string{"LD_PRELOAD=" + strings.Repeat("/lib/x86_64-linux-gnu/libdl.so.2:", 600)}
	r = j.ok("srun", "-N2", "--sigmatrace", "sh", "-c", printProfile)
	if strings.Contains(r.stdout, "simple") {
		t.Errorf("the tasks printed %s", r.stdout)
	}
	m := manifest(t, j.one(r))
	if len(m.Run.Untraced) != 2 || m.Run.Untraced[0].Reason != "LD_PRELOAD is too long" {
		t.Errorf("the manifest has untraced %v", m.Run.Untraced)
	}
}

// Values that no srun of ours has made, in the form for heterogeneous steps: they are checked on the node like all others.
func TestNodesTrustNoPlaceholder(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	j.write("orted", "#!/bin/sh\necho ran preload=$LD_PRELOAD\n") // by this name what is inherited is kept by srun
	for _, path := range []string{"", "relative", "/%", "/%x", "/%%%", j.dir + "/%j%", "/" + strings.Repeat("%j", 2000), j.dir + "/none-%j.%s"} {
		j.environ = []string{"SLURM_SIGMATRACE=1;ucx;@" + path}
		if r := j.ok("srun", "-N1", "./orted"); !strings.HasPrefix(r.stdout, "ran ") || strings.Contains(r.stdout, "sigmatrace") {
			t.Errorf("%.80q: the task printed %q", path, r.stdout)
		}
	}
}

// Values that have not been through the options at all: the plugin looks at none of them, or checks them anew.
func TestForgedVariables(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	const job = "SLURM_SPANK_SIGMATRACE_JOB="
	for _, c := range []struct {
		environ string
		options []string
		want    string
	}{
		{"_SLURM_SPANK_OPTION_sigmatrace_sigmatrace=bogus", nil, ""},
		{"_SLURM_SPANK_OPTION_sigmatrace_sigmatrace=bogus", []string{"--sigmatrace=full"}, "full"},
		{"_SLURM_SPANK_OPTION_sigmatrace_sigmatrace=" + strings.Repeat("x", 60000), nil, ""},
		{job + "garbage", nil, ""},
		{job + "garbage", []string{"--sigmatrace=full"}, "full"},
		{job + "9;asked=full;name=full;mode=full", []string{"--sigmatrace=full"}, "full"},
		{job + "1;asked=full;file=x;name=full;mode=everything", []string{"--sigmatrace=full"}, "full"},
		{job + "1;asked=full;name=full;" + strings.Repeat("x", 60000), []string{"--sigmatrace=full"}, "full"},
	} {
		j.environ = []string{c.environ}
		if got := j.traced(append([]string{"srun"}, c.options...)...); got != c.want {
			t.Errorf("%.80s %v: profile %q, want %q", c.environ, c.options, got, c.want)
		}
	}
	// A script's node does what srun does for a step.
	for _, c := range []struct{ text, want string }{{"garbage", "full"}, {"1;asked=full;file=x;name=full;mode=everything", "full"}} {
		j.environ = []string{job + c.text}
		if got := profileIn(j.batch([]string{"--sigmatrace=full"}, printProfile)); got != c.want {
			t.Errorf("batch script, %s: profile %q, want %q", c.text, got, c.want)
		}
		if got := profileIn(j.batch(nil, printProfile)); got != "" {
			t.Errorf("batch script that does not ask, %s: profile %q", c.text, got)
		}
	}
}

// A user's files in the place of what the nodes write: pipes hold nobody up, and through links nothing is written where the user could not.
func TestUsersFilesInARunsPlace(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	target := filepath.Join(cluster, "etc", "tasks-target")
	if err := os.MkdirAll(target, 0o755); err != nil {
		t.Fatal(err)
	}
	owned := func(path string, err error) {
		t.Helper()
		if err == nil {
			err = os.Lchown(path, 61001, 61001)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const flat = "sigmatrace.profile=1\nname=simple\n"
	j.write("orted", "#!/bin/sh\necho ran preload=$LD_PRELOAD\n")
	for i, c := range []struct {
		make   func(run string)
		traced bool
	}{
		{func(run string) { owned(run+"/profile.resolved", unix.Mkfifo(run+"/profile.resolved", 0o644)) }, false},
		{func(run string) { owned(run+"/profile.resolved", os.Mkdir(run+"/profile.resolved", 0o755)) }, false},
		{func(run string) {
			owned(run+"/profile.resolved", os.WriteFile(run+"/profile.resolved", []byte(flat), 0o644))
			owned(run+"/tasks", os.Symlink(target, run+"/tasks"))
		}, true},
		{func(run string) {
			owned(run+"/profile.resolved", os.WriteFile(run+"/profile.resolved", []byte(flat), 0o644))
			owned(run+"/tasks", os.Mkdir(run+"/tasks", 0o777))
			for _, node := range []string{"n1", "n2", "n3", "n4"} {
				owned(run+"/tasks/"+node, unix.Mkfifo(run+"/tasks/"+node, 0o666))
			}
		}, true},
	} {
		run := fmt.Sprintf("%s/run%d", j.dir, i)
		owned(run, os.Mkdir(run, 0o755))
		c.make(run)
		j.environ = []string{"SLURM_SIGMATRACE=1;ucx,libfabric,ibverbs;" + run}
		r := j.ok("timeout", "60", "srun", "-N1", "./orted")
		if !strings.HasPrefix(r.stdout, "ran ") || strings.Contains(r.stdout, "/libsigmatrace.") != c.traced {
			t.Errorf("case %d: the task printed %q", i, r.stdout)
		}
	}
	if names, err := os.ReadDir(target); err != nil || len(names) > 0 {
		t.Errorf("through the user's link was written %v, %v", names, err)
	}
	if got := j.runs(); !slices.Equal(got, nil) {
		t.Errorf("runs %v", got)
	}
}
