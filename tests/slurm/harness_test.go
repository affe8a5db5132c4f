//go:build slurm

// Package slurm tests the Slurm plugin on the cluster of scripts/cluster, which tests/parts/35-slurm.sh has brought up.
package slurm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// cluster is the folder of the cluster.
var cluster = os.Getenv("SIGMATRACE_CLUSTER")

func TestMain(m *testing.M) {
	if cluster == "" {
		fmt.Fprintln(os.Stderr, "SIGMATRACE_CLUSTER does not name a cluster's folder: run tests/run slurm")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func built(t testing.TB, path string) string {
	t.Helper()
	p, err := filepath.Abs(filepath.Join("../../build", path))
	if err != nil {
		t.Fatal(err)
	}
	if there := os.Getenv("SIGMATRACE_CLUSTER_BUILT"); there != "" { // what depends on the Slurm and the MPI of the cluster's own system
		own := filepath.Join(there, path)
		if _, err := os.Stat(own); err == nil {
			return own
		}
	}
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("not built (run `make tests`): %v", err)
	}
	return p
}

// site writes plugstack.conf: one line for the plugin with these arguments behind those that say where it was built.
func site(t testing.TB, arguments ...string) {
	t.Helper()
	line := append([]string{"optional", built(t, "lib/slurm/spank_sigmatrace.so"), "command=" + built(t, "bin/sigmatrace"),
		"libdir=" + filepath.Dir(built(t, "lib/sigmatrace/libsigmatrace.so"))}, arguments...)
	plugstack(t, strings.Join(line, " ")+"\n")
}

// plugstack writes plugstack.conf, all of it at once: tests that run side by side write the same.
func plugstack(t testing.TB, text string) {
	t.Helper()
	conf := filepath.Join(cluster, "etc", "plugstack.conf")
	next, err := os.CreateTemp(filepath.Dir(conf), "plugstack")
	if err != nil {
		t.Fatal(err)
	}
	_, err = next.WriteString(text)
	if err := errors.Join(err, next.Chmod(0o644), next.Close(), os.Rename(next.Name(), conf)); err != nil {
		t.Fatal(err)
	}
}

type result struct {
	stdout, stderr string
	status         int
}

// job is where a test's commands are run: a folder that all nodes share.
type job struct {
	t       *testing.T
	user    string
	dir     string
	environ []string
}

// overUCX makes Open MPI take UCX over tcp, as on a cluster without shared memory between nodes.
var overUCX = []string{"UCX_TLS=tcp,self", "OMPI_MCA_pml=ucx", "OMPI_MCA_pml_ucx_tls=any", "OMPI_MCA_pml_ucx_devices=any", "OMPI_MCA_btl=^openib",
	"OMPI_MCA_osc=ucx"}

func newJob(t *testing.T) *job { return newJobOf(t, "ann", 61001) }

func newJobOf(t *testing.T, user string, uid int) *job {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Join(cluster, "home", user), "job")
	if err == nil {
		err = os.Chown(dir, uid, uid)
	}
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &job{t: t, user: user, dir: dir}
}

