// Package sweep finds and removes run directories below a base that belongs to many users. It opens each name once, never follows a symbolic
// link, acts through what it has opened and with the rights of its owner: whoever swaps names meanwhile loses what is his at most.
package sweep

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"golang.org/x/sys/unix"
)

// mostDepth is how deep below a base runs are looked for: output=/base/%u/%j.
const mostDepth = 3

const (
	manifestName = "manifest.json"
	captureName  = "capture"
)

// Run is a run directory.
type Run struct {
	Path     string
	UID      uint32
	Bytes    int64 // on disk
	Captures int64 // of them, those of captures
	Changed  time.Time
	End      *time.Time // as its manifest says
	Job      string     // the job of Slurm's that it says, as far as it does
	Name     string
	Whole    bool // all results that its manifest names are there, of the size that it names, and no capture is younger

	base string
	gid  uint32
	dev  uint64
	ino  uint64
}

// Sweeper walks below bases.
type Sweeper struct {
	Skipped func(path string, err error) // what could not be looked at; nil: nobody is told
	Read    func(*Run, *rundir.Manifest) // sees each run's manifest, which may be large and is not kept; nil: nobody does
	reached func(stage, path string)     // for tests, which swap names in between
}

func (s *Sweeper) skip(path string, err error) {
	if s.Skipped != nil && err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Skipped(path, err)
	}
}

func (s *Sweeper) at(stage, path string) {
	if s.reached != nil {
		s.reached(stage, path)
	}
}

// dir is an open directory.
type dir struct {
	*os.File
	st unix.Stat_t
}

// openDir opens a directory by its name in another; what is a link is none.
func openDir(at int, name, path string) (*dir, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	d := &dir{File: os.NewFile(uintptr(fd), path)}
	if err := unix.Fstat(fd, &d.st); err != nil {
		d.Close()
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return d, nil
}

func (d *dir) fd() int { return int(d.Fd()) } //nolint:gosec // a descriptor

// child opens a directory in d with the rights of whom it belongs to, and has what done with it.
func (d *dir) child(name string, what func(*dir) error) error {
	path := filepath.Join(d.Name(), name)
	var st unix.Stat_t
	if err := unix.Fstatat(d.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return &fs.PathError{Op: "open", Path: path, Err: unix.ENOTDIR}
	}
	return asOwner(st.Uid, st.Gid, func() error {
		c, err := openDir(d.fd(), name, path)
		if err != nil {
			return err
		}
		defer c.Close()
		if c.st.Uid != st.Uid || c.st.Dev != d.st.Dev {
			return fmt.Errorf("%s is another directory by now, or another file system", path)
		}
		return what(c)
	})
}

// Find returns the runs below base, which is followed where it is a link: it is the administrator's.
func (s *Sweeper) Find(base string) ([]*Run, error) {
	real, err := filepath.EvalSymlinks(base)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return nil, fmt.Errorf("looking for runs: %w", err)
	}
	d, err := openDir(unix.AT_FDCWD, real, real)
	if err != nil {
		return nil, fmt.Errorf("looking for runs: %w", err)
	}
	defer d.Close()
	var runs []*Run
	return runs, s.find(d, real, mostDepth, &runs)
}

func (s *Sweeper) find(d *dir, base string, depth int, runs *[]*Run) error {
	names, err := d.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("looking for runs: %w", err)
	}
	slices.Sort(names)
	for _, name := range names {
		path := filepath.Join(d.Name(), name)
		s.at("found", path)
		err := d.child(name, func(c *dir) error {
			r, m, err := look(c)
			if r != nil && s.Read != nil {
				s.Read(r, m)
			}
			switch {
			case err != nil:
				return err
			case r != nil:
				r.base = base
				*runs = append(*runs, r)
				return nil
			case depth > 1 && !strings.HasPrefix(name, "."):
				return s.find(c, base, depth-1, runs)
			}
			return nil
		})
		if !errors.Is(err, unix.ENOTDIR) {
			s.skip(path, err)
		}
	}
	return nil
}

