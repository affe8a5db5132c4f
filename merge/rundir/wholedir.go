package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// WriteWholeDir makes a folder at path, mode 0700, of what write puts into the empty folder it is given: it gets its name only when all
// of it is on disk, or not at all. What is at path is replaced where it is an empty folder, or where ours says that it is an earlier
// result; anything else is an error that errors.Is says is fs.ErrExist. A link is followed.
func WriteWholeDir(path string, ours func(dir string) bool, write func(dir string) error) error {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	replace, err := replaceable(path, ours)
	if err != nil {
		return err
	}
	dir, lock, err := temporaryDir(path)
	if err != nil {
		return err
	}
	defer lock.Close()
	defer os.RemoveAll(dir) // after the rename what is left of it is what was replaced
	if err := write(dir); err != nil {
		return err
	}
	if err := syncAll(dir); err != nil {
		return err
	}
	if replace {
		err = unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
			return err
		}
		// A file system that cannot exchange two names: for a moment there is none.
		old := dir + "-old"
		if err := os.Rename(path, old); err != nil {
			return err
		}
		defer os.RemoveAll(old)
	}
	return os.Rename(dir, path)
}

// temporaryDir makes a folder beside path and locks it. Those that killed writers left, which nobody has locked any more, it removes.
func temporaryDir(path string) (dir string, lock *os.File, err error) {
	parent, prefix := filepath.Dir(path), "."+filepath.Base(path)+"-"
	entries, _ := os.ReadDir(parent) // best effort; not a pattern, which would read the brackets of a directory's name
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		old := filepath.Join(parent, e.Name())
		if f, err := lockDir(old); err == nil {
			os.RemoveAll(old)
			f.Close()
		}
	}
	for range 100 {
		if dir, err = os.MkdirTemp(parent, prefix+"*"); err != nil { // mode 0700, whatever the umask
			return "", nil, err
		}
		if lock, err = lockDir(dir); err == nil {
			return dir, lock, nil
		} // another writer took it for one that was left
	}
	return "", nil, err
}

// lockDir locks a folder that is there.
func lockDir(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		if _, err = os.Stat(dir); err == nil {
			return f, nil
		}
	}
	f.Close()
	return nil, err
}

// replaceable says whether there is something at path that may be replaced.
func replaceable(path string, ours func(dir string) bool) (bool, error) {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case !st.IsDir():
		return false, &fs.PathError{Op: "mkdir", Path: path, Err: unix.EEXIST}
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return false, err
	}
	if len(entries) > 0 && !ours(path) {
		return false, fmt.Errorf("%w and holds something else", &fs.PathError{Op: "mkdir", Path: path, Err: unix.EEXIST})
	}
	return true, nil
}

// syncAll brings a folder and all in it to disk.
func syncAll(dir string) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return f.Sync()
	})
}
