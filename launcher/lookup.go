package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lookUp returns the path of the executable that name means, as a shell finds it. The error carries status 127 where there is none
// and 126 where there is one that cannot be executed.
func lookUp(name, path string) (string, error) {
	if filepath.Base(name) != name {
		return name, checkExecutable(name)
	}
	var refused error
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "."
		}
		file := filepath.Join(dir, name)
		err := checkExecutable(file)
		if err == nil {
			return file, nil
		}
		var f *failure
		if errors.As(err, &f) && f.status == exitNotExecutable && refused == nil && !isDirectory(file) {
			refused = err
		}
	}
	if refused != nil {
		return "", refused
	}
	return "", &failure{err: fmt.Errorf("command %q was not found in PATH", name), status: exitNotFound,
		hint: "give its path, or put -- before the command if it looks like an option"}
}

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func checkExecutable(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		return &failure{err: fmt.Errorf("command %s does not exist", path), status: exitNotFound}
	case err != nil:
		return &failure{err: fmt.Errorf("looking for the command: %w", err), status: exitNotExecutable}
	case info.IsDir():
		return &failure{err: fmt.Errorf("command %s is a directory", path), status: exitNotExecutable}
	case !info.Mode().IsRegular(): // to open a pipe would wait for a writer
		return &failure{err: fmt.Errorf("command %s is not a regular file", path), status: exitNotExecutable}
	}
	if err := unix.Access(path, unix.X_OK); err != nil {
		return &failure{err: fmt.Errorf("command %s cannot be executed: %w", path, err), status: exitNotExecutable,
			hint: "make it executable: chmod +x " + path}
	}
	return nil
}
