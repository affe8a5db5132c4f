//go:build slurm

package slurm

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/sys/unix"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// calibrations are a run's, by node, each line of which keeps to the schema.
func calibrations(t *testing.T, dir *rundir.Dir) map[string][]*calibration.Record {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(calibration.Schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	files, err := calibration.ReadRun(dir.Path())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]*calibration.Record{}
	for _, f := range files {
		if f.Err != nil || f.Damaged > 0 {
			t.Errorf("%s: %d damaged, %v", f.Node, f.Damaged, f.Err)
		}
		text, err := os.ReadFile(filepath.Join(dir.Path(), calibration.DirName, f.Node))
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			value, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
			if err == nil {
				err = schema.Validate(value)
			}
			if err != nil {
				t.Errorf("%s: %v\n%s", f.Node, err, line)
			}
		}
		got[f.Node] = f.Records
	}
	return got
}

func whens(records []*calibration.Record) []calibration.When {
	var got []calibration.When
	for _, r := range records {
		got = append(got, r.When)
	}
	return got
}

// patient is the site's argument for tests that want every record: on a busy machine one may take longer than sites wait for it.
const patient = "clock_seconds=10"

var beginAndEnd = []calibration.When{calibration.StepBegin, calibration.StepEnd}

// command makes a command for the site that does lines for calibrate, and is sigmatrace for all else.
func command(t *testing.T, name string, lines ...string) string {
	t.Helper()
	path := filepath.Join(cluster, "etc", name)
	text := "#!/bin/sh\nreal=" + built(t, "bin/sigmatrace") + "\nif [ \"$1\" = calibrate ]; then\n" + strings.Join(lines, "\n") + "\nfi\nexec \"$real\" \"$@\"\n"
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return "command=" + path
}

