package sweep

import (
	"fmt"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sigmatrace/sigmatrace/launcher/mover"
	"golang.org/x/sys/unix"
)

// FindMemory returns the folders in a memory file system in which killed launchers left captures: nobody copies out of them, and no process of
// this host's writes to them.
func (s *Sweeper) FindMemory(place string) ([]*Run, error) {
	return s.folders(place, func(d *dir) (bool, error) { return mover.Abandoned(fmt.Sprintf("/proc/self/fd/%d", d.fd())) })
}

// FindScratch returns the folders of captures that runs left in a scratch directory: record.scratch.
func (s *Sweeper) FindScratch(place string) ([]*Run, error) { return s.folders(place, onlyCaptures) }

// folders returns those directories of a run's name, private to their owner, that accept takes.
func (s *Sweeper) folders(path string, accept func(*dir) (bool, error)) ([]*Run, error) {
	base, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fmt.Errorf("looking for what runs left: %w", err)
	}
	d, err := openDir(unix.AT_FDCWD, base, base)
	if err != nil {
		return nil, fmt.Errorf("looking for what runs left: %w", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("looking for what runs left: %w", err)
	}
	slices.Sort(names)
	var list []*Run
	for _, name := range names {
		if !strings.HasPrefix(name, "sigmatrace-") {
			continue
		}
		err := d.child(name, func(c *dir) error {
			if c.st.Mode&0o077 != 0 {
				return nil
			}
			ours, err := accept(c)
			if err != nil || !ours {
				return err
			}
			r := &Run{Path: c.Name(), UID: c.st.Uid, base: base, gid: c.st.Gid, dev: c.st.Dev, ino: c.st.Ino}
			if _, err := c.Seek(0, 0); err != nil {
				return err
			}
			list = append(list, r)
			return measure(c, func(_ string, st *unix.Stat_t) {
				r.Bytes += st.Blocks * 512
				if changed := time.Unix(st.Mtim.Unix()); changed.After(r.Changed) {
					r.Changed = changed
				}
			})
		})
		s.skip(filepath.Join(base, name), err)
	}
	return list, nil
}

// onlyCaptures says whether a folder holds what the recorder makes, and nothing else.
func onlyCaptures(d *dir) (bool, error) {
	nodes, err := d.ReadDir(-1)
	if err != nil {
		return false, err
	}
	for _, n := range nodes {
		if !n.IsDir() {
			return false, nil
		}
		c, err := openDir(d.fd(), n.Name(), filepath.Join(d.Name(), n.Name()))
		if err != nil {
			return false, err
		}
		files, err := c.ReadDir(-1)
		c.Close()
		if err != nil {
			return false, err
		}
		for _, f := range files {
			if !f.Type().IsRegular() || f.Name() != "alive" && !strings.HasSuffix(f.Name(), ".capture") {
				return false, nil
			}
		}
	}
	return true, nil
}

// RemoveFolder removes what FindMemory or FindScratch found.
func (s *Sweeper) RemoveFolder(r *Run) error {
	return s.with(r, func(d *dir) error { return s.empty(d, nil) }, func(parent *dir) error { return rmdir(parent, filepath.Base(r.Path), r) })
}

// Owner is the name of the user whom the run belongs to, else his number.
func (r *Run) Owner() string {
	id := strconv.FormatUint(uint64(r.UID), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}
