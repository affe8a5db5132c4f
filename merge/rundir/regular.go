package rundir

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// The most that is read of a run's files: whoever merges a run may not be the one who filled it, and srun waits for its merge.
const (
	MostManifest = 256 << 20
	mostNode     = 16 << 20 // it names each capture that stayed
	mostTasks    = 16 << 20
	mostResolved = 64 << 10
)

// openRegular opens a file for reading, and does not wait for a writer where a pipe is in its place.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// readRegular reads a regular file of so many bytes at most.
func readRegular(path string, most int64) ([]byte, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	tooLong := &fs.PathError{Op: "read", Path: path, Err: unix.EFBIG}
	if st, err := f.Stat(); err != nil {
		return nil, err
	} else if st.Size() > most {
		return nil, tooLong
	}
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = tooLong
	}
	return text, err
}
