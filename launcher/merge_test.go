package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/capture/capturetest"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// recorded makes a run of one process of rank 0 that put five times and, if it was killed, had no orderly end.
func recorded(t *testing.T, killed bool) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run")
	dir, err := rundir.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	h := capture.Header{Pid: 7, Hostname: "n1", Rank: 0, World: 1, Mode: catalogue.ModeFull, StartTime: 5, ClockHz: 1e9, ClockFlags: 1}
	w, err := capturetest.Create(dir.Capture(), h, catalogue.Default)
	if err != nil {
		t.Fatal(err)
	}
	w.Define(100, catalogue.DefClockPair, catalogue.DomainTsc, uint64(90), uint64(110), uint64(1e18), uint64(1e9))
	w.Define(110, catalogue.DefUcpWorker, uint64(1), uint64(0))
	w.Define(120, catalogue.DefUcpEndpoint, uint64(2), uint64(1))
	th := w.Thread()
	for i := range uint64(5) {
		th.Event(1000+100*i, catalogue.EventUcpPut, []uint64{2, 8, 0, 0, 0, 0, 0, 0, catalogue.UcpResultDone, 0, 10})
	}
	w.Aggregate(capture.Aggregate{Object: 2, Event: catalogue.EventUcpPut, First: 1000, Count: 5, Bytes: 40, Calls: 5})
	end := w.Close
	if killed {
		end = w.Kill
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	return path
}

func sigmatrace(args ...string) (status int, stdout, stderr string) {
	var out, err bytes.Buffer
	c := exec.Cmd{Path: os.Args[0], Args: append([]string{"sigmatrace"}, args...), Stdout: &out, Stderr: &err}
	c.Run()
	return c.ProcessState.ExitCode(), out.String(), err.String()
}

// A merge that was put off writes what the run's profile asks for.
func TestMergeGoesByTheRunsProfile(t *testing.T) {
	path := recorded(t, false)
	dir, err := rundir.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	m := &rundir.Manifest{Version: rundir.ManifestVersion, Tool: "test", Profile: rundir.Profile{Name: "p", Files: []string{"p.toml"}, Values: map[string]rundir.ProfileValue{
		"merge.exports": {Value: "json", Source: "p.toml:3"}, "merge.memory": {Value: "67108863", Source: "p.toml:4"}}}}
	if err := dir.WriteManifest(m); err != nil {
		t.Fatal(err)
	}
	if status, _, stderr := sigmatrace("merge", path); status != 2 || !strings.Contains(stderr, "is less than 64MiB") {
		t.Errorf("the profile's memory is not used: status %d\n%s", status, stderr)
	}
	for _, x := range []struct{ option, want string }{{"--memory=64MiB", "trace.json"}, {"--exports=matrix", "matrix.json"}} {
		if status, _, stderr := sigmatrace("merge", "--memory=64MiB", x.option, path); status != 0 {
			t.Fatalf("status %d\n%s", status, stderr)
		}
		var got []string
		for _, name := range []string{"trace.pftrace", "trace.json", "matrix.json"} {
			if err := os.Remove(filepath.Join(path, name)); err == nil {
				got = append(got, name)
			}
		}
		if strings.Join(got, " ") != x.want {
			t.Errorf("%s: wrote %v, not %s", x.option, got, x.want)
		}
	}
}

// Statuses and output of merge, export and info, for a whole run and one that was killed.
func TestMergeExportInfo(t *testing.T) {
	whole, killed := recorded(t, false), recorded(t, true)
	other := filepath.Join(t.TempDir(), "other.json")
	for _, x := range []struct {
		args   string
		status int
		stdout string
		stderr string
	}{
		{"info WHOLE", 0, "ranks: 1 of 1 complete", ""},
		{"info KILLED", 0, "incomplete: rank 0 pid 7 on n1: no end mark", ""},
		{"merge WHOLE", 0, "", "layer ucp: 5 put (40 B)"},
		{"merge -j 2 --memory 64MiB --exports matrix KILLED", 3, "", "no end mark"},
		{"merge --json WHOLE", 0, `"total": 5`, ""},
		{"export --format matrix --layer ucp -o OTHER WHOLE", 0, "", "written: OTHER"},
		{"export --format json -o /dev/null WHOLE", 0, "", "written: /dev/null"},
		{"export --format json -o WHOLE/manifest.json WHOLE", 1, "", "belongs to the run"},
		{"export --format json -o WHOLE/capture/x WHOLE", 1, "", "belongs to the run"},
		{"export KILLED", 3, "", "incomplete: rank 0"},
		{"info --again WHOLE", 0, "5 put", ""},
		{"merge --worker=/nowhere WHOLE", 0, "", ""}, // a node that comes to help when all is done
		{"merge", 2, "", "error: 0 arguments"},
		{"merge WHOLE KILLED", 2, "", "error: 2 arguments"},
		{"merge --memory 1MiB WHOLE", 2, "", "is less than 64MiB"},
		{"merge --memory lots WHOLE", 2, "", "error: --memory"},
		{"merge --exports trace,matrix WHOLE", 2, "", `unknown export "trace": there are perfetto, matrix`},
		{"export --format pdf WHOLE", 2, "", `unknown export "pdf"`},
		{"export --layer verb WHOLE", 2, "", `no layer "verb"; did you mean "verbs"`},
		{"info /nowhere", 1, "", "is not a run directory"},
	} {
		r := strings.NewReplacer("WHOLE", whole, "KILLED", killed, "OTHER", other)
		status, stdout, stderr := sigmatrace(strings.Fields(r.Replace(x.args))...)
		if status != x.status || !strings.Contains(stdout, x.stdout) || !strings.Contains(stderr, r.Replace(x.stderr)) {
			t.Errorf("sigmatrace %s: status %d, want %d\nstdout: %s\nstderr: %s", x.args, status, x.status, stdout, stderr)
		}
	}
	for _, name := range []string{filepath.Join(whole, "trace.pftrace"), filepath.Join(whole, "matrix.json"), filepath.Join(killed, "trace.pftrace"), other} {
		if st, err := os.Stat(name); err != nil || st.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Once merged, the account is there even without the captures.
	if err := os.RemoveAll(filepath.Join(whole, "capture")); err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr := sigmatrace("info", "--json", whole)
	var info merge.Info
	if err := json.Unmarshal([]byte(stdout), &info); err != nil || status != 0 || info.Operations["ucp"]["put"].Count != 5 {
		t.Errorf("status %d, %v\n%s%s", status, err, stdout, stderr)
	}
	if status, _, stderr = sigmatrace("merge", whole); status != 1 || !strings.Contains(stderr, "has no captures") {
		t.Errorf("a merge without captures: status %d\n%s", status, stderr)
	}
}