// on runs a command line on a host of the cluster, five minutes at most.
func (j *job) on(host string, argv ...string) result {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	line := append([]string{"run", "--user=" + j.user, "--node=" + host, "env", "-C", j.dir}, j.environ...)
	cmd := exec.CommandContext(ctx, "../../scripts/cluster", append(line, argv...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		j.t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, errs.String())
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

func (j *job) run(argv ...string) result {
	j.t.Helper()
	return j.on("ctl", argv...)
}

// ok runs a command line that must succeed.
func (j *job) ok(argv ...string) result {
	j.t.Helper()
	r := j.run(argv...)
	if r.status != 0 {
		j.t.Fatalf("%s: status %d\n%s\n%s", strings.Join(argv, " "), r.status, r.stdout, r.stderr)
	}
	return r
}

func (j *job) write(name, text string) string {
	j.t.Helper()
	path := filepath.Join(j.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		j.t.Fatal(err)
	}
	return path
}

func (j *job) read(name string) string {
	j.t.Helper()
	text, err := os.ReadFile(filepath.Join(j.dir, name))
	if err != nil {
		j.t.Fatal(err)
	}
	return string(text)
}

// batch submits a script, waits for its end, and returns what it printed, both its outputs together.
func (j *job) batch(options []string, lines ...string) string {
	j.t.Helper()
	id := j.submit(options, lines...)
	j.ended(id)
	return j.read("out")
}

// submit submits a script and returns the job's number. `sbatch --wait` looks too seldom.
func (j *job) submit(options []string, lines ...string) string {
	j.t.Helper()
	j.write("script", "#!/bin/bash\n"+strings.Join(lines, "\n")+"\n")
	id := j.ok(append(append([]string{"sbatch", "--parsable", "--output=out"}, options...), "script")...).stdout
	return strings.TrimSpace(id)
}

// ended waits until nothing of the job is queued or running.
func (j *job) ended(id string) {
	j.t.Helper()
	j.ok("timeout", "240", "sh", "-c", "while [ -n \"$(squeue -h -j "+id+" 2>/dev/null)\" ]; do sleep 0.1; done")
}

// runs are the names of the run directories in the job's folder, the job's number replaced by J.
func (j *job) runs() []string {
	j.t.Helper()
	names, err := filepath.Glob(filepath.Join(j.dir, "sigmatrace-*"))
	if err != nil {
		j.t.Fatal(err)
	}
	for i, name := range names {
		names[i] = filepath.Base(name)
	}
	slices.Sort(names)
	return names
}

// one is the only run directory.
func (j *job) one(r result) *rundir.Dir {
	j.t.Helper()
	names := j.runs()
	if len(names) != 1 {
		j.t.Fatalf("run directories %v, want one\n%s\n%s", names, r.stdout, r.stderr)
	}
	return j.dirOf(names[0])
}

func (j *job) dirOf(name string) *rundir.Dir {
	j.t.Helper()
	dir, err := rundir.Open(filepath.Join(j.dir, name))
	if err != nil {
		j.t.Fatal(err)
	}
	return dir
}

func manifest(t *testing.T, dir *rundir.Dir) *rundir.Manifest {
	t.Helper()
	m, err := dir.ReadManifest()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// complete checks that the run is merged, that each expected rank is there, whole, and that every message at the UCP layer has both its ends.
func complete(t *testing.T, dir *rundir.Dir, ranks int) *merge.Info {
	t.Helper()
	m := manifest(t, dir)
	var info merge.Info
	if err := json.Unmarshal(m.Result, &info); err != nil {
		t.Fatalf("%s is not merged: %v", dir.Path(), err)
	}
	if info.Ranks.Expected == nil || *info.Ranks.Expected != ranks || info.Ranks.Complete != ranks || !info.Complete() {
		t.Errorf("ranks %+v, want %d complete", info.Ranks, ranks)
	}
	if info.Flows.Matched == 0 || len(info.Flows.Unmatched) > 0 {
		t.Errorf("messages %+v, want all matched", info.Flows)
	}
	if _, err := os.Stat(dir.Trace()); err != nil {
		t.Error(err)
	}
	return &info
}

// captured are the hosts that captures are of, one each.
func captured(t *testing.T, dir *rundir.Dir) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir.Capture(), "*", "*.capture"))
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, f := range files {
		host, _, _ := strings.Cut(filepath.Base(filepath.Dir(f)), ".")
		list = append(list, host)
	}
	slices.Sort(list)
	return list
}

// profile is the profile that a task was given, by what it prints of its environment: "" where it has none.
const printProfile = `echo "profile=$(sed -n s/^name=//p "$SIGMATRACE_CONFIG" /dev/null 2>/dev/null | grep -v off) off=$SIGMATRACE"`

// traced runs an srun with the options, and returns the profile that its task was given; "" where it is not traced.
func (j *job) traced(argv ...string) string {
	j.t.Helper()
	r := j.ok(append(argv, "sh", "-c", printProfile)...)
	return profileIn(r.stdout)
}

// profileIn finds what printProfile printed.
func profileIn(text string) string {
	for line := range strings.Lines(text) {
		if rest, is := strings.CutPrefix(strings.TrimSpace(line), "profile="); is {
			name, off, _ := strings.Cut(rest, " off=")
			if off == "off" {
				return ""
			}
			return name
		}
	}
	return "nothing printed"
}

// idle checks that no node is drained or down, waiting until all are idle.
func idle(t *testing.T) {
	t.Helper()
	j := &job{t: t, user: "root", dir: cluster}
	got := ""
	for range 300 {
		got = strings.TrimSpace(j.ok("sinfo", "-h", "-p", "all", "-o", "%D %T").stdout)
		if got == "4 idle" {
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
	t.Errorf("nodes are %s, want 4 idle", got)
}

// configure changes slurm.conf for a test. It waits until what is said there has been taken, and at the end until it no longer is.
func configure(t *testing.T, change func(conf string) string, taken func(root *job, changed bool) bool) {
	t.Helper()
	conf := filepath.Join(cluster, "etc", "slurm.conf")
	before, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	root := &job{t: t, user: "root", dir: cluster}
	set := func(text string, changed bool) {
		if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		root.ok("scontrol", "reconfigure")
		for range 300 {
			if taken(root, changed) {
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
		t.Fatalf("slurm.conf was not read anew (changed: %v)", changed)
	}
	t.Cleanup(func() { set(string(before), false) })
	set(change(string(before)), true)
}
