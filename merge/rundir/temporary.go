package rundir

import (
	"fmt"
	"os"
	"path/filepath"
)

// Temporary makes a folder in the run directory, .NAME-*, mode 0700, for as long as this process lives. Those that killed processes left behind
// are removed.
func (d *Dir) Temporary(name string) (dir string, discard func(), err error) {
	dir, lock, err := temporaryDir(filepath.Join(d.path, name))
	if err != nil {
		return "", nil, fmt.Errorf("making a folder in the run directory: %w", err)
	}
	return dir, func() {
		os.RemoveAll(dir)
		lock.Close()
	}, nil
}
