package rundir

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func entries(t *testing.T, dir string) int {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// Until a file is complete there is nothing of it, not even if the writer is killed; then it takes the place of what was there.
func TestWholeOrNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, want := range []string{"first", "second"} {
		before := entries(t, dir)
		err := WriteWhole(path, func(w io.Writer) error {
			if n := entries(t, dir); n != before {
				t.Errorf("%d entries while writing, want %d", n, before)
			}
			return text(want)(w)
		})
		if got := content(t, path); err != nil || got != want || entries(t, dir) != 1 {
			t.Errorf("%q, %v, %d entries", got, err, entries(t, dir))
		}
	}
	failure := errors.New("failure")
	err := WriteWhole(path, func(w io.Writer) error { return errors.Join(text("third")(w), failure) })
	if got := content(t, path); !errors.Is(err, failure) || got != "second" || entries(t, dir) != 1 {
		t.Errorf("%q, %v, %d entries", got, err, entries(t, dir))
	}
}

// A file system without files that have no name.
func TestTemporaryNames(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, keep := range []bool{false, true} {
		f, err := os.CreateTemp(dir, "x")
		if err != nil {
			t.Fatal(err)
		}
		u := &unnamed{File: f, dir: dir, base: "file", temporary: f.Name()}
		if keep {
			if err := u.rename(path); err != nil {
				t.Error(err)
			}
		}
		u.discard()
		if _, err := os.Stat(path); (err == nil) != keep || entries(t, dir) > 1 {
			t.Errorf("keep %v: %v, %d entries", keep, err, entries(t, dir))
		}
	}
}

func TestModesDoNotDependOnTheUmask(t *testing.T) {
	defer unix.Umask(unix.Umask(0o777))
	d, err := Create(filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteWhole(d.Trace(), text("x")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]fs.FileMode{d.Path(): 0o700, d.Capture(): 0o700, d.Trace(): 0o600} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, st.Mode(), err)
		}
	}
}

// A rename would put a file in the place of a link, a pipe or /dev/null.
func TestWhatIsNoFileStays(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{unix.Mkfifo(at("pipe"), 0o600), os.WriteFile(at("file"), nil, 0o600), os.Symlink("file", at("link")), os.Symlink("nothing", at("dangling"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan string)
	go func() {
		b, _ := os.ReadFile(at("pipe"))
		got <- string(b)
	}()
	if err := WriteWhole(at("pipe"), text("through")); err != nil {
		t.Error(err)
	}
	if s := <-got; s != "through" {
		t.Errorf("the pipe gave %q", s)
	}
	if err := WriteWhole(at("link"), text("linked")); err != nil || content(t, at("file")) != "linked" {
		t.Errorf("%v, %q", err, content(t, at("file")))
	}
	for name, want := range map[string]error{"dangling": fs.ErrNotExist, "": unix.EISDIR, "none/x": fs.ErrNotExist} {
		if err := WriteWhole(at(name), text("x")); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	if err := WriteWhole("/dev/full", text("x")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("/dev/full: %v", err)
	}
	for name, want := range map[string]fs.FileMode{at("pipe"): fs.ModeNamedPipe, at("link"): fs.ModeSymlink, "/dev/full": fs.ModeDevice | fs.ModeCharDevice} {
		if st, err := os.Lstat(name); err != nil || st.Mode().Type() != want {
			t.Errorf("%s is %v now, %v", name, st.Mode(), err)
		}
	}
}

func TestWhatTheRunOwns(t *testing.T) {
	d, err := Create(filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(d.Path(), link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		d.ManifestPath():                    true,
		d.ResolvedPath():                    true,
		link + "/manifest.json":             true,
		link + "/capture/n1/1.2.0.capture":  true,
		d.Capture() + "/new":                true,
		d.Path() + "/clock/n1":              true,
		d.Path() + "/x/../capture/a":        true,
		d.Trace():                           false,
		d.Path() + "/trace.json":            false,
		"capture":                           false,
		filepath.Join(d.Path(), "../other"): false,
		"/dev/null":                         false,
	} {
		if got := d.Owns(path); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}
