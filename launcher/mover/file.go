package mover

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"golang.org/x/sys/unix"
)

// A memory file: a capture's header, a page with the table of slots, the slots.
const (
	headerBytes = 4096
	tableBytes  = 4096
	tableChunk  = 12 // offsets in the table
	tableSlots  = 16
	tableWords  = 128
	mostSlots   = (tableBytes - tableWords) / 8

	slotFree, slotOpen, slotFull = 0, 1, 2

	headerBlocks = 2064 // offsets in the header
	headerBehind = 2144

	blockHeader    = 64
	blockMagic     = 0x4b4c4253
	blockCommitted = 32 // offset
	blockType      = 4
	aggregates     = 3 // a type of block
)

var seed = maphash.MakeSeed()

// file is the memory of one capture.
type file struct {
	name   string // below the folder, and below the captures
	in     *os.File
	table  []byte
	chunk  int64
	slots  int
	header [headerBytes]byte // as it was last copied
	copied map[int]state
	buffer []byte
}

// state is what of a slot was copied last.
type state struct {
	word uint64
	sum  uint64
}

// open opens a memory file; nil where it is not complete yet.
func open(folder, name string) (*file, error) {
	in, err := os.OpenFile(filepath.Join(folder, name), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return nil, err
	}
	info, err := in.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() < headerBytes+tableBytes {
		in.Close()
		return nil, err
	}
	table, err := mapPage(in, headerBytes)
	if err != nil {
		in.Close()
		return nil, err
	}
	f := &file{name: name, in: in, table: table, copied: map[int]state{}}
	if !bytes.HasPrefix(table, []byte("SGMSLOTS")) {
		f.close()
		return nil, nil // being made; or its process died then: remove() will tell
	}
	f.chunk, f.slots = int64(binary.LittleEndian.Uint32(table[tableChunk:])), int(binary.LittleEndian.Uint32(table[tableSlots:]))
	if f.chunk < 16<<10 || f.chunk > 1<<20 || f.chunk&(f.chunk-1) != 0 || f.slots > mostSlots {
		f.close()
		return nil, fmt.Errorf("%s: slots of %d bytes, %d of them: not a capture's memory", in.Name(), f.chunk, f.slots)
	}
	f.buffer = make([]byte, f.chunk)
	return f, nil
}

func (f *file) close() {
	unix.Munmap(f.table) //nolint:errcheck // it is a mapping
	f.in.Close()
}

func (f *file) size() int64 {
	info, err := f.in.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

// output opens the capture, which the process has made; one that was removed since is made anew.
func (f *file) output(captures string) (*os.File, error) {
	path := filepath.Join(captures, f.name)
	out, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if err = rundir.MkdirPrivate(filepath.Dir(path)); err == nil || errors.Is(err, fs.ErrExist) {
			out, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
		}
	}
	return out, err
}

// copy copies what is full and gives its slots back; all: also what is being written to, and the header.
func (f *file) copy(captures string, all bool) error {
	var out *os.File
	put := func(b []byte, at int64) (err error) {
		if out == nil {
			if out, err = f.output(captures); err != nil {
				return err
			}
		}
		return writeAt(out, b, at)
	}
	defer func() {
		if out != nil {
			out.Close()
		}
	}()
	for i := range f.slots {
		word := number(f.table, tableWords+8*i)
		w := atomic.LoadUint64(word)
		kind, place := w%headerBytes, int64(w&^(headerBytes-1))
		if kind == slotFree || kind == slotOpen && !all {
			continue
		}
		if kind > slotFull || place < headerBytes || (place-headerBytes)%f.chunk != 0 {
			return fmt.Errorf("%s: slot %d holds %#x: not a place in a capture", f.in.Name(), i, w)
		}
		if err := f.copySlot(i, w, place, put); err != nil {
			return err
		}
		if kind == slotFull {
			delete(f.copied, i)
			atomic.StoreUint64(word, slotFree)
		}
	}
	if !all {
		return nil
	}
	return f.copyHeader(put, 1)
}

// copySlot copies a slot's block, unless it is as it was. What follows its records in memory is an older block's.
func (f *file) copySlot(i int, word uint64, place int64, put func([]byte, int64) error) error {
	at := headerBytes + tableBytes + int64(i)*f.chunk
	head := f.buffer[:blockHeader]
	if _, err := f.in.ReadAt(head, at); err != nil {
		return err
	}
	n := int64(binary.LittleEndian.Uint32(head[blockCommitted:]))
	if binary.LittleEndian.Uint32(head) != blockMagic || n > f.chunk-blockHeader {
		return nil // its process died, or is, between taking it and opening it
	}
	now := state{word, maphash.Bytes(seed, head)}
	old, had := f.copied[i]
	table := head[blockType] == aggregates
	if had && old == now && !table {
		return nil
	}
	if _, err := f.in.ReadAt(f.buffer[blockHeader:blockHeader+n], at+blockHeader); err != nil {
		return err
	}
	if table {
		if now.sum = maphash.Bytes(seed, f.buffer[:blockHeader+n]); had && old == now {
			return nil
		}
	}
	clear(f.buffer[blockHeader+n:])
	// The header counts the records: it comes last, for who reads meanwhile and for when this process is killed.
	if err := put(f.buffer[blockHeader:], place+blockHeader); err != nil {
		return err
	}
	if err := put(f.buffer[:blockHeader], place); err != nil {
		return err
	}
	f.copied[i] = now
	return nil
}

// copyHeader copies the header, if it is another than last time. behind: whether there is more in memory.
func (f *file) copyHeader(put func([]byte, int64) error, behind uint32) error {
	var h [headerBytes]byte
	if _, err := f.in.ReadAt(h[:], 0); err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(h[headerBehind:], behind)
	if !bytes.HasPrefix(h[:], []byte("SGMTRACE")) || h == f.header {
		return nil
	}
	if err := put(h[:], 0); err != nil {
		return err
	}
	f.header = h
	return nil
}

// finish says in the capture that all of it is there: to be called when everything was copied and nobody writes to the memory.
func (f *file) finish(captures string) error {
	out, err := f.output(captures)
	if err != nil {
		return err
	}
	put := func(b []byte, at int64) error { return writeAt(out, b, at) }
	err = f.copyHeader(put, 0)
	// A block that was given out and never begun has its place all the same.
	end := headerBytes + int64(binary.LittleEndian.Uint64(f.header[headerBlocks:]))*f.chunk
	if info, e := out.Stat(); err == nil && e == nil && info.Size() < end {
		err = grow(out, end)
	}
	if e := out.Close(); err == nil {
		err = e
	}
	return err
}

// fits says EFBIG where a file may not become so long: the system would send a deadly SIGXFSZ.
func fits(size int64) error {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &r); err == nil && uint64(size) > r.Cur {
		return unix.EFBIG
	}
	return nil
}

func grow(out *os.File, size int64) error {
	if err := fits(size); err != nil {
		return &fs.PathError{Op: "truncate", Path: out.Name(), Err: err}
	}
	return out.Truncate(size)
}

func writeAt(out *os.File, b []byte, at int64) error {
	if err := fits(at + int64(len(b))); err != nil {
		return &fs.PathError{Op: "write", Path: out.Name(), Err: err}
	}
	n, err := out.WriteAt(b, at)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	return err
}
