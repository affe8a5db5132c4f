package rundir_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// names are what a folder holds, hidden ones too.
func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func isOurs(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "ours"))
	return err == nil
}

// A folder has its name only when all is in it; a failed attempt leaves what was there, and nothing else.
func TestWriteWholeDir(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "events")
	write := func(text string, fail error) error {
		return rundir.WriteWholeDir(path, isOurs, func(inside string) error {
			if n := names(t, inside); len(n) != 0 {
				t.Errorf("the folder to fill holds %v", n)
			}
			if text == "first" {
				if _, err := os.Stat(path); err == nil {
					t.Error("the folder has its name before it is whole")
				}
			}
			put(t, filepath.Join(inside, "ours"), text)
			return fail
		})
	}
	broken := errors.New("broken")
	if err := write("first", broken); !errors.Is(err, broken) || len(names(t, dir)) != 0 {
		t.Fatalf("%v; left: %v", err, names(t, dir))
	}
	for _, text := range []string{"first", "second"} {
		if err := write(text, nil); err != nil {
			t.Fatal(err)
		}
		if err := write("third", broken); !errors.Is(err, broken) {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(path, "ours")); string(b) != text || !slices.Equal(names(t, dir), []string{"events"}) {
			t.Errorf("%q, %v; in the folder above: %v", b, err, names(t, dir))
		}
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}

// What somebody else put there is never replaced.
func TestWriteWholeDirReplacesOnlyOurs(t *testing.T) {
	never := func(string) error { t.Error("written all the same"); return nil }
	dir := t.TempDir()
	path := filepath.Join(dir, "home")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(path, "thesis.tex"), "ten years")
	if err := rundir.WriteWholeDir(path, isOurs, never); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a folder with files: %v", err)
	}
	if err := rundir.WriteWholeDir(filepath.Join(path, "thesis.tex"), isOurs, never); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a file: %v", err)
	}
	if n := names(t, dir); !slices.Equal(n, []string{"home"}) || !slices.Equal(names(t, path), []string{"thesis.tex"}) {
		t.Errorf("%v, %v", n, names(t, path))
	}
	if err := os.Mkdir(filepath.Join(dir, "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("empty", link); err != nil {
		t.Fatal(err)
	}
	err := rundir.WriteWholeDir(link, isOurs, func(inside string) error { put(t, filepath.Join(inside, "ours"), ""); return nil })
	if err != nil || !isOurs(filepath.Join(dir, "empty")) {
		t.Errorf("an empty folder behind a link: %v", err)
	}
	if to, err := os.Readlink(link); to != "empty" {
		t.Errorf("the link: %q, %v", to, err)
	}
}

// What a killed writer left goes with the next one; that of a writer at work stays.
func TestWriteWholeDirTidiesUp(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, ".events-1234")
	if err := os.MkdirAll(filepath.Join(left, "operations"), 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "events")
	err := rundir.WriteWholeDir(path, isOurs, func(outer string) error {
		return rundir.WriteWholeDir(path, isOurs, func(inner string) error {
			if _, err := os.Stat(outer); err != nil {
				t.Errorf("the folder of a writer at work: %v", err)
			}
			put(t, filepath.Join(outer, "ours"), "outer")
			put(t, filepath.Join(inner, "ours"), "inner")
			return nil
		})
	})
	// The outer writer found nothing there when it began, so what came in between stays.
	if err == nil {
		t.Error("a folder that came in between was replaced")
	}
	if b, _ := os.ReadFile(filepath.Join(path, "ours")); string(b) != "inner" || !slices.Equal(names(t, dir), []string{"events"}) {
		t.Errorf("%q; %v", b, names(t, dir))
	}
}

// The brackets in a folder's name stand for themselves: what a killed writer left is found there, and not where a pattern would look.
func TestWriteWholeDirTidiesUpBesideBrackets(t *testing.T) {
	dir := t.TempDir()
	for _, left := range []string{"run[1]/.events[2]-1234", "run1/.events2-1234"} {
		if err := os.MkdirAll(filepath.Join(dir, left, "operations"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	err := rundir.WriteWholeDir(filepath.Join(dir, "run[1]", "events[2]"), isOurs, func(inside string) error {
		put(t, filepath.Join(inside, "ours"), "")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := names(t, filepath.Join(dir, "run[1]")); !slices.Equal(n, []string{"events[2]"}) {
		t.Errorf("beside the folder: %v", n)
	}
	if n := names(t, filepath.Join(dir, "run1")); !slices.Equal(n, []string{".events2-1234"}) {
		t.Errorf("in a folder of another name: %v", n)
	}
}
