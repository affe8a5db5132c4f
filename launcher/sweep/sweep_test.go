package sweep

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"golang.org/x/sys/unix"
)

const ann, bob = 61001, 61002

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// base is a directory in which users make runs, as a site would have it: in /tmp, whose way is open to all.
func base(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for files of several users")
	}
	dir, err := os.MkdirTemp("/tmp", "sweep")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o1777))
	return dir
}

// make makes a run of a user's at path.
func makeRun(t *testing.T, path string, uid int) {
	t.Helper()
	dir, err := rundir.Create(path)
	must(t, err)
	end := time.Now()
	must(t, dir.WriteManifest(&rundir.Manifest{Run: rundir.Run{Name: dir.Name(), Command: []string{"x"}, End: &end}}))
	must(t, os.MkdirAll(filepath.Join(dir.Capture(), "node"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir.Capture(), "node", "1.capture"), make([]byte, 100_000), 0o600))
	give(t, path, uid)
}

func give(t *testing.T, path string, uid int) {
	t.Helper()
	must(t, filepath.Walk(path, func(p string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, uid, uid)
	}))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func find(t *testing.T, s *Sweeper, dir string) []*Run {
	t.Helper()
	runs, err := s.Find(dir)
	must(t, err)
	return runs
}

func TestRunsOfAllUsersAreFoundAndRemoved(t *testing.T) {
	dir := base(t)
	must(t, os.Mkdir(dir+"/bob", 0o700))
	must(t, os.Chown(dir+"/bob", bob, bob))
	makeRun(t, dir+"/sigmatrace-1.0", ann)
	makeRun(t, dir+"/bob/sigmatrace-2.0", bob)
	must(t, os.Mkdir(dir+"/other", 0o755)) // nobody's run
	must(t, os.WriteFile(dir+"/other/file", nil, 0o644))
	must(t, os.Symlink(dir+"/bob", dir+"/again"))
	s := &Sweeper{Skipped: func(path string, err error) { t.Errorf("%s: %v", path, err) }}
	runs := find(t, s, dir)
	if len(runs) != 2 {
		t.Fatalf("%d runs", len(runs))
	}
	for _, r := range runs {
		if r.Captures < 100_000 || r.Bytes <= r.Captures || time.Since(r.Changed) > time.Minute {
			t.Errorf("%+v", r)
		}
		must(t, s.Remove(r))
		if exists(r.Path) {
			t.Errorf("%s is there", r.Path)
		}
	}
	if !exists(dir+"/other/file") || !exists(dir+"/bob") {
		t.Error("more than the runs is gone")
	}
}

// At each step at which a name is used again, its owner swaps it for a link to what is another's, or for another directory: nothing of the other's goes.
func TestSwappedNamesLeadNowhere(t *testing.T) {
	for _, c := range []struct{ stage, swap, of string }{
		{"below", "capture", "link to own"}, {"below", "capture/node", "link to own"}, // which he could remove himself, and did not
		{"found", "run", "link"}, {"parent", "run", "link"}, {"parent", "run", "directory"}, {"opened", "run", "link"}, {"opened", "run", "directory"},
		{"below", "capture", "link"}, {"below", "capture/node", "link"}, {"found", "user", "link"}, {"parent", "user", "link"},
	} {
		t.Run(c.stage+" "+c.swap+" "+c.of, func(t *testing.T) {
			dir := base(t)
			elsewhere := filepath.Join(dir, "precious")
			must(t, os.Mkdir(elsewhere, 0o755))
			makeRun(t, elsewhere+"/sigmatrace-7.0", 0) // root's own, and of the name and form of a run
			must(t, os.WriteFile(elsewhere+"/sigmatrace-7.0/capture/node/precious", []byte("precious"), 0o644))
			if c.of == "link to own" {
				give(t, elsewhere, ann)
			}
			home := filepath.Join(dir, "ann")
			must(t, os.Mkdir(home, 0o755))
			must(t, os.Chown(home, ann, ann))
			run := home + "/sigmatrace-7.0"
			makeRun(t, run, ann)
			victim, target := run, elsewhere+"/sigmatrace-7.0"
			switch c.swap {
			case "capture", "capture/node":
				victim, target = filepath.Join(run, c.swap), filepath.Join(target, c.swap)
			case "user":
				victim, target = home, elsewhere
			}
			swapped := false
			s := &Sweeper{}
			s.reached = func(stage, path string) {
				if stage != c.stage || swapped || stage == "below" && path != victim || stage == "found" && path != victim {
					return
				}
				swapped = true
				done := make(chan error, 1)
				go func() { done <- swap(victim, target, dir+"/moved", c.of) }() // as root: we may be the owner here
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			runs, err := s.Find(home)
			if c.swap == "user" && c.stage == "found" {
				runs, err = s.Find(dir)
			}
			must(t, err)
			for _, r := range runs {
				if strings.HasPrefix(r.Path, home) {
					err = s.Remove(r)
				}
			}
			if !swapped {
				t.Fatal("nothing was swapped")
			}
			if !exists(elsewhere + "/sigmatrace-7.0/capture/node/precious") {
				t.Error("what is another's is gone")
			}
			if c.of == "directory" && !exists(victim+"/"+manifestName) {
				t.Error("another directory was emptied")
			}
			if c.stage != "found" && c.swap != "user" && err == nil {
				t.Error("no error tells")
			}
		})
	}
}

// swap puts a link to target, or a directory of bob's, in the place of victim.
func swap(victim, target, moved, kind string) error {
	err := os.Rename(victim, moved)
	switch {
	case err != nil:
	case kind != "directory":
		err = os.Symlink(target, victim)
	default:
		if err = os.Mkdir(victim, 0o755); err == nil {
			err = os.WriteFile(victim+"/"+manifestName, []byte("bob's"), 0o644)
		}
		if err == nil {
			err = os.Chown(victim, bob, bob)
		}
	}
	return err
}

// A directory of somebody else's within a run stays, and so does the run's manifest.
func TestWhatIsNotTheOwnersStays(t *testing.T) {
	dir := base(t)
	makeRun(t, dir+"/sigmatrace-1.0", ann)
	must(t, os.Mkdir(dir+"/sigmatrace-1.0/capture/bobs", 0o777))
	must(t, os.WriteFile(dir+"/sigmatrace-1.0/capture/bobs/file", nil, 0o600))
	must(t, os.Chown(dir+"/sigmatrace-1.0/capture/bobs", bob, bob))
	must(t, os.Chmod(dir+"/sigmatrace-1.0/capture/bobs", 0o777)) // though ann could
	s := &Sweeper{}
	if err := s.Remove(find(t, s, dir)[0]); err == nil || !exists(dir+"/sigmatrace-1.0/capture/bobs/file") || !exists(dir+"/sigmatrace-1.0/manifest.json") {
		t.Errorf("%v", err)
	}
}

func TestRunsInUseStay(t *testing.T) {
	dir := base(t)
	makeRun(t, dir+"/sigmatrace-1.0", ann)
	s := &Sweeper{}
	r := find(t, s, dir)[0]
	d, err := rundir.Open(r.Path)
	must(t, err)
	done := d.Use()
	if err := s.Remove(r); !errors.Is(err, ErrBusy) || !errors.Is(s.InUse(r), ErrBusy) {
		t.Errorf("a run that is used: %v", err)
	}
	done()
	must(t, s.InUse(r))
	f, err := os.Open(r.Path)
	must(t, err)
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX)) // its manifest is being written
	if err := s.RemoveCaptures(r); !errors.Is(err, ErrBusy) {
		t.Errorf("a run whose manifest is written: %v", err)
	}
	f.Close()
	must(t, s.RemoveCaptures(r))
	if exists(d.Capture()) || !exists(d.ManifestPath()) {
		t.Error("not the captures, or more than the captures")
	}
}

