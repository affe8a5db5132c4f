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
	poolSpace = 32

	drainEvery = 100 * time.Millisecond // full blocks
	copyEvery  = time.Second            // what is being written to, too
)

// errBusy says that another process is copying right now.
var errBusy = errors.New("another process copies these captures")

// Create makes the folder of a run's memory, in which all its processes may hold limit bytes.
func Create(folder string, limit int64) error {
	if err := os.Mkdir(folder, 0o700); err != nil {
		return err
	}
	pool := make([]byte, poolBytes)
	copy(pool, "SGMTPOOL")
	pool[8] = 1
	*number(pool, poolLimit) = uint64(limit)
	*number(pool, poolSpace) = pidNamespace()
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

// Mover copies the captures of one run. One at a time owns it: it alone gives memory back. Others may only copy.
type Mover struct {
	folder, captures string
	turn             *os.File // its lock: of who copies
	owner            *os.File // the pool; its lock: of who owns the run's memory
	owned            bool
	pool             []byte
	files            map[string]*file // by path below folder
}

// Open opens the memory in folder, whose captures are in the folder captures, and takes it over where nobody owns it.
func Open(folder, captures string) (*Mover, error) {
	turn, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	owner, err := os.OpenFile(filepath.Join(folder, poolName), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		turn.Close()
		return nil, err
	}
	m := &Mover{folder: folder, captures: captures, turn: turn, owner: owner, files: map[string]*file{}}
	if m.pool, err = mapPage(owner, 0); err != nil {
		turn.Close()
		owner.Close()
		return nil, err
	}
	m.owned = unix.Flock(int(owner.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	return m, nil
}

// Owner says whether this one owns the memory.
func (m *Mover) Owner() bool { return m.owned }

// Run copies until the context ends. What it cannot copy stays in memory.
func (m *Mover) Run(ctx context.Context) {
	// Whoever cuts a mapped file short must not take the command's status with it.
	debug.SetPanicOnFault(true)
	defer func() { _ = recover() }() // End tells
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
			m.step(all, all) //nolint:errcheck // what could not be copied is still there: the next step, or End, tells
		}
	}
}

// step copies what is full; all: and what is being written to; ended: and ends the captures of processes that are gone.
func (m *Mover) step(all, ended bool) error {
	// Never waits: who has its turn may be stopped.
	if err := unix.Flock(int(m.turn.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errBusy
	}
	defer unix.Flock(int(m.turn.Fd()), unix.LOCK_UN) //nolint:errcheck // it is locked
	err := m.find()
	for _, f := range m.files {
		gone := ended && m.gone(f.name) // before the copy, which then is the last
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

// find opens files that are new. They stay open: somebody may clear the memory file system, as logind does when its user leaves.
func (m *Mover) find() error {
	nodes, err := os.ReadDir(m.folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
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

// Copy copies everything, and leaves all else to the owner. It waits for its turn as long as grace.
func (m *Mover) Copy(grace time.Duration) (err error) {
	debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(false)
	defer m.close()
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("copying captures out of memory: %v", r)
		}
	}()
	for until := time.Now().Add(grace); ; time.Sleep(time.Millisecond) {
		if err = m.step(true, false); !errors.Is(err, errBusy) || time.Now().After(until) {
			return err
		}
	}
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
		if err = m.step(true, true); err != nil && !errors.Is(err, errBusy) || err == nil && len(m.files) == 0 || time.Now().After(until) {
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
		if !n.IsDir() {
			continue
		}
		path := filepath.Join(m.folder, n.Name())
		if e := m.removeUnfinished(n.Name()); e != nil {
			err = errors.Join(err, e)
			continue
		}
		err = errors.Join(err, os.Remove(path))
	}
	if err != nil {
		return err
	}
	return errors.Join(os.Remove(filepath.Join(m.folder, poolName)), os.Remove(m.folder))
}

// removeUnfinished takes away files whose processes died while making them.
func (m *Mover) removeUnfinished(node string) error {
	entries, err := os.ReadDir(filepath.Join(m.folder, node))
	for _, e := range entries {
		name := filepath.Join(node, e.Name())
		if m.gone(name) {
			err = errors.Join(err, os.Remove(filepath.Join(m.folder, name)))
		}
	}
	return err
}

func (m *Mover) close() {
	for _, f := range m.files {
		f.close()
	}
	unix.Munmap(m.pool) //nolint:errcheck // it is a mapping
	m.turn.Close()
	m.owner.Close()
}

// number is a number in a mapping, at a multiple of eight.
func number(b []byte, at int) *uint64 { return (*uint64)(unsafe.Pointer(&b[at])) } //nolint:gosec // mappings begin at a page, offsets are multiples of 8

// mapPage maps the page at an offset of a file.
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
