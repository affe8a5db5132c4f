package rundir

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

func TestGeneratedNames(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600))
	for _, c := range []struct{ env, want string }{
		{"", "sigmatrace-n1-20260102T020405Z-77"},
		{"SLURM_JOB_ID=12 SLURM_STEP_ID=0", "sigmatrace-12.0"},
		{"SLURM_JOB_ID=12", "sigmatrace-12.launch"},
		{"SLURM_JOB_ID=12 SLURM_STEP_ID=3 SLURM_RESTART_COUNT=0", "sigmatrace-12.3"},
		{"SLURM_JOB_ID=12 SLURM_STEP_ID=3 SLURM_RESTART_COUNT=2", "sigmatrace-12.r2.3"},
		{"SLURM_JOB_ID=12 SLURM_ARRAY_JOB_ID=10 SLURM_ARRAY_TASK_ID=4 SLURM_STEP_ID=1 SLURM_RESTART_COUNT=1", "sigmatrace-10_4.r1.1"},
	} {
		env := map[string]string{}
		for kv := range strings.FieldsSeq(c.env) {
			name, value, _ := strings.Cut(kv, "=")
			env[name] = value
		}
		if got := GeneratedName(func(name string) string { return env[name] }, "n1", now, 77); got != c.want {
			t.Errorf("%s: got %s, want %s", c.env, got, c.want)
		}
	}
}

func TestCreateTouchesNothingThatExists(t *testing.T) {
	base := t.TempDir()
	dir, err := Create(filepath.Join(base, "a/b"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir.Path(), dir.Capture()} {
		if info, err := os.Stat(path); err != nil || info.Mode() != fs.ModeDir|0o700 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	if err := os.WriteFile(filepath.Join(base, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(base, "link")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "a/b", "file", "link"} {
		if _, err := Create(filepath.Join(base, name)); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(base, "nowhere")); err == nil {
		t.Error("the link was followed")
	}
}

// Tasks of one step that all launch make directories of their own.
func TestConcurrentCreateNamedGivesEachItsOwn(t *testing.T) {
	base := t.TempDir()
	var mu sync.Mutex
	seen := map[string]bool{}
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			dir, err := CreateNamed(base, "run")
			mu.Lock()
			defer mu.Unlock()
			if err != nil || seen[dir.Path()] {
				t.Errorf("got %v, %v", dir, err)
				return
			}
			seen[dir.Path()] = true
		})
	}
	group.Wait()
	if !seen[filepath.Join(base, "run")] || !seen[filepath.Join(base, "run-16")] {
		t.Errorf("got %v", seen)
	}
}

func example() *Manifest {
	start, end := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC)
	status, signal, ranks := 143, "SIGTERM", 4
	return &Manifest{Tool: "1.2.3",
		Run: Run{Name: "r", Command: []string{"mpirun", "<a & b>"}, Host: "n1", User: "u", Start: start, End: &end, Status: &status, Signal: &signal,
			Dialect: "openmpi", ExpectedRanks: &ranks, Preload: "/l/libsigmatrace.so", Environment: map[string]string{"UCX_TLS": "rc"}},
		Profile: Profile{Name: "simple", Files: []string{"built in simple.toml"}, Values: map[string]ProfileValue{"mode": {"simple", "default"}}},
	}
}