// look reads a run directory; nil where it is none.
func look(d *dir) (*Run, *rundir.Manifest, error) {
	text, err := readFile(d, manifestName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	m, err := rundir.ParseManifest(text)
	if err != nil {
		return nil, nil, fmt.Errorf("reading %s: %w", filepath.Join(d.Name(), manifestName), err)
	}
	r := &Run{Path: d.Name(), UID: d.st.Uid, End: m.Run.End, Job: short(m.Run.Environment["SLURM_JOB_ID"]), Name: short(m.Run.Name), gid: d.st.Gid, dev: d.st.Dev, ino: d.st.Ino}
	capture := time.Time{}
	err = measure(d, func(top string, st *unix.Stat_t) {
		bytes := st.Blocks * 512
		r.Bytes += bytes
		changed := time.Unix(st.Mtim.Unix())
		if changed.After(r.Changed) {
			r.Changed = changed
		}
		if top == captureName {
			r.Captures += bytes
			if st.Mode&unix.S_IFMT == unix.S_IFREG && changed.After(capture) {
				capture = changed
			}
		}
	})
	if err != nil {
		return nil, nil, err
	}
	r.Whole = whole(d, m, capture)
	return r, m, nil
}

// short is a name of a sensible length; of others nothing is kept.
func short(name string) string {
	if len(name) > unix.NAME_MAX {
		return ""
	}
	return name
}

// readFile reads a regular file in d.
func readFile(d *dir, name string) ([]byte, error) {
	path := filepath.Join(d.Name(), name)
	open := func() (int, error) {
		return unix.Openat(d.fd(), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	}
	fd, err := open()
	if err == unix.EACCES { // root may have merged a user's run
		fd, err = asOurselves(open)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	case info.Size() > rundir.MostManifest:
		return nil, &fs.PathError{Op: "read", Path: path, Err: unix.EFBIG}
	}
	return io.ReadAll(io.LimitReader(f, rundir.MostManifest))
}

// measure shows each thing in a directory, with the name that it is below at the top.
func measure(d *dir, show func(top string, st *unix.Stat_t)) error {
	show("", &d.st)
	return each(d, "", show)
}

func each(d *dir, top string, show func(string, *unix.Stat_t)) error {
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		of := top
		if of == "" {
			of = name
		}
		var st unix.Stat_t
		if err := unix.Fstatat(d.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			continue // gone since
		}
		show(of, &st)
		if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != d.st.Uid || st.Dev != d.st.Dev {
			continue
		}
		c, err := openDir(d.fd(), name, filepath.Join(d.Name(), name))
		if err != nil {
			continue
		}
		err = each(c, of, show)
		c.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// whole says whether the run was merged after its last record, completely, and every result is there.
func whole(d *dir, m *rundir.Manifest, capture time.Time) bool {
	var result struct {
		Ranks   struct{ Incomplete []json.RawMessage }
		Damaged []json.RawMessage
		Exports []struct {
			File  string
			Bytes int64
		}
	}
	if m.Result == nil || json.Unmarshal(m.Result, &result) != nil || len(result.Ranks.Incomplete)+len(result.Damaged) > 0 || len(result.Exports) == 0 {
		return false
	}
	var st unix.Stat_t
	if unix.Fstatat(d.fd(), manifestName, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || capture.After(time.Unix(st.Mtim.Unix())) {
		return false
	}
	for _, e := range result.Exports {
		if !filepath.IsLocal(e.File) || unix.Fstatat(d.fd(), e.File, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			return false
		}
		if st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size != e.Bytes {
			return false
		}
	}
	return true
}

// lock takes the run for itself: nobody merges it, nor writes its manifest, until unlock. busy: somebody does. A file system without locks has none
// to look at.
func lock(d *dir) (unlock func(), busy bool) {
	var held []*dir
	unlock = func() {
		for _, h := range held {
			h.Close()
		}
	}
	for _, name := range []string{".", captureName} {
		h, err := openDir(d.fd(), name, filepath.Join(d.Name(), name))
		if err != nil {
			continue
		}
		held = append(held, h)
		if errors.Is(unix.Flock(h.fd(), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) {
			return unlock, true
		}
	}
	return unlock, false
}
