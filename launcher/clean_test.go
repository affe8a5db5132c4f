package main

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/sigmatrace/sigmatrace/launcher/mover"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// oldRun is a run that ended some days ago; 0: of which nobody has written that.
func oldRun(t *testing.T, path string, days int, result string, environment map[string]string) *rundir.Dir {
	t.Helper()
	dir, err := rundir.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	m := &rundir.Manifest{Run: rundir.Run{Name: dir.Name(), Command: []string{"x"}, Environment: environment}}
	if days > 0 {
		end := time.Now().Add(-time.Duration(days) * 24 * time.Hour)
		m.Run.End = &end
	}
	if result != "" {
		m.Result = json.RawMessage(result)
	}
	node := filepath.Join(dir.Capture(), "node")
	if err := os.Mkdir(node, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int{filepath.Join(node, "1.2.0.capture"): 1 << 20, dir.Trace(): 5} {
		if err := os.WriteFile(name, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	age(t, path, max(days, 1))
	if err := dir.WriteManifest(m); err != nil {
		t.Fatal(err)
	}
	age(t, dir.ManifestPath(), max(days, 1))
	age(t, path, max(days, 1))
	return dir
}

// age makes all below path look as if it had not changed for some days.
func age(t *testing.T, path string, days int) {
	t.Helper()
	at := time.Now().Add(-time.Duration(days) * 24 * time.Hour)
	err := filepath.WalkDir(path, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chtimes(p, at, at)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// clean runs it and returns what it did with each run, by name.
func clean(t *testing.T, args ...string) (map[string]cleaned, cleanReport) {
	t.Helper()
	cmd := exec.Command("sigmatrace", append([]string{"clean", "--json"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil && cmd.ProcessState.ExitCode() != exitFailure {
		t.Fatal(err)
	}
	schema, err := jsonschema.NewCompiler().Compile("schema/clean.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(out))
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := schema.Validate(value); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	var report cleanReport
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatal(err)
	}
	runs := map[string]cleaned{}
	for _, r := range report.Runs {
		runs[filepath.Base(r.Path)] = r
	}
	return runs, report
}

func there(dir string) (names []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

const mergedWhole = `{"version": 1, "ranks": {"incomplete": []}, "damaged": [], "exports": [{"file": "trace.pftrace", "bytes": 5}]}`

// Old runs go, and nothing else does: not what lives, is young, newer than we are, or no run.
func TestCleanByAge(t *testing.T) {
	base := t.TempDir()
	oldRun(t, base+"/old", 40, "", nil)
	oldRun(t, base+"/young", 10, "", nil)
	oldRun(t, base+"/touched", 40, "", nil)
	if err := os.WriteFile(base+"/touched/mine", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	oldRun(t, base+"/used", 40, "", nil)
	used, err := rundir.Open(base + "/used")
	if err != nil {
		t.Fatal(err)
	}
	defer used.Use()()
	oldRun(t, base+"/unended", 0, "", nil)
	age(t, base+"/unended", 3)
	oldRun(t, base+"/dead", 0, "", nil)
	age(t, base+"/dead", 40)
	newer := oldRun(t, base+"/newer", 40, "", nil)
	if err := os.WriteFile(newer.ManifestPath(), []byte(`{"version": 2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(base+"/data/capture", 0o755); err != nil {
		t.Fatal(err)
	}
	all := there(base)
	if _, report := clean(t, "--older-than", "2d", "--dry-run", base); report.Freed < 2<<20 || !slices.Equal(there(base), all) {
		t.Errorf("dry run: %+v, and %v are left", report, there(base))
	}
	runs, report := clean(t, "--older-than", "30d", base)
	if want := []string{"data", "newer", "touched", "unended", "used", "young"}; !slices.Equal(there(base), want) {
		t.Errorf("%v are left, want %v", there(base), want)
	}
	if runs["old"].Action != actionRemoved || runs["used"].Reason != "it is being recorded or merged" || runs["touched"].Action != actionKept || runs["young"].Path != "" {
		t.Errorf("%+v", runs)
	}
	if len(report.Problems) != 1 || !strings.Contains(report.Problems[0], "newer") {
		t.Errorf("problems %q", report.Problems)
	}
	if runs, _ := clean(t, "--older-than", "2d", base); !strings.HasPrefix(runs["unended"].Reason, "nobody has written its end") {
		t.Errorf("%+v", runs)
	}
}

// A run of Slurm's of which nobody has written the end goes when its job is over, and only then.
func TestCleanAsksSlurm(t *testing.T) {
	base, bin := t.TempDir(), t.TempDir()
	if err := os.WriteFile(bin+"/squeue", []byte("#!/bin/sh\necho 12\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	oldRun(t, base+"/sigmatrace-12.0", 0, "", nil)
	oldRun(t, base+"/sigmatrace-13.0", 0, "", nil)
	oldRun(t, base+"/named", 0, "", map[string]string{"SLURM_JOB_ID": "12"})
	for _, name := range there(base) {
		age(t, filepath.Join(base, name), 40)
	}
	runs, _ := clean(t, "--older-than", "30d", base)
	if want := []string{"named", "sigmatrace-12.0"}; !slices.Equal(there(base), want) {
		t.Errorf("%v are left, want %v", there(base), want)
	}
	if runs["named"].Reason != "its job is not over" {
		t.Errorf("%+v", runs)
	}
}

// A quota takes the oldest first, of each user and in all.
func TestCleanByQuota(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for files of several users")
	}
	base := t.TempDir()
	for name, days := range map[string]int{"a1": 9, "a2": 8, "a3": 7, "b1": 6, "b2": 5} {
		oldRun(t, filepath.Join(base, name), days, "", nil)
		uid := map[byte]int{'a': 61001, 'b': 61002}[name[0]]
		err := filepath.WalkDir(filepath.Join(base, name), func(p string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Chown(p, uid, uid)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	clean(t, "--user-quota", "2500KiB", base)
	if want := []string{"a2", "a3", "b1", "b2"}; !slices.Equal(there(base), want) {
		t.Errorf("a user's quota: %v are left, want %v", there(base), want)
	}
	clean(t, "--quota", "2500KiB", base)
	if want := []string{"b1", "b2"}; !slices.Equal(there(base), want) {
		t.Errorf("the quota: %v are left, want %v", there(base), want)
	}
}

// Captures alone go of runs whose results are complete.
func TestCleanCaptures(t *testing.T) {
	base := t.TempDir()
	whole := oldRun(t, base+"/whole", 40, mergedWhole, nil)
	raw := oldRun(t, base+"/raw", 40, "", nil)
	runs, _ := clean(t, "--captures", "--older-than", "30d", base)
	if isDirectory(whole.Capture()) || !isFile(whole.Trace()) || !isDirectory(raw.Capture()) || runs["whole"].Bytes < 1<<20 || runs["raw"].Action != actionKept {
		t.Errorf("%+v", runs)
	}
	if runs, _ := clean(t, "--older-than", "30d", base); runs["whole"].Action == actionRemoved {
		t.Error("a run that was changed just now was removed")
	}
}

// What a killed launcher left in memory goes with the age, that of a living one does not; and in a scratch directory only captures do.
func TestCleanLeftovers(t *testing.T) {
	dead, alive := filepath.Join(sharedMemory, "sigmatrace-test-dead"), filepath.Join(sharedMemory, "sigmatrace-test-alive")
	for _, folder := range []string{dead, alive} {
		os.RemoveAll(folder)
		if err := mover.Create(folder, 16<<20); err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(folder)
	}
	m, err := mover.Open(alive, t.TempDir()) // as its launcher
	if err != nil {
		t.Fatal(err)
	}
	defer m.End(0) //nolint:errcheck // of a test
	age(t, dead, 40)
	age(t, alive, 40)
	scratch := t.TempDir()
	for _, name := range []string{"sigmatrace-1.0/node/1.2.0.capture", "sigmatrace-2.0/node/notes.txt", "other/node/1.2.0.capture"} {
		path := filepath.Join(scratch, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	age(t, scratch, 40)
	clean(t, "--older-than", "3650d", "--scratch", scratch, t.TempDir())
	if !isDirectory(dead) {
		t.Error("what is not old enough is gone")
	}
	runs, _ := clean(t, "--older-than", "39d", "--scratch", scratch, t.TempDir())
	if isDirectory(dead) || !isDirectory(alive) || runs["sigmatrace-test-dead"].Kind != "memory" {
		t.Errorf("memory: %+v", runs)
	}
	if want := []string{"other", "sigmatrace-2.0"}; !slices.Equal(there(scratch), want) {
		t.Errorf("scratch: %v are left, want %v", there(scratch), want)
	}
}

// The unit and the line of cron's that scripts/ shows do what they say, with no more of root's capabilities than the unit leaves.
func TestCleanAsTheUnitHasIt(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for the unit's capabilities")
	}
	text, err := os.ReadFile("../scripts/sigmatrace-clean.service")
	if err != nil {
		t.Fatal(err)
	}
	capabilities := "-all"
	var lines [][]string
	for line := range strings.Lines(string(text)) {
		if list, is := strings.CutPrefix(line, "CapabilityBoundingSet="); is {
			for _, c := range strings.Fields(list) {
				capabilities += ",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_"))
			}
		}
		if _, args, is := strings.Cut(line, "/bin/sigmatrace clean "); is {
			lines = append(lines, strings.Fields(args))
		}
	}
	if len(lines) != 2 || capabilities == "-all" {
		t.Fatalf("%v, %s", lines, capabilities)
	}
	for _, args := range lines {
		base, err := os.MkdirTemp("/tmp", "clean")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(base)
		if err := os.Chmod(base, 0o755); err != nil { // in which a run's owner may not remove names himself
			t.Fatal(err)
		}
		oldRun(t, base+"/old", 40, "", nil)
		oldRun(t, base+"/young", 20, "", nil)
		err = filepath.WalkDir(base+"/old", func(p string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Chown(p, 61001, 61001)
		})
		if err != nil {
			t.Fatal(err)
		}
		args[len(args)-1] = base
		out, err := exec.Command("setpriv", append([]string{"--bounding-set", capabilities, "sigmatrace", "clean"}, args...)...).CombinedOutput()
		if want := []string{"young"}; err != nil || !slices.Equal(there(base), want) {
			t.Errorf("%v: %v are left, want %v; %v\n%s", args, there(base), want, err, out)
		}
	}
}