func create(t *testing.T) *Dir {
	t.Helper()
	dir, err := Create(filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, dir *Dir, text string) {
	t.Helper()
	if err := os.WriteFile(dir.ManifestPath(), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// validate checks the manifest on disk against the committed schema.
func validate(t *testing.T, dir *Dir) error {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(ManifestSchema))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.AddResource("manifest.schema.json", schema); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile("manifest.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(dir.ManifestPath())
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return compiled.Validate(value)
}

func TestManifestKeepsToItsSchema(t *testing.T) {
	dir := create(t)
	running := example()
	running.Run.End, running.Run.Status, running.Run.Signal, running.Run.ExpectedRanks = nil, nil, nil, nil
	for _, m := range []*Manifest{example(), running} {
		if err := dir.WriteManifest(m); err != nil {
			t.Fatal(err)
		}
		if err := validate(t, dir); err != nil {
			t.Error(err)
		}
	}
	if err := dir.SetResult(json.RawMessage(`{"complete": true}`)); err != nil {
		t.Fatal(err)
	}
	if err := validate(t, dir); err != nil {
		t.Error(err)
	}
	for _, text := range []string{`{}`, `{"version": 2}`, `{"version": 1, "run": {}}`, `{"version": 1, "result": 3}`} {
		write(t, dir, text)
		if err := validate(t, dir); err == nil {
			t.Errorf("the schema takes %s", text)
		}
	}
}

func TestManifestIsReadBack(t *testing.T) {
	dir := create(t)
	if err := dir.WriteManifest(example()); err != nil {
		t.Fatal(err)
	}
	m, err := dir.ReadManifest()
	if err != nil {
		t.Fatal(err)
	}
	got, _ := json.Marshal(m)
	want := example()
	want.Version = 1
	wanted, _ := json.Marshal(want)
	if string(got) != string(wanted) {
		t.Errorf("got  %s\nwant %s", got, wanted)
	}
	if info, err := os.Stat(dir.ManifestPath()); err != nil || info.Mode() != 0o600 {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
	if entries, _ := os.ReadDir(dir.Path()); len(entries) != 2 {
		t.Errorf("got %v", entries)
	}
}

func TestReadersRefuseNewerMajorsAndForeignFiles(t *testing.T) {
	dir := create(t)
	for text, want := range map[string]string{
		`{"version": 2, "run": "of another shape"}`: "version 2 is newer than 1",
		`{"version": "x"}`:                          "cannot unmarshal",
		`{"run": {}}`:                               "not a manifest",
		`{"version": 0}`:                            "not a manifest",
		`{"version": 1`:                             "unexpected end of JSON",
	} {
		write(t, dir, text)
		_, readErr := dir.ReadManifest()
		_, openErr := Open(dir.Path())
		setErr := dir.SetResult(json.RawMessage(`{}`))
		updateErr := dir.Update(func(*Manifest) {})
		for _, err := range []error{readErr, openErr, setErr, updateErr} {
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), dir.ManifestPath()) {
				t.Errorf("%s: got %v", text, err)
			}
		}
		if left, _ := os.ReadFile(dir.ManifestPath()); string(left) != text {
			t.Errorf("%s was changed to %s", text, left)
		}
	}
}

// A pipe without a writer would be waited for.
func TestPipeInThePlaceOfAManifest(t *testing.T) {
	dir := create(t)
	if err := os.Remove(dir.ManifestPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(dir.ManifestPath(), 0o600); err != nil {
		t.Fatal(err)
	}
	_, readErr := dir.ReadManifest()
	setErr := dir.SetResult(json.RawMessage(`{}`))
	for _, err := range []error{readErr, setErr} {
		if err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("got %v", err)
		}
	}
}

// Within a major, fields that this version does not know survive the merger's write.
func TestSetResultLeavesAllElse(t *testing.T) {
	dir := create(t)
	write(t, dir, `{"version": 1, "later": {"a": [1, 2.50]}, "run": {"name": "r", "also": null}, "result": {"old": 1}}`)
	if _, err := Open(dir.Path()); err != nil {
		t.Errorf("unknown fields: %v", err)
	}
	if err := dir.SetResult(json.RawMessage(`{"new":"<&>"}`)); err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(dir.ManifestPath())
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil {
		t.Fatal(err)
	}
	if want := `{"later":{"a":[1,2.50]},"result":{"new":"<&>"},"run":{"name":"r","also":null},"version":1}`; compact.String() != want {
		t.Errorf("got  %s\nwant %s", compact.String(), want)
	}
}

func TestConcurrentWritersLoseNothing(t *testing.T) {
	dir := create(t)
	if err := dir.WriteManifest(example()); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if err := dir.Update(func(m *Manifest) { *m.Run.Status++ }); err != nil {
				t.Error(err)
			}
		})
		group.Go(func() {
			if err := dir.SetResult(json.RawMessage(`{"complete": true}`)); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	m, err := dir.ReadManifest()
	if err != nil || *m.Run.Status != 143+8 || len(m.Result) == 0 {
		t.Errorf("got %+v, %v", m, err)
	}
}

// A launcher that dies before it writes the manifest leaves captures that can still be merged.
func TestRunWithoutManifest(t *testing.T) {
	dir := create(t)
	opened, err := Open(dir.Path())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := opened.ReadManifest(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if err := opened.SetResult(json.RawMessage(`{"complete": false}`)); err != nil {
		t.Fatal(err)
	}
	if err := validate(t, dir); err != nil {
		t.Error(err)
	}
	for _, path := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none")} {
		if _, err := Open(path); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "not a run directory") {
			t.Errorf("%s: got %v", path, err)
		}
	}
}

func TestEnvironmentHoldsNoSecrets(t *testing.T) {
	got := AllowedEnvironment(map[string]string{
		"UCX_TLS": "rc", "NCCL_DEBUG": "INFO", "SLURM_JOB_ID": "1", "OMPI_MCA_btl": "self", "RANK": "0", "UCX_BAD": "\xff",
		"SLURM_JWT": "s", "OMPI_MCA_oob_token": "s", "UCX_PASSWORD": "s", "AWS_SECRET_ACCESS_KEY": "s", "HOME": "/h", "PATH": "/bin",
		"NCCL_AUTH_COOKIE": "s", "SLURM_SPANK_X": "s", "LD_PRELOAD": "x"})
	want := map[string]string{"UCX_TLS": "rc", "NCCL_DEBUG": "INFO", "SLURM_JOB_ID": "1", "OMPI_MCA_btl": "self", "RANK": "0", "UCX_BAD": "\ufffd"}
	a, _ := json.Marshal(got)
	b, _ := json.Marshal(want)
	if string(a) != string(b) {
		t.Errorf("got  %s\nwant %s", a, b)
	}
}