// A run is whole where it was merged completely after its last record and its results are there.
func TestWholeRuns(t *testing.T) {
	dir := base(t)
	path := dir + "/sigmatrace-1.0"
	makeRun(t, path, ann)
	must(t, os.WriteFile(path+"/trace.pftrace", []byte("12345"), 0o600))
	d, err := rundir.Open(path)
	must(t, err)
	result := `{"ranks":{"incomplete":[%s]},"damaged":[],"exports":[{"file":"trace.pftrace","bytes":%d}]}`
	for _, c := range []struct {
		result string
		later  time.Duration
		whole  bool
	}{
		{fmt.Sprintf(result, "", 5), -time.Hour, true}, {fmt.Sprintf(result, "", 6), -time.Hour, false}, {fmt.Sprintf(result, `{"rank":1}`, 5), -time.Hour, false},
		{fmt.Sprintf(result, "", 5), time.Hour, false}, {`{"ranks":{"incomplete":[]},"exports":[]}`, -time.Hour, false},
		{`{"ranks":{"incomplete":[]},"exports":[{"file":"../../etc/passwd","bytes":1}]}`, -time.Hour, false},
	} {
		must(t, d.SetResult([]byte(c.result)))
		at := time.Now().Add(c.later)
		must(t, os.Chtimes(path+"/capture/node/1.capture", at, at))
		if got := find(t, &Sweeper{}, dir)[0].Whole; got != c.whole {
			t.Errorf("%s, captures %v later: %v", c.result, c.later, got)
		}
	}
}

// As a user's, root has no more rights than he.
func TestAsOwner(t *testing.T) {
	dir := base(t)
	must(t, os.WriteFile(dir+"/secret", nil, 0o600))
	if err := asOwner(ann, ann, func() error { _, err := os.Open(dir + "/secret"); return err }); !errors.Is(err, os.ErrPermission) {
		t.Errorf("a file of root's: %v", err)
	}
	must(t, asOwner(ann, ann, func() error { return os.WriteFile(dir+"/own", nil, 0o600) }))
	if ownerOf(t, dir+"/own") != ann {
		t.Error("what is made then is not the user's")
	}
	if _, err := os.Open(dir + "/secret"); err != nil {
		t.Errorf("and afterwards: %v", err)
	}
}

func ownerOf(t *testing.T, path string) uint32 {
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return st.Uid
}

// Users' manifests may be as large as they like, and one file in many runs.
func TestManifestsAreNotKept(t *testing.T) {
	base := t.TempDir()
	const runs, size = 40, 4 << 20
	text := []byte(`{"version":1,"run":{"name":"` + strings.Repeat("n", size) + `"},"result":{"x":"` + strings.Repeat("x", size) + `"}}`)
	first := filepath.Join(base, "0", manifestName)
	for i := range runs {
		path := filepath.Join(base, strconv.Itoa(i), manifestName)
		must(t, os.Mkdir(filepath.Dir(path), 0o700))
		if i == 0 {
			must(t, os.WriteFile(path, text, 0o600))
			continue
		}
		must(t, os.Link(first, path))
	}
	seen := 0
	s := Sweeper{Read: func(_ *Run, m *rundir.Manifest) { seen += len(m.Run.Name) }}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	found, err := s.Find(base)
	must(t, err)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if len(found) != runs || seen != runs*size {
		t.Errorf("%d runs, %d bytes of names", len(found), seen)
	}
	if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > 4*size { //nolint:gosec // far below
		t.Errorf("%d bytes are kept of %d runs", kept, len(found))
	}
	runtime.KeepAlive(found)
}