// Each node's clocks are read before its first task begins and after its last has ended, and the files are the user's.
func TestStepHasClocksOfBeginAndEnd(t *testing.T) {
	site(t, patient)
	j := newJob(t)
	r := j.ok("srun", "-N2", "--ntasks-per-node=2", "--sigmatrace", "sh", "-c", `echo "at $(hostname) $(date +%s%N)"; sleep 0.$SLURM_PROCID; echo "at $(hostname) $(date +%s%N)"`)
	dir := j.one(r)
	got := calibrations(t, dir)
	if len(got) != 2 {
		t.Fatalf("files of %d nodes, want 2", len(got))
	}
	for node, records := range got {
		if !slices.Equal(whens(records), beginAndEnd) {
			t.Fatalf("%s: records %v", node, whens(records))
		}
		begin, end := records[0], records[1]
		if begin.Node != node || begin.Boot != end.Boot || begin.Reading.Before >= end.Reading.Before {
			t.Errorf("%s: %+v, %+v", node, begin, end)
		}
		for line := range strings.Lines(r.stdout) {
			fields := strings.Fields(line)
			if len(fields) != 3 || fields[1] != node {
				continue
			}
			at, err := strconv.ParseInt(fields[2], 10, 64)
			if err != nil || at < begin.Reading.Realtime || at > end.Reading.Realtime {
				t.Errorf("%s: a task ran at %d, the clocks were read at %d and %d", node, at, begin.Reading.Realtime, end.Reading.Realtime)
			}
		}
	}
	files, err := filepath.Glob(filepath.Join(dir.Path(), calibration.DirName, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(files, filepath.Join(dir.Path(), calibration.DirName)) {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if owner := info.Sys().(*syscall.Stat_t).Uid; info.Mode().Perm()&0o077 != 0 || owner != 61001 {
			t.Errorf("%s: mode %v, owner %d", path, info.Mode(), owner)
		}
	}
}

// The run of a batch script has the clocks of its own node, and of those on which its mpirun has Slurm start daemons.
func TestBatchScriptHasClocks(t *testing.T) {
	site(t, patient)
	j := newJob(t)
	j.environ = overUCX
	// mpirun does not wait for its daemons' steps, and the end of the job ends them before they have read the clocks.
	wait := "for i in $(seq 300); do ! grep -qs step-end sigmatrace-*/clock/* || break; sleep 0.1; done"
	j.batch([]string{"-N2", "--ntasks-per-node=1", "--sigmatrace"}, "mpirun "+built(t, "tests/mpi-app")+" -n 1", wait)
	got := calibrations(t, j.dirOf(j.runs()[0]))
	if len(got) != 2 {
		t.Fatalf("files of %d nodes, want 2", len(got))
	}
	for node, records := range got {
		if order := whens(records); !slices.Equal(order, beginAndEnd) {
			t.Errorf("%s: records %v", node, order)
		}
	}
}

func TestClocksAreSwitchedOffByTheSite(t *testing.T) {
	calls := filepath.Join(cluster, "etc", "calls")
	os.Remove(calls)
	site(t, command(t, "command-off", "echo >>"+calls), "clock_seconds=0")
	j := newJob(t)
	dir := j.one(j.ok("srun", "--sigmatrace", "true"))
	if _, err := os.Lstat(filepath.Join(dir.Path(), calibration.DirName)); err == nil {
		t.Error("there are clocks in the run")
	}
	if _, err := os.Lstat(calls); err == nil {
		t.Error("calibrate was run")
	}
}

// What hangs is ended, whatever it does of signals, and not tried again in the step; what fails or prints nothing of use costs its record only.
func TestClocksThatCannotBeRead(t *testing.T) {
	calls := filepath.Join(cluster, "etc", "calls")
	for name, c := range map[string]struct {
		lines string
		calls int
	}{
		"hangs":      {"trap '' TERM; exec sleep 300", 1},
		"fails":      {"echo 'sigmatrace: error: no clock' >&2; exit 1", 2},
		"crashes":    {"ulimit -c 0; kill -SEGV $$", 1},
		"nothing":    {"exit 0", 2},
		"cut":        {"printf half; exit 0", 2},
		"everything": {"exec head -c 3000000 /dev/zero", 2},
		"lines":      {"yes '" + strings.Repeat("x", 200) + "' | head -n 10000; exit 0", 2},
	} {
		t.Run(name, func(t *testing.T) {
			os.Remove(calls)
			limit := patient
			if name == "hangs" {
				limit = "clock_seconds=4"
			}
			site(t, command(t, "command-"+name, "echo $3 >>"+calls, c.lines), limit)
			j := newJob(t)
			r := j.ok("srun", "-N1", "--sigmatrace", "sh", "-c", printProfile)
			if profileIn(r.stdout) != "simple" {
				t.Errorf("not traced: %s", r.stdout)
			}
			dir := j.one(r)
			text, err := os.ReadFile(calls)
			if err != nil || strings.Count(string(text), "\n") != c.calls {
				t.Errorf("called %q, %v; want %d calls", text, err, c.calls)
			}
			files, err := calibration.ReadRun(dir.Path())
			for _, f := range files {
				if len(f.Records) > 0 || f.Err != nil {
					t.Errorf("%s: %d records, %v", f.Node, len(f.Records), f.Err)
				}
				if info, err := os.Stat(filepath.Join(dir.Path(), calibration.DirName, f.Node)); err != nil || info.Size() > 1<<20 {
					t.Errorf("%s: %v, %v", f.Node, info, err)
				}
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// A link that the user puts in the place of the directory leads nowhere: nothing is written at its end.
func TestClocksFollowNoLink(t *testing.T) {
	site(t)
	j := newJob(t)
	dir := j.one(j.ok("srun", "-N1", "--sigmatrace", "sh", "-c", "mkdir elsewhere && mv sigmatrace-*/clock aside && ln -s $PWD/elsewhere $(echo sigmatrace-*)/clock"))
	names, err := os.ReadDir(filepath.Join(j.dir, "elsewhere"))
	if err != nil || len(names) != 0 {
		t.Errorf("%v, %v were written to", names, err)
	}
	if link, err := os.Lstat(filepath.Join(dir.Path(), calibration.DirName)); err != nil || link.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link: %v, %v", link, err)
	}
}

// What sigmatrace-clockd publishes while a step runs goes into the run, and nothing of before.
func TestPublishedClocksGoIntoTheRun(t *testing.T) {
	published := filepath.Join(t.TempDir(), "clock")
	site(t, command(t, "command-published", fmt.Sprintf("exec \"$real\" \"$@\" --published %s", published)), patient)
	j := newJob(t)
	daemon := exec.Command(built(t, "bin/sigmatrace-clockd"), "--directory", published, "--limit", "100ms", "--interval", "100ms")
	daemon.Stderr = os.Stderr
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	defer daemon.Wait()
	defer daemon.Process.Signal(unix.SIGTERM)
	records := func() int {
		text, _ := os.ReadFile(filepath.Join(published, "records")) // not there yet
		return bytes.Count(text, []byte("\n"))
	}
	until := func(done func() bool) {
		for range 900 {
			if done() {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	until(func() bool { return records() > 0 })
	go func() { // the task lasts until some were published in its time
		until(func() bool { _, err := os.Stat(filepath.Join(j.dir, "began")); return err == nil })
		before := records()
		until(func() bool { return records() >= before+5 })
		os.WriteFile(filepath.Join(j.dir, "go"), nil, 0o644)
	}()
	dir := j.one(j.ok("srun", "-N1", "--sigmatrace", "sh", "-c", "touch began; until [ -e go ]; do sleep 0.1; done"))
	for node, records := range calibrations(t, dir) {
		order := whens(records)
		last := len(records) - 1
		if last < 3 || order[0] != calibration.StepBegin || order[last] != calibration.StepEnd {
			t.Fatalf("%s: records %v", node, order)
		}
		for _, r := range records[1:last] {
			if r.When != calibration.During || !strings.HasPrefix(r.Tool, "sigmatrace-clockd ") {
				t.Errorf("%s: %s of %s", node, r.When, r.Tool)
			}
		}
		return
	}
	t.Fatal("no clocks in the run")
}
