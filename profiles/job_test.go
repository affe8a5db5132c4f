package profiles

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func job(t *testing.T, r Request) *Job {
	t.Helper()
	res, err := Resolve(r)
	if err != nil {
		t.Fatal(err)
	}
	j, err := NewJob(r, res)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// Every value, where it came from and what was asked for arrive as they left, whatever characters are in them.
func TestJobArrivesAsItLeft(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mine.toml")
	if err := os.WriteFile(file, []byte("extends = \"full\"\n[record]\nbudget = \"9MiB\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	sent := job(t, Request{Profile: file, Set: []string{"output.directory=/a;b%%3B%%25c=d é/%j", "ranks.include=0-3"}, Environ: map[string]string{"SIGMATRACE_MODE": "aggregate"}})
	text, err := sent.Text()
	if err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(text, "\n\x00") {
		t.Errorf("text %q is no variable of one line", text)
	}
	got, err := ParseJob(text)
	if err != nil {
		t.Fatal(err)
	}
	if got.Asked != file || !slices.Equal(got.Set, sent.Set) || !slices.Equal(got.Files, []string{file, "built in full.toml", "built in simple.toml"}) || got.Profile.Name != "mine" {
		t.Errorf("asked %q, set %q, files %q, name %q", got.Asked, got.Set, got.Files, got.Profile.Name)
	}
	for i, v := range sent.Profile.Values() {
		if g := got.Profile.Values()[i]; !v.Key.FileOnly && (g.Text != v.Text || g.Source != v.Source) {
			t.Errorf("%s is %q from %q, want %q from %q", v.Key.Name, g.Text, g.Source, v.Text, v.Source)
		}
	}
	again, err := got.Text()
	if err != nil || again != text {
		t.Errorf("sent on it is\n%s\nnot\n%s\n%v", again, text, err)
	}
}

// A job's base for run directories means the same wherever its script has gone.
func TestJobHasAnAbsoluteOutput(t *testing.T) {
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for set, want := range map[string]string{"output.directory=": here, "output.directory=runs/%j": here + "/runs/%j", "output.directory=/a/%u": "/a/%u"} {
		if got := job(t, Request{Profile: "simple", Set: []string{set}}).Profile.Text("output.directory"); got != want {
			t.Errorf("%s: %q, want %q", set, got, want)
		}
		_, as, _ := strings.Cut(set, "=")
		if got := job(t, Request{Profile: "simple", Set: []string{set}, Relative: true}).Profile.Text("output.directory"); got != as {
			t.Errorf("%s, left relative: %q", set, got)
		}
	}
}

// In the name of the directory that somebody is in a percent sign is one.
func TestJobsDirectoryHasNoPlaceholders(t *testing.T) {
	base := t.TempDir()
	for name, in := range map[string]string{"100%": "", "%j of %s": "runs", "50%z%%": "%j"} {
		here := filepath.Join(base, name)
		if err := os.Mkdir(here, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Chdir(here)
		text := job(t, Request{Profile: "simple", Set: []string{"output.directory=" + in}}).Profile.Text("output.directory")
		got, err := (&Facts{Job: "7"}).Expand(text)
		if want := filepath.Join(here, strings.ReplaceAll(in, "%j", "7")); err != nil || got != want {
			t.Errorf("%q in %s: %q, want %q (%v)", in, here, got, want, err)
		}
	}
}

func TestSiteOutputHoldsWhereNobodySaysOtherwise(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"silent": "extends = \"full\"\n", "says": "extends = \"full\"\n[output]\ndirectory = \"/mine\"\n"} {
		if err := os.WriteFile(filepath.Join(dir, name+".toml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		r    Request
		want string
	}{
		{Request{Profile: "simple"}, "/site"},
		{Request{Profile: "silent"}, "/site"},
		{Request{Profile: "says"}, "/mine"},
		{Request{Profile: "simple", Environ: map[string]string{"SIGMATRACE_OUTPUT_DIRECTORY": "/env"}}, "/env"},
		{Request{Profile: "simple", Set: []string{"output.directory=/line"}}, "/line"},
	} {
		c.r.Output, c.r.Search = "/site", Search{Dirs: []string{dir}}
		res, err := Resolve(c.r)
		if err != nil {
			t.Fatal(err)
		}
		if got := res.Text("output.directory"); got != c.want {
			t.Errorf("%+v: %q, want %q", c.r, got, c.want)
		}
	}
	if _, err := Resolve(Request{Profile: "simple", Output: "/%x"}); err == nil {
		t.Error("a site's output with an unknown placeholder is accepted")
	}
}

// What arrives may come from anybody.
func TestJobIsChecked(t *testing.T) {
	good, err := job(t, Request{Profile: "simple"}).Text()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty":             "",
		"no version":        "x" + good,
		"newer":             "2" + good[1:],
		"no name":           strings.Replace(good, ";name=simple", "", 1),
		"a name like off":   strings.Replace(good, ";name=simple", ";name=off", 1),
		"a path for a name": strings.Replace(good, ";name=simple", ";name=../x", 1),
		"no file":           strings.ReplaceAll(good, "file=", "life="),
		"a bad value":       strings.Replace(good, "mode=simple", "mode=all", 1),
		"a bad list":        strings.Replace(good, "providers=ucx,", "providers=ucx,../x,", 1),
		"no value":          good + ";mode",
		"a newline":         strings.Replace(good, "output.directory=", "output.directory=\n", 1),
		"a bad pair":        strings.Replace(strings.Replace(good, "record.budget=268435456", "record.budget=1048576", 1), "record.chunk=65536", "record.chunk=1048576", 1),
		"too long":          good + ";more=" + strings.Repeat("x", MaxJob),
	} {
		if text == good {
			t.Fatalf("%s: nothing was replaced", name)
		}
		if _, err := ParseJob(text); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if j, err := ParseJob(good + ";later.key=7"); err != nil || j.Profile.Name != "simple" {
		t.Errorf("a key of a later version: %v", err)
	}
	if _, err := job(t, Request{Profile: "simple", Set: slices.Repeat([]string{"processes.exclude=" + strings.Repeat("x", 4000)}, 10)}).Text(); err == nil {
		t.Error("a text of more than MaxJob bytes is given out")
	}
}

func FuzzParseJob(f *testing.F) {
	f.Add("1;asked=full;file=built in full.toml;name=full;mode=full")
	f.Add("1;name=%25%3B;file=x")
	f.Fuzz(func(t *testing.T, text string) {
		j, err := ParseJob(text)
		if err != nil {
			return
		}
		again, err := j.Text()
		if err != nil {
			return // longer than MaxJob with every default written out
		}
		if _, err := ParseJob(again); err != nil {
			t.Errorf("%q is not read again: %v", again, err)
		}
	})
}
