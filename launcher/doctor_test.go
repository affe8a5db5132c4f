package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"golang.org/x/sys/unix"
)

// What doctor says of an argument is what the plugin does with it, and there is none that doctor does not know.
func TestArgumentsAreCheckedAsThePluginDoes(t *testing.T) {
	if _, err := os.Stat("/usr/include/slurm/spank.h"); err != nil {
		t.Skip("slurm/spank.h is not installed (libslurm-dev)")
	}
	source, err := os.ReadFile("../spank/site.c")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`strcmp\(name, "([a-z_]+)"\)|\{"([a-z_]+)", &s->`).FindAllStringSubmatch(string(source), -1) {
		if name := m[1] + m[2]; siteArguments[name] == nil {
			t.Errorf("the plugin takes %s=, doctor does not know it", name)
		}
	}
	var arguments []string
	for name := range siteArguments {
		for _, value := range []string{"", "x", "/x", "/x/%u", "5", "+5", "-5", "10", "11", "255", "256", "3600", "3601", "1%", "0.25%", "100%", "100.0%", "101%", "1.%", ".5%", "0.00001%", "1", "100.0001%",
			"/a:b", "/" + strings.Repeat("y", 4094), "/" + strings.Repeat("y", 4095), strings.Repeat("y", 1023), strings.Repeat("y", 1024), "99999999999999999999", "1 "} {
			arguments = append(arguments, name+"="+value)
		}
	}
	arguments = append(arguments, "locked", "locked=1", "", "=", "unknown=1", "rate", strings.Repeat("n", 40)+"=1")
	program := filepath.Join(t.TempDir(), "arguments")
	if out, err := exec.Command("gcc", "-std=gnu11", "-Wall", "-Werror", "-I../spank", "-o", program, "testdata/arguments.c", "../spank/site.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(program, arguments...).Output()
	if err != nil {
		t.Fatal(err)
	}
	verdicts := strings.Fields(string(out))
	if len(verdicts) != len(arguments) {
		t.Fatalf("%d verdicts of %d", len(verdicts), len(arguments))
	}
	for i, a := range arguments {
		if err := checkArgument(a); (err == nil) != (verdicts[i] == "1") {
			t.Errorf("%.80q: the plugin says %s, doctor %v", a, verdicts[i], err)
		}
	}
}

func TestPlugstackIsReadAsSlurmDoes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("plugstack.conf", "# comment\noptional /usr/lib/other.so x=1\ninclude *.more\n\n")
	write("a.more", "  required\t/opt/spank_sigmatrace-22.05.so rate=1%\tlocked # ours\n")
	write("b.more", "optional spank_sigmatrace.so\n")
	lines, files, err := readPlugstack(filepath.Join(dir, "plugstack.conf"))
	if err != nil || len(files) != 3 || len(lines) != 2 {
		t.Fatalf("%v, %v, %v", lines, files, err)
	}
	if l := lines[0]; l.where != filepath.Join(dir, "a.more")+":1" || !l.required || l.plugin != "/opt/spank_sigmatrace-22.05.so" || !slices.Equal(l.arguments, []string{"rate=1%", "locked"}) {
		t.Errorf("%+v", l)
	}
	write("c.more", "include plugstack.conf\n")
	if _, _, err := readPlugstack(filepath.Join(dir, "plugstack.conf")); err == nil || !strings.Contains(err.Error(), "includes itself") {
		t.Errorf("a circle: %v", err)
	}
}

// Whatever an include leads to is named, soon: it holds up or ends Slurm's own commands.
func TestPlugstackThatLeadsAstray(t *testing.T) {
	for name, c := range map[string]struct {
		make func(dir string) error
		want string
	}{
		"a pipe":             {func(dir string) error { return unix.Mkfifo(filepath.Join(dir, "in"), 0o600) }, "in: not a regular file"},
		"a device":           {func(dir string) error { return os.Symlink("/dev/zero", filepath.Join(dir, "in")) }, "in: not a regular file"},
		"a huge file":        {func(dir string) error { return os.WriteFile(filepath.Join(dir, "in"), make([]byte, 2<<20), 0o600) }, "in: file too large"},
		"more and more":      {func(dir string) error { return manyIncludes(dir, 9) }, "more than 1000 files"},
		"two that are alike": {func(dir string) error { return manyIncludes(dir, 1) }, "includes itself"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			conf := filepath.Join(dir, "plugstack.conf")
			if err := errors.Join(os.WriteFile(conf, []byte("include in*\n"), 0o600), c.make(dir)); err != nil {
				t.Fatal(err)
			}
			failed := make(chan error, 1)
			go func() {
				_, _, err := readPlugstack(conf)
				failed <- err
			}()
			select {
			case err := <-failed:
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("it is still being read")
			}
		})
	}
}

