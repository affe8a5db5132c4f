// Package mover copies captures out of memory. Where a run has memory for its captures, recorders fill blocks there, and whoever
// started the run copies them to their places in the capture files: preload/FORMAT.md, Captures in memory.
package mover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	poolName  = "pool"
	poolBytes = 4096
	poolLimit = 16 // offsets
	poolUsed  = 24

	drainEvery = 100 * time.Millisecond // full blocks
	copyEvery  = time.Second            // what is being written to, too
)

// ErrBusy says that another mover is at work.
var ErrBusy = errors.New("another process copies these captures")

// Create makes the folder of a run's memory, in which all its processes may hold limit bytes.
func Create(folder string, limit int64) error {
	if err := os.Mkdir(folder, 0o700); err != nil {
		return err
	}
	pool := make([]byte, poolBytes)
	copy(pool, "SGMTPOOL")
	pool[8] = 1
	*number(pool, poolLimit) = uint64(limit)
	err := os.Chmod(folder, 0o700) // whatever the umask
	path := filepath.Join(folder, poolName)
	if err == nil {
		err = os.WriteFile(path, pool, 0o600)
	}
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		os.RemoveAll(folder) // ours, made just now
	}
	return err
}

// Mover copies the captures of one run, alone.
type Mover struct {
	folder, captures string
	lock             *os.File
	pool             []byte
	files            map[string]*file // by path below folder
	failed           error            // the last failure to copy
}

// Open takes over the memory in folder, whose captures are in the folder captures. ErrBusy: another does that.
func Open(folder, captures string) (*Mover, error) {
	lock, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	m := &Mover{folder: folder, captures: captures, lock: lock, files: map[string]*file{}}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrBusy
		}
		return nil, err
	}
	if m.pool, err = mapped(filepath.Join(folder, poolName), 0); err != nil {
		lock.Close()
		return nil, err
	}
	return m, nil
}

// Run copies until the context ends. What it cannot copy stays in memory.
func (m *Mover) Run(ctx context.Context) {
	// Whoever cuts a mapped file short must not take the command's status with it.
	debug.SetPanicOnFault(true)
	defer func() {
		if r := recover(); r != nil {
			m.failed = fmt.Errorf("copying captures out of memory: %v", r)
		}
	}()
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	var copied time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			all := now.Sub(copied) >= copyEvery
			if all {
				copied = now
			}
			m.failed = m.step(all, all)
		}
	}
}

// step copies what is full; all: and what is being written to; ended: and ends the captures of processes that are gone.
func (m *Mover) step(all, ended bool) error {
	err := m.find()
	for _, f := range m.files {
		gone := ended && f.gone() // before the copy, which then is the last
		if e := f.copy(m.captures, all || gone); e != nil {
			err = errors.Join(err, e)
			continue
		}
		if gone {
			err = errors.Join(err, m.end(f))
		}
	}
	return err
}

// find opens files that are new. They stay open: somebody may clear the memory file system.
func (m *Mover) find() error {
	nodes, err := os.ReadDir(m.folder)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if !n.IsDir() {
			continue
		}
		entries, e := os.ReadDir(filepath.Join(m.folder, n.Name()))
		err = errors.Join(err, e)
		for _, entry := range entries {
			name := filepath.Join(n.Name(), entry.Name())
			if m.files[name] != nil {
				continue
			}
			f, e := open(m.folder, name)
			if e == nil && f != nil {
				m.files[name] = f
			}
			err = errors.Join(err, e)
		}
	}
	return err
}

// end takes a file that is copied whole out of memory.
func (m *Mover) end(f *file) error {
	if err := f.finish(m.captures); err != nil {
		return err
	}
	path := filepath.Join(m.folder, f.name)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	atomic.AddUint64(number(m.pool, poolUsed), -uint64(f.size()))
	f.close()
	delete(m.files, f.name)
	return nil
}

// End copies everything, waits for processes that are ending as long as grace, and removes what is copied. It returns how many captures
// are still in memory: of processes that go on, or that could not be copied; the error says why not.
func (m *Mover) End(grace time.Duration) (left int, err error) {
	debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(false)
	defer m.close()
	defer func() {
		if r := recover(); r != nil {
			left, err = len(m.files), fmt.Errorf("copying captures out of memory: %v", r)
		}
	}()
	for until := time.Now().Add(grace); ; time.Sleep(10 * time.Millisecond) {
		if err = m.step(true, true); err != nil || len(m.files) == 0 || time.Now().After(until) {
			break
		}
	}
	if len(m.files) == 0 && err == nil {
		err = m.remove()
	}
	return len(m.files), err
}

// remove takes away the folder, in which nothing but the pool and empty folders is left.
func (m *Mover) remove() error {
	nodes, err := os.ReadDir(m.folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // cleared by somebody; we had the files open
	}
	for _, n := range nodes {
		if n.IsDir() {
			err = errors.Join(err, os.Remove(filepath.Join(m.folder, n.Name())))
		}
	}
	if err != nil {
		return err
	}
	return errors.Join(os.Remove(filepath.Join(m.folder, poolName)), os.Remove(m.folder))
}

func (m *Mover) close() {
	for _, f := range m.files {
		f.close()
	}
	unix.Munmap(m.pool) //nolint:errcheck // it is a mapping
	m.lock.Close()
}

// number is a number in a mapping, at a multiple of eight.
func number(b []byte, at int) *uint64 { return (*uint64)(unsafe.Pointer(&b[at])) } //nolint:gosec // mappings begin at a page, offsets are multiples of 8

// mapped maps the page at an offset of a file.
func mapped(path string, at int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mapPage(f, at)
}

func mapPage(f *os.File, at int64) ([]byte, error) {
	info, err := f.Stat()
	if err == nil && info.Size() < at+poolBytes {
		err = fmt.Errorf("%s has %d bytes, less than a page at %d", f.Name(), info.Size(), at)
	}
	if err != nil {
		return nil, err
	}
	return unix.Mmap(int(f.Fd()), at, poolBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}
