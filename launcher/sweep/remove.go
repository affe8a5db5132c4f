package sweep

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrBusy is said of a run that somebody is using.
var ErrBusy = errors.New("it is in use")

var errChanged = errors.New("it is another directory than it was")

// Remove removes the run, its manifest last, so that what an interrupted removal leaves is found again.
func (s *Sweeper) Remove(r *Run) error {
	return s.with(r, func(d *dir) error {
		if err := s.empty(d, func(name string) bool { return name != manifestName }); err != nil {
			return err
		}
		return s.empty(d, nil)
	}, func(parent *dir) error { return rmdir(parent, filepath.Base(r.Path), r) })
}

// RemoveCaptures removes the run's captures and leaves its results.
func (s *Sweeper) RemoveCaptures(r *Run) error {
	return s.with(r, func(d *dir) error {
		return s.empty(d, func(name string) bool { return name == captureName })
	}, nil)
}

// InUse says whether somebody records or merges the run: Remove would return ErrBusy.
func (s *Sweeper) InUse(r *Run) error {
	return s.with(r, func(*dir) error { return nil }, nil)
}

// with has done what with the run, locked, as its owner, and then after with the directory that it is in. Up to there every name is opened anew
// without following links, by the rights of whom each belongs to.
func (s *Sweeper) with(r *Run, what, after func(*dir) error) error {
	base, err := openDir(unix.AT_FDCWD, r.base, r.base)
	if err != nil {
		return err
	}
	defer base.Close()
	above, err := filepath.Rel(r.base, filepath.Dir(r.Path))
	if err != nil {
		return err
	}
	var names []string
	if above != "." {
		names = strings.Split(above, "/")
	}
	return below(base, names, func(parent *dir) error {
		s.at("parent", r.Path)
		err := parent.child(filepath.Base(r.Path), func(d *dir) error {
			if d.st.Uid != r.UID || d.st.Ino != r.ino || d.st.Dev != r.dev {
				return fmt.Errorf("%s: %w", r.Path, errChanged)
			}
			unlock, busy := lock(d)
			defer unlock()
			if busy {
				return fmt.Errorf("%s: %w", r.Path, ErrBusy)
			}
			s.at("opened", r.Path)
			return what(d)
		})
		if err != nil || after == nil {
			return err
		}
		return after(parent)
	})
}

func below(d *dir, names []string, what func(*dir) error) error {
	if len(names) == 0 {
		return what(d)
	}
	return d.child(names[0], func(c *dir) error { return below(c, names[1:], what) })
}

// rmdir removes the run's name, as its owner, or as root where the owner may not write to the directory above: an empty directory is all that can go.
func rmdir(parent *dir, name string, r *Run) error {
	remove := func() error { return unix.Unlinkat(parent.fd(), name, unix.AT_REMOVEDIR) }
	err := asOwner(r.UID, r.gid, remove)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		err = remove()
	}
	if err != nil {
		return &fs.PathError{Op: "rmdir", Path: r.Path, Err: err}
	}
	return nil
}

// empty removes what is in an open directory, of those names that are to go; nil: all.
func (s *Sweeper) empty(d *dir, goes func(name string) bool) error {
	if _, err := d.Seek(0, 0); err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if goes != nil && !goes(name) {
			continue
		}
		if err := s.removeEntry(d, name); err != nil {
			return err
		}
	}
	return nil
}

func (s *Sweeper) removeEntry(d *dir, name string) error {
	path := filepath.Join(d.Name(), name)
	flags := 0
	var st unix.Stat_t
	err := unix.Fstatat(d.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		flags = unix.AT_REMOVEDIR
		s.at("below", path)
		var c *dir
		if c, err = openDir(d.fd(), name, path); err != nil {
			return err
		}
		if c.st.Uid != d.st.Uid || c.st.Dev != d.st.Dev {
			c.Close()
			return fmt.Errorf("%s: it belongs to somebody else, or is another file system", path)
		}
		err = s.empty(c, nil)
		c.Close()
	}
	if err == nil {
		err = unix.Unlinkat(d.fd(), name, flags)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}
