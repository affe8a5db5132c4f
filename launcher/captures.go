package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"golang.org/x/sys/unix"
)

// moveTree moves what is in the directory from into the existing directory to, across file systems too, and removes from. Nothing in
// to is overwritten but what a killed move left there, and a file leaves from only when its copy is whole: after an error every file is in one
// place or the other, and what can be moved has been.
func moveTree(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return fmt.Errorf("moving captures: %w", err)
	}
	var failed error // the first
	others := 0
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
		switch {
		case failed == nil:
			failed = err
		case err != nil:
			others++
		}
	}
	switch {
	case failed == nil:
		failed = os.Remove(from)
	case others > 0:
		failed = fmt.Errorf("%w (and %d more in %s)", failed, others, from)
	}
	return failed
}

func moveFile(src, dst string) error {
	if begins(src, dst) { // a move that was killed: what it copied is all in src
		if err := os.Remove(dst); err != nil {
			return err
		}
	}
	err := unix.Renameat2(unix.AT_FDCWD, src, unix.AT_FDCWD, dst, unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS): // another file system, or one without NOREPLACE
		return copyFile(src, dst)
	case err != nil:
		return &os.LinkError{Op: "rename", Old: src, New: dst, Err: err}
	}
	return nil
}

// begins says whether both are regular files, two of them, and file begins with all that part holds.
func begins(file, part string) bool {
	whole, err := os.Lstat(file)
	some, err2 := os.Lstat(part)
	if err != nil || err2 != nil || !whole.Mode().IsRegular() || !some.Mode().IsRegular() || os.SameFile(whole, some) || some.Size() > whole.Size() {
		return false
	}
	a, err := os.Open(file)
	if err != nil {
		return false
	}
	defer a.Close()
	b, err := os.Open(part)
	if err != nil {
		return false
	}
	defer b.Close()
	var x, y [64 << 10]byte
	for {
		n, err := io.ReadFull(b, y[:])
		if m, _ := io.ReadFull(a, x[:n]); m != n || !bytes.Equal(x[:n], y[:n]) {
			return false
		}
		if err != nil {
			return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		}
	}
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
