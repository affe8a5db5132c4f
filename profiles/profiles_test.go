package profiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// write makes profile files below a new directory, each argument pair being a path and its text.
func write(t *testing.T, pairs ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(pairs); i += 2 {
		path := filepath.Join(dir, pairs[i])
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(pairs[i+1]), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestErrorsInFilesNameLineAndNearest(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string // "line: text" of each error, in order
	}{
		{"unknown key", "mode = \"full\"\n\n[record]\nbudgte = 1\n", []string{`4: unknown key "record.budgte"; did you mean "record.budget"?`}},
		{"key in the wrong table", "budget = \"2MiB\"\n", []string{`1: unknown key "budget"; did you mean "record.budget"?`}},
		{"unknown table", "\n[recrod]\nbudget = 1\n", []string{`2: unknown table [recrod]; did you mean "record"?`}},
		{"bad enum", "mode = \"ful\"\n", []string{`1: mode: "ful" is not valid; did you mean "full"?`}},
		{"no quotes", "\nmode = full # all\n", []string{`2: expected keyword "false": words stand in quotes`}},
		{"bad list entry", "providers = [\"ucx\",\n \"ibverb\"]\n", []string{`1: providers: "ibverb" is not valid; did you mean "ibverbs"?`}},
		{"entry twice", "providers = [\"ucx\", \"ucx\"]\n", []string{`1: providers: "ucx" is there twice`}},
		{"empty list", "providers = []\n", []string{`1: providers: an empty list`}},
		{"not a size", "[record]\nbudget = \"10MB\"\n", []string{`2: record.budget: "10MB" is not a size`}},
		{"too small", "record.budget = 4096\n", []string{`1: record.budget: 4KiB is less than 1MiB`}},
		{"chunk not a power of two", "record = { chunk = \"48KiB\" }\n", []string{`1: record.chunk: 48KiB is not a power of two`}},
		{"chunk too large", "[record]\nchunk = \"2MiB\"\n", []string{`2: record.chunk: 2MiB is more than 1MiB`}},
		{"string for a boolean", "[merge]\nat_job_end = \"yes\"\n", []string{`2: merge.at_job_end: a string where true or false is needed`}},
		{"number for a string", "mode = 3\n", []string{`1: mode: an integer where a string is needed`}},
		{"unknown placeholder", "[output]\ndirectory = \"/x/%q\"\n", []string{`2: output.directory: unknown placeholder "%q" in "/x/%q"`}},
		{"control character", "description = \"a\\nb\"\n", []string{`1: description: control character 0x0a in the value`}},
		{"another name", "name = \"other\"\n", []string{`1: name: "other" is not the file's name`}},
		{"key twice", "mode = \"full\"\nmode = \"simple\"\n", []string{`2: `}},
		{"syntax", "mode = \"full\"\nproviders = [\n", []string{`2: array is incomplete`}},
		{"two errors", "mode = \"x\"\nprovidres = []\n", []string{`1: mode: "x" is not valid`, `2: unknown key "providres"; did you mean "providers"?`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(write(t, "p.toml", c.text), "p.toml")
			_, err := ReadFile(path)
			var problems Problems
			if !errors.As(err, &problems) {
				t.Fatalf("got %v, want Problems", err)
			}
			if len(problems) != len(c.want) {
				t.Fatalf("got %d errors, want %d: %v", len(problems), len(c.want), err)
			}
			for i, p := range problems {
				if want := path + ":" + c.want[i]; !strings.HasPrefix(p.Error(), want) {
					t.Errorf("got  %s\nwant %s", p.Error(), want)
				}
			}
		})
	}
}

func TestErrorsListTheValidValues(t *testing.T) {
	path := filepath.Join(write(t, "p.toml", "mode = \"zzzzzz\"\n"), "p.toml")
	_, err := ReadFile(path)
	var problems Problems
	if !errors.As(err, &problems) || problems[0].Hint() != "valid: aggregate, simple, full" || problems[0].Nearest != "" {
		t.Errorf("got %+v", err)
	}
}

func resolve(t *testing.T, r Request) *Resolved {
	t.Helper()
	res, err := Resolve(r)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestPrecedence(t *testing.T) {
	dir := write(t, "a.toml", "extends = \"b\"\nmode = \"full\"\n", "b.toml", "mode = \"aggregate\"\n[record]\nbudget = \"3MiB\"\nchunk = \"32KiB\"\n")
	search := Search{Dirs: []string{dir}}
	a, b := filepath.Join(dir, "a.toml"), filepath.Join(dir, "b.toml")
	env := map[string]string{"SIGMATRACE_RECORD_BUDGET": "5MiB", "SIGMATRACE_PROVIDERS": "ibverbs", "SIGMATRACE_RECORD_BACK_END": "", "SIGMATRACE_PROFILE": "b"}
	res := resolve(t, Request{Profile: "a", Environ: env, Search: search, Providers: "ucx", Set: []string{"merge.memory=64MiB", "merge.memory=128MiB"}})
	for key, want := range map[string][2]string{
		"mode":            {"full", a + ":2"},
		"record.chunk":    {"32768", b + ":4"},
		"record.budget":   {"5242880", "environment SIGMATRACE_RECORD_BUDGET"},
		"record.back_end": {"auto", "default"}, // an empty variable is none
		"providers":       {"ucx", "command line --providers"},
		"merge.memory":    {"134217728", "command line --set"},
	} {
		if v := res.values[key]; v.Text != want[0] || v.Source != want[1] {
			t.Errorf("%s: got %q from %q, want %q from %q", key, v.Text, v.Source, want[0], want[1])
		}
	}
	if res := resolve(t, Request{Environ: env, Search: search}); res.Name != "b" || res.ByName != "environment SIGMATRACE_PROFILE" {
		t.Errorf("got profile %s by %s", res.Name, res.ByName)
	}
	if res := resolve(t, Request{Search: search}); res.Name != "simple" || res.ByName != "default" {
		t.Errorf("got profile %s by %s", res.Name, res.ByName)
	}
}

func TestEveryKeyHasAnEnvironmentTwin(t *testing.T) {
	other := map[string]string{"mode": "full", "providers": "ibverbs", "record.budget": "7MiB", "record.memory": "9MiB", "record.scratch": "/s", "record.place": "disk", "record.chunk": "16KiB",
		"record.back_end": "written", "ucx.level": "uct", "gpu.kernels": "times", "gpu.counters": "off", "nccl.events": "coll,steps", "clock.source": "messages", "clock.warn_above": "5us", "clock.repair": "on", "merge.at_job_end": "no", "merge.exports": "json", "merge.memory": "70MiB",
		"record.nvtx": "off", "window.start": "closed", "window.delay": "90s", "window.duration": "1h", "window.max_events": "5", "window.control": "no",
		"ranks.include": "9, 0-7,8", "ranks.exclude": "3", "processes.exclude": "bash, python*", "epoch.interval": "10s", "epoch.phases": "yes",
		"doorbell.enabled": "no", "doorbell.batch_threshold": "512", "doorbell.poll": "umwait", "doorbell.cpus": "4,2-3", "doorbell.threads": "1",
		"merge.keep_captures": "0", "merge.slurm_bytes": "1GiB", "merge.slurm_time": "2m", "merge.slurm_workers": "4", "merge.slurm_nice": "19", "output.directory": "/o/%u"}
	for i := range Keys {
		k := &Keys[i]
		if k.FileOnly {
			continue
		}
		text, ok := other[k.Name]
		if !ok {
			t.Errorf("no value for %s in this test", k.Name)
			continue
		}
		want, err := k.Canonical(text)
		if err != nil || want == k.Default {
			t.Fatalf("%s: %q gives %q, %v", k.Name, text, want, err)
		}
		res := resolve(t, Request{Environ: map[string]string{k.Variable(): text}})
		if res.Text(k.Name) != want {
			t.Errorf("%s=%s: got %q, want %q", k.Variable(), text, res.Text(k.Name), want)
		}
	}
}

func TestErrorsFromOutsideNameTheirPlace(t *testing.T) {
	for _, c := range []struct {
		r    Request
		want string
	}{
		{Request{Environ: map[string]string{"SIGMATRACE_RECORD_BUGDET": "1"}}, `SIGMATRACE_RECORD_BUGDET: unknown variable; did you mean "SIGMATRACE_RECORD_BUDGET"?`},
		{Request{Environ: map[string]string{"SIGMATRACE_MERGE_THREADS": "1"}}, `SIGMATRACE_MERGE_THREADS: unknown variable`},
		{Request{Environ: map[string]string{"SIGMATRACE_BUDGET": "1"}}, `SIGMATRACE_BUDGET: unknown variable; did you mean "SIGMATRACE_RECORD_BUDGET"?`},
		{Request{Environ: map[string]string{"SIGMATRACE_PROVIDER": "ucx"}}, `SIGMATRACE_PROVIDER: unknown variable; did you mean "SIGMATRACE_PROVIDERS"?`},
		{Request{Environ: map[string]string{"SIGMATRACE_MODE": "fulll"}}, `SIGMATRACE_MODE: "fulll" is not valid; did you mean "full"?`},
		{Request{Environ: map[string]string{"SIGMATRACE_PROFILE": "simpel"}}, `environment SIGMATRACE_PROFILE: unknown profile "simpel"; did you mean "simple"?`},
		{Request{Profile: "ful"}, `command line: unknown profile "ful"; did you mean "full"?`},
		{Request{Providers: "ucs"}, `--providers: "ucs" is not valid; did you mean "ucx"?`},
		{Request{Set: []string{"record.budget"}}, `--set record.budget: no value`},
		{Request{Set: []string{"name=x"}}, `--set name: unknown key "name"`},
		{Request{Set: []string{"record.chunk=1"}}, `--set record.chunk: 1 is less than 16KiB`},
		{Request{Set: []string{"record.budget=7MiB", "record.chunk=1MiB"}},
			`command line --set: record.budget: 7MiB is less than 8 chunks of 1MiB (record.chunk, command line --set)`},
		{Request{Set: []string{"window.start=closed", "window.control=false"}}, `command line --set: window.start: with closed and window.control = false`},
		{Request{Profile: "off"}, `command line: "off" switches tracing off`},
	} {
		_, err := Resolve(c.r)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
		var list Problems
		for _, name := range []string{"name", "window"} { // what was written is no advice
			if errors.As(err, &list) && list[0].Nearest == name {
				t.Errorf("got %v", err)
			}
		}
	}
}

// The tests of this repository, for one, have variables of their own.
func TestVariablesOfOthersAreLeftAlone(t *testing.T) {
	resolve(t, Request{Environ: map[string]string{"SIGMATRACE_TEST_QUICK": "1", "SIGMATRACE_ALLOWED_SKIPS": "a", "SIGMATRACE_FRESH": "1", "SIGMATRACE_RECORD_BUGDET": ""}})
}

func TestSearchOrder(t *testing.T) {
	path := write(t, "one/x.toml", "description = \"one\"\n", "two/x.toml", "description = \"two\"\n", "two/y.toml", "",
		"home/sigmatrace/profiles/z.toml", "description = \"user\"\n")
	env := map[string]string{"SIGMATRACE_PROFILE_PATH": path + "/one:" + path + "/two", "XDG_CONFIG_HOME": path + "/home"}
	s := DefaultSearch(func(name string) string { return env[name] })
	want := []string{path + "/one", path + "/two", path + "/home/sigmatrace/profiles", "/etc/sigmatrace/profiles"}
	if strings.Join(s.Dirs, " ") != strings.Join(want, " ") {
		t.Errorf("got %v, want %v", s.Dirs, want)
	}
	f, err := s.Find("x")
	if err != nil || f.value("description") != "one" {
		t.Errorf("got %v, %v", f, err)
	}
	f, err = s.Find(path + "/two/x.toml")
	if err != nil || f.value("description") != "two" {
		t.Errorf("an explicit file: got %v, %v", f, err)
	}
	for _, l := range s.List() {
		if l.Name == "x" && (l.Path != path+"/one/x.toml" || len(l.Hides) != 1 || l.Hides[0] != path+"/two/x.toml") {
			t.Errorf("got %+v", l)
		}
	}
	if dir := UserDirectory(func(name string) string { return map[string]string{"HOME": "/h"}[name] }); dir != "/h/.config/sigmatrace/profiles" {
		t.Errorf("got %s", dir)
	}
}

// A home of another user or one that is /dev/null hides nothing; a file that is there and cannot be read is said.
func TestUnreachableDirectoriesAreSkipped(t *testing.T) {
	path := write(t, "file", "", "loop/simple.toml", "")
	if err := os.Remove(path + "/loop/simple.toml"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("simple.toml", path+"/loop/simple.toml"); err != nil {
		t.Fatal(err)
	}
	s := Search{Dirs: []string{"/dev/null/profiles", path + "/file", path + "/none"}}
	if f, err := s.Find("simple"); err != nil || f.Path != "" {
		t.Errorf("got %v, %v", f, err)
	}
	s.Dirs = append(s.Dirs, path+"/loop")
	if f, err := s.Find("simple"); err == nil {
		t.Errorf("got %v", f)
	}
}

// The same for a user who may not search the directory, and for one who may but not read the file.
func TestDirectoriesOfOthersAreSkipped(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	dir := write(t, "profiles/simple.toml", "mode = \"full\"\n") + "/profiles"
	if err := os.Chmod(dir+"/simple.toml", 0o600); err != nil {
		t.Fatal(err)
	}
	find := func() (f *File, err error) {
		done := make(chan bool)
		go func() { // a thread of its own, which ends with its rights
			defer close(done)
			runtime.LockOSThread()
			unix.Setfsuid(65534) //nolint:errcheck // says what it was before
			f, err = Search{Dirs: []string{dir}}.Find("simple")
		}()
		<-done
		return f, err
	}
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if f, err := find(); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a file that cannot be read: %v, %v", f, err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if f, err := find(); err != nil || f.Path != "" {
		t.Errorf("a directory that cannot be searched: %v, %v", f, err)
	}
}

func TestUsersFileMayExtendTheBuiltInOfTheSameName(t *testing.T) {
	path := write(t, "user/simple.toml", "extends = \"simple\"\n[record]\nbudget = \"9MiB\"\n", "site/simple.toml", "extends = \"simple\"\nmode = \"full\"\n")
	res := resolve(t, Request{Profile: "simple", Search: Search{Dirs: []string{path + "/user", path + "/site"}}})
	if len(res.Chain) != 3 || res.Chain[2].Place() != "built in simple.toml" {
		t.Fatalf("chain of %d", len(res.Chain))
	}
	if res.Text("record.budget") != "9437184" || res.Text("mode") != "full" || res.Text("record.chunk") != "65536" {
		t.Errorf("got %+v", res.values)
	}
	// From a file outside the search path the whole path is searched.
	res = resolve(t, Request{Profile: path + "/user/simple.toml", Search: Search{Dirs: []string{path + "/site"}}})
	if len(res.Chain) != 3 || res.Text("mode") != "full" {
		t.Errorf("chain of %d, mode %s", len(res.Chain), res.Text("mode"))
	}
}

func TestExtendsAPathRelativeToTheFile(t *testing.T) {
	path := write(t, "d/a.toml", "extends = \"../base.toml\"\n", "base.toml", "mode = \"full\"\n")
	if res := resolve(t, Request{Profile: path + "/d/a.toml"}); res.Text("mode") != "full" {
		t.Errorf("got %s", res.Text("mode"))
	}
}

func TestExtendsInACircle(t *testing.T) {
	path := write(t, "a.toml", "extends = \"b\"\n", "b.toml", "\nextends = \"c\"\n", "c.toml", "extends = \"b\"\n", "self.toml", "extends = \"./self.toml\"\n")
	s := Search{Dirs: []string{path}}
	for name, want := range map[string]string{
		"a":    fmt.Sprintf("%s/c.toml:1: extends goes in a circle: %s/b.toml -> %s/c.toml -> %s/b.toml", path, path, path, path),
		"self": fmt.Sprintf("%s/self.toml:1: extends goes in a circle: %s/self.toml -> %s/self.toml", path, path, path),
	} {
		_, err := Resolve(Request{Profile: name, Search: s})
		if err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	_, err := Resolve(Request{Profile: "x", Search: Search{Dirs: []string{write(t, "x.toml", "extends = \"fulll\"\n")}}})
	if err == nil || !strings.HasSuffix(err.Error(), `x.toml:1: extends: unknown profile "fulll"; did you mean "full"?`) {
		t.Errorf("got %v", err)
	}
}

// simple.toml shows every key with the schema's default, so that the file and the schema cannot drift apart.
func TestSimpleSetsEveryKeyToItsDefault(t *testing.T) {
	f, err := readBuiltin("simple")
	if err != nil {
		t.Fatal(err)
	}
	for i := range Keys {
		k := &Keys[i]
		if v, ok := f.Values[k.Name]; !k.FileOnly && (!ok || v.Text != k.Default) {
			t.Errorf("%s: simple.toml has %q, the schema %q", k.Name, v.Text, k.Default)
		}
		if v := k.Variable(); v != "" && !strings.Contains(string(f.Text), v) {
			t.Errorf("simple.toml does not name %s", v)
		}
	}
}

func TestBuiltInModes(t *testing.T) {
	for _, name := range []string{"aggregate", "simple", "full"} {
		if res := resolve(t, Request{Profile: name}); res.Text("mode") != name || res.Text("description") == "" {
			t.Errorf("%s: mode %s, description %q", name, res.Text("mode"), res.Text("description"))
		}
	}
}

func TestExportedProfileHasTheSameValues(t *testing.T) {
	path := write(t, "odd.toml", "extends = \"aggregate\"\ndescription = 'a \"quoted\" \\ one'\n[output]\ndirectory = \"/x y/%j/ü%%\"\n[record]\nbudget = 1048577\n[merge]\nexports=[]\n")
	for _, name := range []string{"aggregate", "simple", "full", path + "/odd.toml"} {
		res := resolve(t, Request{Profile: name})
		for _, comments := range []bool{true, false} {
			copied := write(t, "copy.toml", string(res.TOML("copy", comments)))
			again := resolve(t, Request{Profile: copied + "/copy.toml"})
			for i, v := range again.Values() {
				if want := res.Values()[i]; v.Text != want.Text && v.Key.Name != "name" && v.Key.Name != "extends" {
					t.Errorf("%s, comments %v: %s: got %q, want %q", name, comments, v.Key.Name, v.Text, want.Text)
				}
			}
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "17": 17, "17B": 17, "1KiB": 1024, "256MiB": 256 << 20, " 2 GiB ": 2 << 30, "1TiB": 1 << 40,
		"9223372036854775807": 1<<63 - 1} {
		if n, err := ParseSize(text); err != nil || n != want {
			t.Errorf("%q: got %d, %v", text, n, err)
		}
	}
	for _, text := range []string{"", "x", "-1", "1MB", "1mib", "1.5GiB", "9223372036854775808", "8388608TiB", "0x10", "1_000"} {
		if n, err := ParseSize(text); err == nil {
			t.Errorf("%q: got %d, want an error", text, n)
		}
	}
	for n, want := range map[int64]string{0: "0", 1: "1", 1024: "1KiB", 1536: "1536", 256 << 20: "256MiB", 3 << 40: "3TiB"} {
		if got := FormatSize(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}

func TestPlaceholders(t *testing.T) {
	env := map[string]string{"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": "3", "SLURM_STEP_ID": "0"}
	f, err := CurrentFacts(func(name string) string { return env[name] }, time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600)))
	if err != nil {
		t.Fatal(err)
	}
	f.Host, f.User, f.PID = "n1", "../u", 77
	got, err := f.Expand("/a/%j/%s/%h/%u/%t/%p/%%j")
	if want := "/a/10_3/0/n1/.._u/20260102T020405Z/77/%j"; err != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	f, _ = CurrentFacts(func(string) string { return "" }, time.Time{})
	if got, _ := f.Expand("%j.%s"); got != "nojob.nostep" {
		t.Errorf("got %s", got)
	}
	if _, err := f.Expand("a%"); err == nil {
		t.Error("a lone % was taken")
	}
}
