//go:build slurm

package slurm

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// examined is what of `sigmatrace doctor --json` the tests look at.
type examined struct {
	Findings []struct{ Area, Verdict, What, Hint string }
	Problems int
	Nodes    struct {
		Looked      int `json:"looked_at"`
		Problems    int
		Differences []struct {
			Fact   string
			Values []struct{ Value, Nodes string }
		}
		Findings    []struct{ Verdict, What, Nodes string }
		Unreachable []struct{ Reason, Nodes string }
	}
}

// doctor runs it as root on host ctl and holds what it prints against its schema.
func doctor(t *testing.T, status int, options ...string) *examined {
	t.Helper()
	root := &job{t: t, user: "root", dir: cluster}
	r := root.run(append([]string{built(t, "bin/sigmatrace"), "doctor", "--json"}, options...)...)
	if r.status != status {
		t.Errorf("doctor %v: status %d, want %d\n%s\n%s", options, r.status, status, r.stdout, r.stderr)
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(r.stdout))
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, r.stdout, r.stderr)
	}
	schema, err := jsonschema.NewCompiler().Compile("../../launcher/schema/doctor.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(value); err != nil {
		t.Error(err)
	}
	var e examined
	if err := json.NewDecoder(strings.NewReader(r.stdout)).Decode(&e); err != nil {
		t.Fatal(err)
	}
	return &e
}

// says checks that a problem is told, with something to do about it.
func (e *examined) says(t *testing.T, what string) {
	t.Helper()
	for _, f := range e.Findings {
		if f.Verdict == "problem" && strings.Contains(f.What, what) {
			if f.Hint == "" {
				t.Errorf("%q has no hint", f.What)
			}
			return
		}
	}
	t.Errorf("no problem says %q: %+v", what, e.Findings)
}

func TestDoctorOfAClusterThatIsWell(t *testing.T) {
	site(t, "default_profile=simple", "rate=1%")
	e := doctor(t, 0, "--nodes")
	if e.Problems != 0 || e.Nodes.Looked != 4 || e.Nodes.Problems != 0 || len(e.Nodes.Differences) > 0 || len(e.Nodes.Unreachable) > 0 {
		t.Errorf("%+v", e)
	}
	// It runs itself on the nodes untraced, where everybody is.
	if names, _ := filepath.Glob(filepath.Join(cluster, "sigmatrace-*")); len(names) > 0 {
		t.Errorf("it was traced: %v", names)
	}
	idle(t)
}

