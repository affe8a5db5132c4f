package calibrate

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

func record(boot string, monotonic int64, problems ...string) *calibration.Record {
	r := &calibration.Record{Version: 1, Node: "n", Boot: boot, When: calibration.During, Tool: "test", Source: calibration.System, How: "not known",
		Reading: calibration.Reading{Counter: "tsc", After: 1, Realtime: at, Monotonic: monotonic}}
	for _, p := range problems {
		r.Problems = append(r.Problems, calibration.Problem{Name: p, Clock: "system", Text: p})
	}
	return r
}

func times(records []*calibration.Record) []int64 {
	var got []int64
	for _, r := range records {
		got = append(got, r.Reading.Monotonic)
	}
	return got
}

// The last records are there, of this boot only, also those of an earlier publisher; everybody can read them and nobody else write.
func TestPublisherKeepsTheLast(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run", "clock")
	p, err := NewPublisher(dir, 3, "b")
	if err != nil {
		t.Fatal(err)
	}
	if other, err := NewPublisher(dir, 3, "b"); err == nil {
		other.Close()
		t.Error("two publish at once")
	}
	for i := range int64(5) {
		if err := p.Add(record("b", i)); err != nil {
			t.Fatal(err)
		}
	}
	p.Close()
	got, err := Published(dir, "b", 2)
	if err != nil || !slices.Equal(times(got), []int64{3, 4}) {
		t.Errorf("after 2: %v, %v", times(got), err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".records-123"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err = NewPublisher(dir, 3, "b"); err != nil {
		t.Fatal(err)
	}
	if err := p.Add(record("b", 5)); err != nil {
		t.Fatal(err)
	}
	p.Close()
	if got, err = Published(dir, "b", -1); err != nil || !slices.Equal(times(got), []int64{3, 4, 5}) {
		t.Errorf("by a second one: %v, %v", times(got), err)
	}
	if got, err = Published(dir, "c", -1); err != nil || len(got) > 0 {
		t.Errorf("of another boot: %v, %v", times(got), err)
	}
	for path, mode := range map[string]fs.FileMode{dir: 0o755, filepath.Join(dir, recordsName): 0o644} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 2 {
		t.Errorf("files %v, %v", names, err)
	}
}

// What somebody else could have put there is neither read nor written to.
func TestPublishedIsTrustedOnlyFromRoot(t *testing.T) {
	good := func() string {
		dir := filepath.Join(t.TempDir(), "clock")
		p, err := NewPublisher(dir, 3, "b")
		if err == nil {
			err = p.Add(record("b", 1))
		}
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		return dir
	}
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	for name, spoil := range map[string]func(dir string) string{
		"world-writable":        func(dir string) string { must(os.Chmod(dir, 0o777)); return dir },
		"sticky world-writable": func(dir string) string { must(os.Chmod(dir, 0o777|os.ModeSticky)); return dir },
		"parent world-writable": func(dir string) string { must(os.Chmod(filepath.Dir(dir), 0o777)); return dir },
		"another's":             func(dir string) string { must(os.Chown(dir, 65534, 65534)); return dir },
		"a link": func(dir string) string {
			must(os.Symlink(dir, dir+".link"))
			return dir + ".link"
		},
	} {
		dir := spoil(good())
		if got, err := Published(dir, "b", -1); err == nil {
			t.Errorf("%s: %d records are read", name, len(got))
		}
		if p, err := NewPublisher(dir, 3, "b"); err == nil {
			p.Close()
			t.Errorf("%s: is published to", name)
		}
	}
	for name, spoil := range map[string]func(path string){
		"another's file": func(path string) { must(os.Chown(path, 65534, 65534)) },
		"a link as file": func(path string) { must(os.Rename(path, path+".2")); must(os.Symlink(path+".2", path)) },
		"a directory":    func(path string) { must(os.Remove(path)); must(os.Mkdir(path, 0o755)) },
	} {
		dir := good()
		spoil(filepath.Join(dir, recordsName))
		if got, err := Published(dir, "b", -1); err == nil {
			t.Errorf("%s: %d records are read", name, len(got))
		}
	}
	if _, err := Published(filepath.Join(t.TempDir(), "none"), "b", -1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
}

func TestPickKeepsWhatIsWrong(t *testing.T) {
	var records []*calibration.Record
	for i := range int64(1000) {
		if i == 333 || i == 777 {
			records = append(records, record("b", i, calibration.Steps))
		} else {
			records = append(records, record("b", i))
		}
	}
	got := times(Pick(records, 10))
	if len(got) != 10 || !slices.IsSorted(got) || !slices.Contains(got, 333) || !slices.Contains(got, 777) {
		t.Errorf("picked %v", got)
	}
	for i := 1; i < len(got); i++ {
		if got[i]-got[i-1] > 200 {
			t.Errorf("a gap in %v", got)
		}
	}
	for i := range records {
		records[i] = record("b", int64(i), calibration.Steps)
	}
	if got := times(Pick(records, 10)); len(got) != 10 || !slices.IsSorted(got) {
		t.Errorf("picked %v of those that are all wrong", got)
	}
	if got := Pick(records[:7], 10); len(got) != 7 {
		t.Errorf("picked %d of 7", len(got))
	}
}
