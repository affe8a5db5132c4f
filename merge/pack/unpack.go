package pack

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// numbered is what the name of a part's further packs ends with.
var numbered = regexp.MustCompile(`-[0-9]+$`)

const mostAlive = 64 << 20 // bytes of a file of proofs of life

func sortBySize(files []File) {
	slices.SortFunc(files, func(a, b File) int { return cmp.Or(cmp.Compare(a.Bytes, b.Bytes), cmp.Compare(a.Name, b.Name)) })
}

// Find lists the packs in a folder of captures.
func Find(captures string) ([]string, error) {
	entries, err := os.ReadDir(captures)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for packed captures: %w", err)
	}
	var paths []string
	for _, e := range entries {
		if e.Type().IsRegular() && strings.HasSuffix(e.Name(), Extension) && e.Name()[0] != '.' {
			paths = append(paths, filepath.Join(captures, e.Name()))
		}
	}
	return paths, nil
}

// Unpack takes the captures out of all packs in the folder, several at a time, and removes a pack when all that was in it is on disk. What is
// there already is replaced only by a capture of the same process that is not shorter. After an error a pack is still there.
func Unpack(ctx context.Context, captures string, workers int) error {
	paths, err := Find(captures)
	if err != nil || len(paths) == 0 {
		return err
	}
	lock, err := os.Open(captures)
	if err != nil {
		return fmt.Errorf("unpacking captures: %w", err)
	}
	defer lock.Close()
	unix.Flock(int(lock.Fd()), unix.LOCK_EX) //nolint:errcheck // a file system without locks is taken as it is
	// Only packs of one part have files of one name.
	parts := map[string][]int{}
	for i, path := range paths {
		part := numbered.ReplaceAllString(strings.TrimSuffix(filepath.Base(path), Extension), "")
		parts[part] = append(parts[part], i)
	}
	failed := make([]error, len(paths))
	var group errgroup.Group
	group.SetLimit(max(workers, 1))
	for _, packs := range parts {
		group.Go(func() error {
			for _, i := range packs {
				failed[i] = unpack(ctx, paths[i], captures)
			}
			return nil
		})
	}
	group.Wait() //nolint:errcheck // they are in failed
	return errors.Join(failed...)
}

func unpack(ctx context.Context, path, captures string) error {
	in, err := openRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another has unpacked it
	}
	if err != nil {
		return fmt.Errorf("unpacking captures: %w", err)
	}
	defer in.Close()
	if err = extract(ctx, in, captures); err == nil {
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unpacking %s: %w", path, err)
	}
	return nil
}

func extract(ctx context.Context, in io.Reader, captures string) error {
	dec, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8*window), zstd.WithDecoderLowmem(true))
	if err != nil {
		return err
	}
	defer dec.Close()
	entries := tar.NewReader(dec)
	if err := readHead(entries); err != nil {
		return err
	}
	for {
		h, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err == nil && (h.Typeflag != tar.TypeReg || sparse(h) || !belongs(h.Name)) {
			err = fmt.Errorf("entry %q is none of the recorder's files", h.Name)
		}
		if err == nil {
			err = place(ctx, entries, filepath.Join(captures, h.Name), h.Size)
		}
		if err != nil {
			return err
		}
	}
}

// sparse says whether holes of any size may stand in an entry's header.
func sparse(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

func readHead(entries *tar.Reader) error {
	h, err := entries.Next()
	if err != nil {
		return fmt.Errorf("it is not a pack: %w", err)
	}
	text := make([]byte, 512)
	n, err := io.ReadFull(entries, text)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return err
	}
	line, _, _ := strings.Cut(string(text[:n]), "\n")
	var v int
	if _, err := fmt.Sscanf(line, headName+"=%d", &v); h.Name != headName || err != nil || v < 1 {
		return errors.New("it is not a pack: its first entry does not say so")
	}
	if v > version {
		return fmt.Errorf("version %d is newer than %d, the newest this program reads", v, version)
	}
	return nil
}

// place puts one file where it belongs. Nothing is followed to another place.
func place(ctx context.Context, from io.Reader, path string, size int64) error {
	folder := filepath.Dir(path)
	if err := rundir.MkdirPrivate(folder); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if info, err := os.Lstat(folder); err != nil || !info.IsDir() {
		return fmt.Errorf("%s is not a directory", folder)
	}
	there, err := os.Lstat(path)
	switch {
	case err == nil && !there.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", path)
	case filepath.Base(path) == aliveName:
		return placeAlive(from, path, size)
	case err == nil && there.Size() > size:
		return nil // of the same process, later
	}
	var room unix.Statfs_t
	if err := unix.Statfs(folder, &room); err == nil && uint64(size)/uint64(room.Bsize) > room.Bavail { //nolint:gosec // neither is negative
		return &fs.PathError{Op: "write", Path: path, Err: unix.ENOSPC} // before all that there is has been taken
	}
	return rundir.WriteWhole(path, func(to io.Writer) error {
		_, err := io.Copy(to, &interruptible{ctx, from})
		return err
	})
}

// interruptible ends a copy with its context.
type interruptible struct {
	ctx  context.Context
	from io.Reader
}

func (r *interruptible) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.from.Read(b)
}

// placeAlive adds the proofs of life that are not there yet: several steps of a run may have been on the node.
func placeAlive(from io.Reader, path string, size int64) error {
	if size > mostAlive {
		return fmt.Errorf("%d bytes of proofs of life; at most %d are read", size, mostAlive)
	}
	records, err := io.ReadAll(from)
	if err != nil {
		return err
	}
	there, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if bytes.Contains(there, records) {
		return nil
	}
	// Added as a process adds its own: one of another step may do so now.
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	if _, err = out.Write(records); err == nil {
		err = out.Sync()
	}
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	return err
}