func TestDoctorNamesWhatIsWrongWithThePlugin(t *testing.T) {
	defer site(t)
	plugin := built(t, "lib/slurm/spank_sigmatrace.so")
	other := filepath.Join(cluster, "etc", "spank_sigmatrace-other.so")
	source := filepath.Join(t.TempDir(), "other.c")
	text := "const char plugin_name[] = \"sigmatrace\", plugin_type[] = \"spank\"; const unsigned plugin_version = 0x170b07;\n"
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-fPIC", "-shared", "-o", other, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	open := filepath.Join(cluster, "etc", "open")
	if err := os.MkdirAll(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	included := filepath.Join(cluster, "etc", "more.conf")
	if err := os.WriteFile(included, []byte("# ours\nrequired "+plugin+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"optional " + other: "is built for Slurm 23.11, and Slurm here is 22.05.8",
		"optional " + filepath.Dir(other) + "/spank_sigmatrace-none.so": "no such file",
		"include more.conf":                                       "more.conf:2: the plugin is required",
		"optional " + plugin + " rate=many":                       `argument "rate=many"`,
		"optional " + plugin + " command=/nonexistent":            "command: stat /nonexistent",
		"optional " + plugin + " kill_switch=" + open + "/off":    "open can be written to by others",
		"optional " + plugin + " default_profile=bogus":           `unknown profile "bogus"`,
		"optional " + plugin + " output=/nonexistent/%u":          "output directory: stat /nonexistent",
		"optional " + plugin + "\noptional " + plugin + " locked": "2 lines for the plugin",
		"optional " + plugin + " libdir=/usr/lib":                 "no libsigmatrace.so in /usr/lib",
		"perhaps " + plugin:                                       `"perhaps" is none of required, optional, include`,
	} {
		plugstack(t, line+"\n")
		doctor(t, 1).says(t, want)
	}
	// A file that others can write to is told as such, whatever is in it.
	site(t)
	conf := filepath.Join(cluster, "etc", "plugstack.conf")
	if err := os.Chmod(conf, 0o666); err != nil {
		t.Fatal(err)
	}
	doctor(t, 1).says(t, "plugstack.conf can be written to by others")
	if err := os.Chmod(conf, 0o644); err != nil {
		t.Fatal(err)
	}
}

// One node has other libraries than the rest, and one cannot be asked.
func TestDoctorTellsNodesApart(t *testing.T) {
	defer site(t)
	root := &job{t: t, user: "root", dir: cluster}
	libs := filepath.Join(cluster, "local", "libs") // of each node its own
	from := filepath.Dir(built(t, "lib/sigmatrace/libsigmatrace.so"))
	for _, node := range []string{"ctl", "n1", "n2", "n3", "n4"} {
		if r := root.on(node, "sh", "-c", "rm -rf "+libs+"; cp -r "+from+" "+libs); r.status != 0 {
			t.Fatal(r.stderr)
		}
	}
	defer os.RemoveAll(libs)
	site(t, "libdir="+libs) // the last of the two holds
	if e := doctor(t, 0, "--nodes"); len(e.Nodes.Differences) > 0 {
		t.Errorf("alike: %+v", e.Nodes)
	}
	// Another build on n3; none on n4; and n2 is not to be had.
	if r := root.on("n3", "cp", filepath.Join(libs, "provider-ucx.so"), filepath.Join(libs, "provider-ibverbs.so")); r.status != 0 {
		t.Fatal(r.stderr)
	}
	if r := root.on("n4", "rm", filepath.Join(libs, "libsigmatrace.so")); r.status != 0 {
		t.Fatal(r.stderr)
	}
	root.ok("scontrol", "update", "node=n2", "state=drain", "reason=test")
	defer func() {
		root.ok("scontrol", "update", "node=n2", "state=resume")
		idle(t)
	}()
	e := doctor(t, 1, "--nodes", "--timeout=20s")
	if e.Nodes.Looked != 3 || len(e.Nodes.Unreachable) != 1 || e.Nodes.Unreachable[0].Nodes != "n2" || e.Problems != 0 {
		t.Errorf("%+v", e.Nodes)
	}
	nodes := map[string]string{}
	for _, f := range e.Nodes.Findings {
		if f.Verdict == "problem" {
			nodes[f.What] = f.Nodes
		}
	}
	if nodes["in "+libs+", provider-ibverbs.so is of another build than the rest"] != "n3" || nodes["no libsigmatrace.so in "+libs] != "n4" {
		t.Errorf("problems %v", nodes)
	}
	different := false
	for _, d := range e.Nodes.Differences {
		if d.Fact == "recorder in "+libs && len(d.Values) == 3 {
			different = true
		}
	}
	if !different {
		t.Errorf("differences %+v", e.Nodes.Differences)
	}
	r := root.run(built(t, "bin/sigmatrace"), "doctor", "--nodelist=n[1,4]")
	for _, want := range []string{"  differ   recorder in " + libs, "no libsigmatrace.so in " + libs, "2 nodes looked at"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("no %q in\n%s", want, r.stdout)
		}
	}
	if bytes.Contains([]byte(r.stdout), []byte("n2")) {
		t.Errorf("n2 was not asked for\n%s", r.stdout)
	}
}

// A node whose slurmd hangs is named when its time is up, holds nothing up, and has no job of ours left when it comes back.
func TestDoctorIsNotHeldUpByANode(t *testing.T) {
	site(t)
	root := &job{t: t, user: "root", dir: cluster}
	root.ok("sh", "-c", "kill -STOP $(pgrep -f '^slurmd -D -N n2')")
	defer func() {
		root.ok("sh", "-c", "kill -CONT $(pgrep -f '^slurmd -D -N n2')")
		idle(t)
		if r := root.ok("squeue", "--noheader"); r.stdout != "" {
			t.Errorf("jobs are left\n%s", r.stdout)
		}
	}()
	e := doctor(t, 1, "--nodes", "--timeout=20s")
	if u := e.Nodes.Unreachable; e.Nodes.Looked != 3 || len(u) != 1 || u[0].Nodes != "n2" || u[0].Reason != "no answer within 20s" {
		t.Errorf("%+v", e.Nodes)
	}
}
