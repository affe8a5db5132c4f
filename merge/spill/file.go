// Package spill keeps on disk what a merge cannot keep in memory: operations in sorted runs of blocks, and fixed-size records that
// are sorted as a whole. Everything goes into one unnamed temporary file, so that nothing is left behind whatever happens.
package spill

import (
	"fmt"
	"os"
	"sync/atomic"
)

// File is a temporary file without a name. It may be written and read from several goroutines at once.
type File struct {
	f    *os.File
	size atomic.Int64
}

// Create makes a temporary file in dir, "" for the system's place.
func Create(dir string) (*File, error) {
	f, err := os.CreateTemp(dir, ".sigmatrace-merge-*") // mode 0600
	if err != nil {
		return nil, fmt.Errorf("making the merge's temporary file: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, fmt.Errorf("making the merge's temporary file: %w", err)
	}
	return &File{f: f}, nil
}

// CreateNamed makes a file at path, for other processes to read.
func CreateNamed(path string) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("making a file of the merge: %w", err)
	}
	return &File{f: f}, nil
}

// OpenNamed opens what another process has made and closed.
func OpenNamed(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading a file of the merge: %w", err)
	}
	return &File{f: f}, nil
}

// Sync brings what was written to disk.
func (f *File) Sync() error {
	if err := f.f.Sync(); err != nil {
		return fmt.Errorf("writing a file of the merge: %w", err)
	}
	return nil
}

// Close gives the space back.
func (f *File) Close() error { return f.f.Close() }

// Size returns the bytes written.
func (f *File) Size() int64 { return f.size.Load() }

// reserve gives out a range of n bytes.
func (f *File) reserve(n int64) int64 { return f.size.Add(n) - n }

func (f *File) write(b []byte, offset int64) error {
	if _, err := f.f.WriteAt(b, offset); err != nil {
		return fmt.Errorf("writing the merge's temporary file: %w", err)
	}
	return nil
}

func (f *File) read(b []byte, offset int64) error {
	if _, err := f.f.ReadAt(b, offset); err != nil {
		return fmt.Errorf("reading the merge's temporary file: %w", err)
	}
	return nil
}
