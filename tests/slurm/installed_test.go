//go:build slurm

package slurm

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// As a site gets it: installed into a prefix, with the line in the folder that plugstack.conf includes. The plugin finds command and libraries
// by that line, and without its arguments from its own place.
func TestInstalledPluginTraces(t *testing.T) {
	prefix, include := filepath.Join(cluster, "prefix"), filepath.Join(cluster, "etc", "plugstack.conf.d")
	if err := os.MkdirAll(include, 0o755); err != nil {
		t.Fatal(err)
	}
	install := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("../../scripts/install", append([]string{"--prefix", prefix}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("scripts/install %v: %v\n%s", args, err, out)
		}
	}
	plugstack := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(cluster, "etc", "plugstack.conf"), []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	install("--plugstack=" + include)
	plugins, err := filepath.Glob(filepath.Join(prefix, "lib/slurm/spank_sigmatrace-*.so"))
	if err != nil || len(plugins) != 1 {
		t.Fatal(plugins, err)
	}
	for name, text := range map[string]string{"line": "include " + include + "/*.conf", "bare": "optional " + plugins[0]} {
		t.Run(name, func(t *testing.T) {
			plugstack(text)
			j := newJob(t)
			r := j.ok("srun", "-N2", "-n2", "--sigmatrace=full", "sh", "-c", `case $LD_PRELOAD in "$0"/lib/sigmatrace/*) echo ours;; esac`, prefix)
			if r.stdout != "ours\nours\n" {
				t.Errorf("the tasks' preload is not of %s:\n%s\n%s", prefix, r.stdout, r.stderr)
			}
			complete := manifest(t, j.one(r))
			if complete.Result == nil {
				t.Error("the run is not merged")
			}
		})
	}
	install("--uninstall")
	if left, err := filepath.Glob(filepath.Join(include, "*")); err != nil || len(left) > 0 {
		t.Errorf("after uninstall: %v, %v", left, err)
	}
	site(t)
	idle(t)
}

// varies are those of Slurm's variables in a task that are others in every step.
var varies = regexp.MustCompile(`^[0-9]+: (SLURM_(JOB_ID|JOBID|JOB_(START|END)_TIME|STEP_ID|STEPID|TASK_PID|SRUN_COMM_PORT|STEP_LAUNCHER_PORT|LAUNCH_NODE_IPADDR|STEP_RESV_PORTS)|TMPDIR)=`)

// Nobody who does not ask pays: no file is made, nothing is run, and the tasks' environment is as without the plugin.
func TestUnaskedPluginChangesNothing(t *testing.T) {
	j := newJob(t)
	environment := func() (string, string) {
		r := j.ok("srun", "-Q", "-w", "n1,n2", "--label", "env")
		lines := slices.DeleteFunc(strings.Split(r.stdout, "\n"), varies.MatchString)
		slices.Sort(lines)
		return strings.Join(lines, "\n"), r.stderr
	}
	if err := os.WriteFile(filepath.Join(cluster, "etc", "plugstack.conf"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	without, _ := environment()
	site(t, "command="+j.write("command", "#!/bin/sh\ntouch "+filepath.Join(j.dir, "ran")+"\n"), "libdir=/nonexistent")
	if with, errs := environment(); with != without || errs != "" {
		t.Errorf("with the plugin, not asked for, the tasks' environment is\n%s\nand without it\n%s\n%s", with, without, errs)
	}
	if out := j.batch([]string{"-N2"}, "srun hostname >/dev/null", "echo done"); out != "done\n" {
		t.Errorf("a batch script printed %q", out)
	}
	j.ok("salloc", "-Q", "-N1", "srun", "true")
	entries, err := os.ReadDir(j.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains([]string{"command", "script", "out"}, e.Name()) {
			t.Errorf("%s has appeared", e.Name())
		}
	}
	site(t)
	idle(t)
}

// calls are the files that srun opens and the programs that it runs, as strace sees them; numbers in names, which differ from run to run, as N.
func (j *job) calls() []string {
	j.t.Helper()
	j.ok("strace", "-f", "-qq", "-e", "trace=execve,openat,open", "-e", "status=successful", "-o", "trace", "srun", "-Q", "-w", "n1", "true")
	var list []string
	for _, call := range regexp.MustCompile(`(?:execve|open(?:at)?)\([^"]*"([^"]*)"`).FindAllStringSubmatch(j.read("trace"), -1) {
		list = append(list, regexp.MustCompile(`[0-9]+`).ReplaceAllString(call[1], "N"))
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// What an srun that does not ask pays is the loading of the plugin: it reads no other file and runs nothing.
func TestUnaskedPluginReadsNothing(t *testing.T) {
	j := newJob(t)
	if err := os.WriteFile(filepath.Join(cluster, "etc", "plugstack.conf"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	without := j.calls()
	site(t)
	with := slices.DeleteFunc(j.calls(), func(path string) bool { return slices.Contains(without, path) })
	if len(without) < 10 || len(with) != 1 || filepath.Base(with[0]) != "spank_sigmatrace.so" {
		t.Errorf("srun opened %d files and ran programs without the plugin; with it also %q, want the plugin alone", len(without), with)
	}
}
