// Package pack brings a node's captures to the run directory in one compressed file, and takes them out of it there: README.md.
package pack

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/sigmatrace/sigmatrace/merge/capture"
)

const (
	// Extension of packs.
	Extension = ".tar.zst"

	headName  = "sigmatrace.pack" // of the first entry
	version   = 1
	aliveName = "alive"

	window = 1 << 20 // of the compression: bounds the memory of both sides
	piece  = 256 << 10

	syncEvery = 16 << 20 // so that little is waited for at the end, however much the system would hold back
)

// File is a file for a pack: of a folder <node>/<name> as the recorder has them.
type File struct {
	Name  string // <node>/<name>
	Bytes int64
}

// Packed is what came into a pack.
type Packed struct {
	Path    string // "" where nothing did
	Files   []File
	Bytes   int64 // of them
	Written int64 // of the pack
}

// Write makes a pack of files below the folder from, in the folder captures. When the context ends, or the file system is full, those that are
// whole in it stay in it, and the error says why it is not all. A pack has its name only when it is complete.
func Write(ctx context.Context, captures, part, from string, files []File) (*Packed, error) {
	signal.Ignore(unix.SIGXFSZ) // a limit of file sizes is an error, and no end
	w, err := create(captures, part)
	if err != nil {
		return &Packed{}, fmt.Errorf("packing captures: %w", err)
	}
	defer w.discard()
	done := &Packed{}
	var failed []error
	for _, f := range files {
		n, err := w.add(ctx, from, f.Name)
		if err != nil {
			failed = append(failed, err)
			if w.broken || ctx.Err() != nil {
				break
			}
			continue
		}
		done.Files = append(done.Files, File{f.Name, n})
		done.Bytes += n
	}
	if len(done.Files) == 0 {
		return done, errors.Join(failed...)
	}
	if err := w.finish(); err != nil {
		return &Packed{}, errors.Join(append(failed, fmt.Errorf("packing captures: %w", err))...)
	}
	if done.Path, err = w.name(captures, part); err != nil {
		return &Packed{}, errors.Join(append(failed, fmt.Errorf("packing captures: %w", err))...)
	}
	done.Written = w.good
	return done, errors.Join(failed...)
}

// writer writes a pack in which each entry is a frame of its own, so that what has not come in whole can be cut off again.
type writer struct {
	out    *os.File
	enc    *zstd.Encoder
	good   int64 // bytes of whole entries
	broken bool  // nothing more can be written
	dirty  int   // bytes that may not be on disk
	buffer [piece]byte
}

// Write is for what comes out of the compression.
func (w *writer) Write(b []byte) (int, error) {
	n, err := w.out.Write(b)
	if w.dirty += n; err == nil && w.dirty >= syncEvery {
		w.dirty, err = 0, w.out.Sync()
	}
	w.broken = w.broken || err != nil
	return n, err
}

func temporary(part string) string { return "." + part + Extension + "-" }

func create(captures, part string) (*writer, error) {
	if old, err := filepath.Glob(filepath.Join(captures, temporary(part)+"*")); err == nil {
		for _, path := range old {
			os.Remove(path) // of one that was killed: part is this node's, and its folder is locked
		}
	}
	out, err := os.CreateTemp(captures, temporary(part)+"*") // mode 0600
	if err != nil {
		return nil, err
	}
	w := &writer{out: out}
	w.enc, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(2))
	if err == nil {
		text := fmt.Sprintf("%s=%d\npart=%s\n", headName, version, part)
		err = w.entry(headName, int64(len(text)), func(to io.Writer) error {
			_, err := io.WriteString(to, text)
			return err
		})
	}
	if err != nil {
		w.discard()
		return nil, err
	}
	return w, nil
}

// entry writes one entry, or nothing.
func (w *writer) entry(name string, size int64, write func(io.Writer) error) error {
	w.enc.Reset(w)
	t := tar.NewWriter(w.enc)
	err := t.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: size})
	if err == nil {
		err = write(t)
	}
	if err == nil {
		err = t.Flush()
	}
	if closeErr := w.enc.Close(); err == nil {
		err = closeErr
	}
	at, seekErr := w.out.Seek(0, io.SeekCurrent)
	if err == nil {
		err = seekErr
	}
	if err == nil {
		w.good = at
		return nil
	}
	if cut := w.cut(); cut != nil {
		w.broken = true
		err = errors.Join(err, cut)
	}
	return err
}

// cut takes away what is behind the last whole entry.
func (w *writer) cut() error {
	if err := w.out.Truncate(w.good); err != nil {
		return err
	}
	_, err := w.out.Seek(w.good, io.SeekStart)
	return err
}

func (w *writer) add(ctx context.Context, from, name string) (int64, error) {
	in, err := openRegular(filepath.Join(from, name))
	if err != nil {
		return 0, fmt.Errorf("packing captures: %w", err)
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return 0, fmt.Errorf("packing captures: %w", err)
	}
	err = w.entry(name, info.Size(), func(to io.Writer) error {
		left := info.Size()
		for left > 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			b := w.buffer[:min(left, piece)]
			if _, err := io.ReadFull(in, b); err != nil {
				return err
			}
			if _, err := to.Write(b); err != nil {
				return err
			}
			left -= int64(len(b))
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("packing %s: %w", filepath.Join(from, name), err)
	}
	return info.Size(), nil
}

// finish ends the archive. There may be no room for that, and it is a pack without it.
func (w *writer) finish() error {
	w.enc.Reset(w)
	_, err := w.enc.Write(make([]byte, 1024))
	if closeErr := w.enc.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		w.good, err = w.out.Seek(0, io.SeekCurrent)
	}
	if err != nil {
		if err := w.cut(); err != nil {
			return err
		}
	}
	return w.out.Sync()
}

// name gives the pack its name: the part's, with a number where it has a pack already.
func (w *writer) name(captures, part string) (string, error) {
	for i := 1; ; i++ {
		path := filepath.Join(captures, part+Extension)
		if i > 1 {
			path = filepath.Join(captures, fmt.Sprintf("%s-%d%s", part, i, Extension))
		}
		err := unix.Link(w.out.Name(), path)
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) { // a file system without links; only this node makes packs of this name
			if _, err = os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
				err = os.Rename(w.out.Name(), path)
			} else if err == nil {
				err = unix.EEXIST
			}
		}
		if err == nil || !errors.Is(err, unix.EEXIST) || i == 10_000 {
			return path, err
		}
	}
}

func (w *writer) discard() {
	if w.enc != nil {
		w.enc.Close()
	}
	os.Remove(w.out.Name())
	w.out.Close()
}

// openRegular opens a file that is regular itself.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}
	return f, nil
}

// belongs tells whether an entry of this name is one of the recorder's files, <node>/<name>.
func belongs(name string) bool {
	node, file, is := strings.Cut(name, "/")
	return is && node != "" && node[0] != '.' && file != "" && file[0] != '.' && !strings.ContainsAny(file, "/\x00") &&
		(file == aliveName || strings.HasSuffix(file, capture.Extension))
}

// Files lists the recorder's files below a folder, the smallest first: as many as can be are then brought home in a short time.
func Files(folder string) ([]File, error) {
	nodes, err := capture.Find(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var files []File
	for _, n := range nodes {
		paths := n.Captures
		if n.Alive != "" {
			paths = append(paths, n.Alive)
		}
		for _, path := range paths {
			info, statErr := os.Lstat(path)
			if statErr != nil {
				err = errors.Join(err, statErr)
				continue
			}
			files = append(files, File{n.Name + "/" + filepath.Base(path), info.Size()})
		}
	}
	sortBySize(files)
	return files, err
}
