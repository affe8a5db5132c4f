package rundir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// WriteWhole makes a file at path, mode 0600, of what write writes: at once and only when all of it is on disk, or not at all. A link
// is followed. What is no regular file (a pipe, a terminal, /dev/null) takes the bytes as they come and stays what it is.
func WriteWhole(path string, write func(io.Writer) error) error {
	path, special, err := destination(path)
	if err != nil {
		return err
	}
	if special {
		return writeThrough(path, write)
	}
	f, err := newUnnamed(path)
	if err != nil {
		return err
	}
	defer f.discard() // after the rename there is nothing left to remove
	if err = write(f); err != nil {
		return err
	}
	if err = f.Chmod(0o600); err != nil { // whatever the umask
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	return f.rename(path)
}

// destination is the path behind path's links, and whether something special is there, which a rename would replace.
func destination(path string) (real string, special bool, err error) {
	if _, err = os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return path, false, nil
	}
	st, err := os.Stat(path)
	if err != nil {
		return "", false, err
	}
	if st.IsDir() {
		return "", false, &fs.PathError{Op: "open", Path: path, Err: unix.EISDIR}
	}
	if !st.Mode().IsRegular() {
		return path, true, nil
	}
	real, err = filepath.EvalSymlinks(path)
	if err != nil { // a file that has no name any more, behind /dev/stdout
		return path, true, nil
	}
	return real, false, nil
}

func writeThrough(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	err = write(f)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// unnamed is a file that gets a name when it is complete. Until then it has none where the file system can do that, so that nothing
// stays behind of a writer that is killed, and a temporary one elsewhere.
type unnamed struct {
	*os.File
	dir, base string
	temporary string // "" while there is no name
}

func newUnnamed(path string) (*unnamed, error) {
	u := &unnamed{dir: filepath.Dir(path), base: filepath.Base(path)}
	var err error
	u.File, err = os.OpenFile(u.dir, unix.O_TMPFILE|os.O_RDWR, 0o600)
	if err == nil {
		if _, err = os.Stat(u.link()); err == nil {
			return u, nil
		}
		u.File.Close() // without /proc it could not be named later
	}
	u.File, err = os.CreateTemp(u.dir, u.pattern()) // mode 0600
	if err == nil {
		u.temporary = u.Name()
	}
	return u, err
}

func (u *unnamed) pattern() string { return "." + u.base + "-*" }

func (u *unnamed) link() string { return "/proc/self/fd/" + strconv.Itoa(int(u.Fd())) }

// rename gives the file its name, in place of what had it.
func (u *unnamed) rename(path string) error {
	if u.temporary == "" {
		if err := u.linkTemporary(); err != nil {
			return err
		}
	}
	err := os.Rename(u.temporary, path)
	if err == nil {
		u.temporary = ""
	}
	return err
}

// linkTemporary gives a file without a name a temporary one: a link cannot replace what is there, a rename can.
func (u *unnamed) linkTemporary() error {
	u.tidy()
	for i := 0; ; i++ {
		name := filepath.Join(u.dir, fmt.Sprintf(".%s-%s-%d-%d", u.base, host(), os.Getpid(), i))
		err := unix.Linkat(unix.AT_FDCWD, u.link(), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
		if err == nil {
			u.temporary = name
		}
		if err != unix.EEXIST || i == 10_000 {
			return err
		}
	}
}

// tidy removes the names that writers of this file left which were killed between the link and the rename, on this host.
func (u *unnamed) tidy() {
	entries, _ := os.ReadDir(u.dir) // best effort; not a pattern, which would read the brackets of a directory's name
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), "."+u.base+"-"+host()+"-")
		var pid, n int
		if _, err := fmt.Sscanf(rest, "%d-%d", &pid, &n); ours && err == nil && unix.Kill(pid, 0) == unix.ESRCH {
			os.Remove(filepath.Join(u.dir, e.Name()))
		}
	}
}

// host tells the temporary names of hosts that share the directory apart.
func host() string {
	name, err := os.Hostname()
	if err != nil || strings.ContainsRune(name, '/') {
		return "host"
	}
	return name
}

func (u *unnamed) discard() {
	u.Close()
	if u.temporary != "" {
		os.Remove(u.temporary)
	}
}
