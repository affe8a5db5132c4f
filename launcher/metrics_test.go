package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// counted runs the command, reads what it prints with Prometheus' own parser and rules, and returns the samples by name and labels.
func samples(t *testing.T, text []byte) map[string]float64 {
	t.Helper()
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("promtool's rules: %v, %v\n%s", problems, err, text)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	got := map[string]float64{}
	for name, f := range families {
		for _, m := range f.Metric {
			key := strings.TrimPrefix(name, "sigmatrace_")
			for _, l := range m.Label {
				key += " " + l.GetValue()
			}
			got[key] = m.Gauge.GetValue()
		}
	}
	return got
}

func TestMetricsCountRuns(t *testing.T) {
	base := t.TempDir()
	at := time.Unix(1_700_000_000, 0)
	for name, m := range map[string]*rundir.Manifest{
		"sigmatrace-7.0": {Profile: rundir.Profile{Name: "full"}, Run: rundir.Run{End: &at}, Merge: &rundir.Merge{End: at, Seconds: 2.5},
			Result: json.RawMessage(`{"version":1,"lost":{"events":3},"bytes":{"capture":1000},"clock":{"nodes":[{"host":"a","error_ns":1500},{"host":"b","error_ns":250}]}}`)},
		"sigmatrace-7.1": {Profile: rundir.Profile{Name: "full"}, Run: rundir.Run{End: &at}, Merge: &rundir.Merge{End: at, Seconds: 1},
			Result: json.RawMessage(`{"version":1,"ranks":{"incomplete":[{"rank":1,"reason":"x"}]},"bytes":{"capture":24},"clock":{"nodes":[{"host":"a","error_ns":null,"reason":"x"}]}}`)},
		"sigmatrace-8_2.0": {Profile: rundir.Profile{Name: `a "b"\c`}, Run: rundir.Run{}},
		"sigmatrace-9.batch": {Profile: rundir.Profile{Name: "simple"}, Run: rundir.Run{End: &at,
			Untraced: []rundir.Untraced{{Node: "n1", Reason: "no room"}, {Node: "n2", Reason: "no room"}, {Node: "n2", Reason: "no\u2028\"time\""}}}},
	} {
		dir, err := rundir.Create(filepath.Join(base, "ann", name))
		if err != nil {
			t.Fatal(err)
		}
		m.Run.Name, m.Run.Command = name, []string{"x"}
		if err := dir.WriteManifest(m); err != nil {
			t.Fatal(err)
		}
	}
	if dir, err := rundir.Create(base + "/newer"); err != nil || os.WriteFile(dir.ManifestPath(), []byte(`{"version": 9}`), 0o600) != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "sigmatrace.prom")
	for range 2 { // the second replaces the first
		if out, err := exec.Command("sigmatrace", "metrics", "--output", file, base).CombinedOutput(); err != nil || !strings.Contains(string(out), "newer is not counted") {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if names := there(filepath.Dir(file)); len(names) != 1 {
		t.Errorf("beside it are %v", names)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := samples(t, text)
	for key, want := range map[string]float64{
		"runs full complete": 1, "runs full incomplete": 1, `runs a "b"\c running`: 1, "runs simple unmerged": 1, "jobs full": 1, `jobs a "b"\c`: 1, "jobs simple": 1,
		"captured_bytes full": 1024, "lost_records full": 3, "lost_records simple": 0, "untraced_steps no room": 1, "untraced_steps no\u2028\"time\"": 1,
		"clock_error_worst_seconds": 1500e-9, "clock_unknown_runs": 1, "merge_worst_seconds": 2.5, "merge_spent_seconds": 3.5, "last_end_timestamp_seconds": 1.7e9, "unreadable_runs": 1,
	} {
		if v, is := got[key]; !is || v != want {
			t.Errorf("%s is %v (%v), want %v", key, v, is, want)
		}
	}
	if got["disk_bytes full"] < 4096 {
		t.Errorf("disk_bytes %v", got["disk_bytes full"])
	}
	if out, err := exec.Command("sigmatrace", "metrics", base+"/ann").Output(); err != nil || len(samples(t, out)) != len(got) {
		t.Errorf("%v\n%s", err, out)
	}
}

// What is not known has no sample, and users' names do not make any number of them.
func TestMetricsOfNothingAndOfTooMuch(t *testing.T) {
	out, err := exec.Command("sigmatrace", "metrics", t.TempDir()).Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := samples(t, out); len(got) != 3 || got["unreadable_runs"] != 0 {
		t.Errorf("nothing: %v", got)
	}
	base := t.TempDir()
	for i := range 30 {
		dir, err := rundir.Create(fmt.Sprintf("%s/sigmatrace-%d.0", base, i))
		if err != nil {
			t.Fatal(err)
		}
		m := &rundir.Manifest{Run: rundir.Run{Name: dir.Name(), Command: []string{"x"}, Untraced: []rundir.Untraced{{Node: "n", Reason: fmt.Sprint("r", i)}}}, Profile: rundir.Profile{Name: fmt.Sprint("p", i)}}
		if err := dir.WriteManifest(m); err != nil {
			t.Fatal(err)
		}
	}
	out, err = exec.Command("sigmatrace", "metrics", base).Output()
	if err != nil {
		t.Fatal(err)
	}
	got := samples(t, out)
	if got["runs other running"] != 10 || got["jobs other"] != 10 || got["untraced_steps other"] != 10 {
		t.Errorf("%v", got)
	}
}
