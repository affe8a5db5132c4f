package mover

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Abandoned says whether nobody copies out of the memory in folder any more and no process writes to it. In doubt it is in use.
func Abandoned(folder string) (bool, error) {
	m, err := Open(folder, folder)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // its launcher died while making it
	}
	if err != nil {
		return false, err
	}
	defer m.close()
	if !m.owned {
		return false, nil
	}
	defer unix.Flock(int(m.owner.Fd()), unix.LOCK_UN) //nolint:errcheck // it is locked
	names, err := filepath.Glob(filepath.Join(folder, "*", "*.capture"))
	if err != nil {
		return false, err
	}
	for _, name := range names {
		if _, err := os.Lstat(name); err == nil && !m.gone(name) {
			return false, nil
		}
	}
	return true, nil
}
