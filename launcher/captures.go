package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"golang.org/x/sys/unix"
)

// moveTree moves what is in the directory from into the existing directory to, across file systems too, and removes from. Nothing in
// to is overwritten, and a file leaves from only when its copy is whole: after an error every file is in one place or the other.
func moveTree(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return fmt.Errorf("moving captures: %w", err)
	}
	for _, e := range entries {
		src, dst := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		if e.IsDir() {
			err = rundir.MkdirPrivate(dst)
			if errors.Is(err, os.ErrExist) {
				err = nil // a node directory that is half moved already
			}
			if err == nil {
				err = moveTree(src, dst)
			}
		} else {
			err = moveFile(src, dst)
		}
		if err != nil {
			return fmt.Errorf("moving captures: %w", err)
		}
	}
	if err := os.Remove(from); err != nil {
		return fmt.Errorf("moving captures: %w", err)
	}
	return nil
}

func moveFile(src, dst string) error {
	err := unix.Renameat2(unix.AT_FDCWD, src, unix.AT_FDCWD, dst, unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS): // another file system, or one without NOREPLACE
		return copyFile(src, dst)
	case err != nil:
		return &os.LinkError{Op: "rename", Old: src, New: dst, Err: err}
	}
	return nil
}

func copyFile(src, dst string) error {
	in, err := os.OpenFile(src, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	if info, err := in.Stat(); err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", src)
	}
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err == nil {
		err = out.Chmod(0o600) // whatever the umask
	}
	if err == nil {
		err = out.Sync()
	}
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		os.Remove(dst) // half a copy; the original is there
		return err
	}
	return os.Remove(src)
}