// manyIncludes makes levels of nine files that each include all of the next; one level alone includes itself.
func manyIncludes(dir string, levels int) error {
	var failed []error
	for level := range levels {
		text := "include in" + strings.Repeat("x", (level+1)%levels) + "[0-9]\n"
		if level > 0 && level == levels-1 {
			text = "# the end\n"
		}
		for i := range 9 {
			failed = append(failed, os.WriteFile(filepath.Join(dir, fmt.Sprintf("in%s%d", strings.Repeat("x", level), i)), []byte(text), 0o600))
		}
	}
	return errors.Join(failed...)
}

func TestNodesAreWrittenAsSlurmDoes(t *testing.T) {
	for want, nodes := range map[string][]string{
		"n1": {"n1"}, "n[1-3,7]": {"n7", "n1", "n2", "n3"}, "login,n[009-010],n[1,3]": {"n009", "n010", "n1", "n3", "login"}, "a1,b1": {"a1", "b1"},
	} {
		if got := nodeList(nodes); got != want {
			t.Errorf("%v: %s, want %s", nodes, got, want)
		}
	}
}

// doctorIn runs doctor with the libraries in dir.
func doctorIn(t *testing.T, dir string) (*diagnosis, int) {
	t.Helper()
	cmd := exec.Command("sigmatrace", "doctor", "--json", "--plugstack", "/nonexistent")
	cmd.Env = append(os.Environ(), "SIGMATRACE_LIBDIR="+dir)
	out, err := cmd.Output()
	if err != nil && cmd.ProcessState.ExitCode() != exitFailure {
		t.Fatal(err)
	}
	compiled, err := jsonschema.NewCompiler().Compile("schema/doctor.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	if err := compiled.Validate(value); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	var d diagnosis
	if err := json.Unmarshal(out, &d); err != nil {
		t.Fatal(err)
	}
	return &d, cmd.ProcessState.ExitCode()
}

// A library that is another build's, missing, no library, or closed to users is told; a whole set is well.
func TestDoctorLooksAtEachLibrary(t *testing.T) {
	libs := t.TempDir()
	compile := func(name, text string) {
		source := filepath.Join(t.TempDir(), "x.c")
		if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("gcc", "-shared", "-fPIC", "-Wl,--build-id", "-o", filepath.Join(libs, name), source).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	list := func(version string) {
		text := "sigmatrace " + version + "\n"
		for _, name := range []string{"libsigmatrace.so", "provider-ucx.so"} {
			text += name + " " + buildID(filepath.Join(libs, name)) + "\n"
		}
		if err := os.WriteFile(filepath.Join(libs, buildFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	compile("libsigmatrace.so", "int a;")
	compile("provider-ucx.so", "int b;")
	list(version)
	of := func(d *diagnosis) string {
		text := ""
		for _, f := range d.Findings {
			if f.Area == "recorder" && f.Verdict == verdictProblem && !strings.Contains(f.What, "can be written to") {
				text += f.What + "\n"
			}
		}
		return text
	}
	if d, _ := doctorIn(t, libs); of(d) != "" || !slices.ContainsFunc(d.Findings, func(f finding) bool {
		return f.Verdict == verdictOK && f.What == "the libraries in "+libs+" are of this version"
	}) {
		t.Errorf("a whole set: %s %+v", of(d), d.Findings)
	}
	for what, damage := range map[string]func(){
		"are of version v0, this command of " + version: func() { list("v0") },
		"provider-ucx.so is of another build":           func() { compile("provider-ucx.so", "int c;") },
		"provider-ucx.so is missing":                    func() { os.Remove(filepath.Join(libs, "provider-ucx.so")) }, //nolint:errcheck // seen below
		"provider-ucx.so cannot be preloaded": func() {
			if err := os.WriteFile(filepath.Join(libs, "provider-ucx.so"), []byte("no library"), 0o644); err != nil {
				t.Fatal(err)
			}
		},
		"provider-ucx.so cannot be read by all": func() {
			if err := os.Chmod(filepath.Join(libs, "provider-ucx.so"), 0o700); err != nil {
				t.Fatal(err)
			}
		},
		"no libsigmatrace.so in " + libs: func() { os.Remove(filepath.Join(libs, "libsigmatrace.so")) }, //nolint:errcheck // seen below
	} {
		compile("libsigmatrace.so", "int a;")
		compile("provider-ucx.so", "int b;")
		list(version)
		damage()
		if d, status := doctorIn(t, libs); !strings.Contains(of(d), what) || status != exitFailure {
			t.Errorf("status %d, no %q in\n%s", status, what, of(d))
		}
	}
}

// What is told of a library's version is what the package says that it is of.
func TestVersionsOfTracedLibraries(t *testing.T) {
	for _, c := range []struct {
		soname, pkg string
		version     func() string
	}{
		{"libibverbs.so.1", "libibverbs1", func() string { return rdmaCore(t.Context(), "/usr/lib/x86_64-linux-gnu/libibverbs.so.1") }},
		{"libfabric.so.1", "libfabric1", func() string { return libfabricVersion(t.Context(), "/usr/lib/x86_64-linux-gnu/libfabric.so.1") }},
		{"libucp.so.0", "libucx0", func() string { return ucxVersion(t.Context(), "") }},
	} {
		out, err := exec.Command("dpkg-query", "-W", "-f=${Version}", c.pkg).Output()
		if err != nil {
			t.Skipf("%s is not installed as Debian's package %s", c.soname, c.pkg)
		}
		got := c.version()
		if got == "" && c.pkg == "libucx0" {
			if _, err := exec.LookPath("ucx_info"); err != nil {
				continue // and doctor says so
			}
		}
		if number := regexp.MustCompile(`^[0-9]+\.[0-9]+`).FindString(string(out)); got == "" || number != series(got) {
			t.Errorf("%s: %q, the package is of %s", c.soname, got, out)
		}
	}
}

// Where plugins of several Slurms are installed side by side, the one that fits is named.
func TestDoctorNamesThePluginThatFits(t *testing.T) {
	dir := t.TempDir()
	for name, number := range map[string]string{"spank_sigmatrace-22.05.so": "0x160508", "spank_sigmatrace-23.11.so": "0x170b01"} {
		source := filepath.Join(dir, "x.c")
		if err := os.WriteFile(source, []byte("const unsigned plugin_version = "+number+";\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", filepath.Join(dir, name), source).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	wrong := filepath.Join(dir, "spank_sigmatrace-22.05.so")
	d := &diagnosis{Facts: map[string]string{}}
	d.plugin(&slurmState{version: "23.11.4"}, wrong)
	told := slices.ContainsFunc(d.Findings, func(f finding) bool {
		return strings.HasSuffix(f.What, "is built for Slurm 22.05, and Slurm here is 23.11.4: it is not loaded") && strings.Contains(f.Hint, "name "+dir+"/spank_sigmatrace-23.11.so")
	})
	if !told {
		t.Errorf("%+v", d.Findings)
	}
	if hint := fitting(wrong, "24.11.5"); !strings.Contains(hint, "headers of Slurm 24.11") {
		t.Errorf("where none fits: %s", hint)
	}
	if v, err := pluginVersion("/bin/true"); err == nil {
		t.Errorf("a program is a plugin of %s", v)
	}
}

// Where there is a driver of GPUs it is told what else recording of them takes; elsewhere nothing is.
func TestDoctorLooksAtWhatGPUsTake(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("LD_LIBRARY_PATH", dir)
	have := func(names ...string) string {
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var d diagnosis
		d.gpus("")
		var all []string
		for _, f := range d.Findings {
			all = append(all, f.Verdict+" "+strings.ReplaceAll(f.What, dir, "DIR"))
		}
		return strings.Join(all, "\n")
	}
	if got := have("libmlx5.so.1"); got != "" {
		t.Errorf("without GPUs: %s", got)
	}
	if got := have("libcuda.so.1"); !strings.HasPrefix(got, "ok CUDA driver: DIR/libcuda.so.1\nok libmlx5, for queues that GPUs ring: DIR/libmlx5.so.1\n") {
		t.Error(got)
	}
	if got := have("libcupti.so.12"); !strings.HasSuffix(got, "\nok CUPTI, for the times of kernels: DIR/libcupti.so.12") {
		t.Error(got)
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, "libcuda.so.1")), os.Remove(filepath.Join(dir, "libmlx5.so.1"))); err != nil {
		t.Fatal(err)
	}
	if got := have("libamdhip64.so.6"); got != "ok HIP: DIR/libamdhip64.so.6\nnote libmlx5 (libmlx5.so.1) is not installed here" {
		t.Error(got)
	}
}
