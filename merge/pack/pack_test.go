package pack

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// node makes a folder with the files of a node, and returns the folder and their contents.
func node(t *testing.T, sizes map[string]int) (string, map[string][]byte) {
	t.Helper()
	dir, all := t.TempDir(), map[string][]byte{}
	source := rand.NewChaCha8([32]byte{1})
	for name, size := range sizes {
		all[name] = make([]byte, size)
		source.Read(all[name]) //nolint:errcheck // never fails
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, all[name], 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir, all
}

func write(t *testing.T, captures, from string) *Packed {
	t.Helper()
	files, err := Files(from)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Write(context.Background(), captures, "n1.7.0", from, files)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func same(t *testing.T, dir string, want map[string][]byte) {
	t.Helper()
	for name, text := range want {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s: %d bytes, %v; want %d", name, len(got), err, len(text))
		}
	}
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return strings.Join(list, " ")
}

func TestWhatIsPackedIsUnpacked(t *testing.T) {
	from, all := node(t, map[string]int{"n1.0a/1.2.0.capture": 700_001, "n1.0a/3.4.0.capture": 0, "n1.0a/alive": 1024})
	if err := os.WriteFile(filepath.Join(from, "n1.0a", "other"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	captures := t.TempDir()
	p := write(t, captures, from)
	if len(p.Files) != 3 || p.Bytes != 701_025 || p.Path != filepath.Join(captures, "n1.7.0.tar.zst") {
		t.Errorf("packed %+v", p)
	}
	if info, err := os.Stat(p.Path); err != nil || info.Size() != p.Written || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v; want %d bytes", info, err, p.Written)
	}
	if got := names(t, captures); got != "n1.7.0.tar.zst" {
		t.Errorf("the folder holds %s", got)
	}
	if err := Unpack(context.Background(), captures, 2); err != nil {
		t.Fatal(err)
	}
	same(t, captures, all)
	if got := names(t, captures) + " / " + names(t, filepath.Join(captures, "n1.0a")); got != "n1.0a / 1.2.0.capture 3.4.0.capture alive" {
		t.Errorf("the folder holds %s", got)
	}
}

// Any tar that knows zstd unpacks a pack.
func TestPackIsATar(t *testing.T) {
	if _, err := exec.LookPath("zstd"); err != nil {
		t.Skip("no zstd")
	}
	from, all := node(t, map[string]int{"n1.0a/1.2.0.capture": 100_000})
	p := write(t, t.TempDir(), from)
	to := t.TempDir()
	if out, err := exec.Command("tar", "--zstd", "-C", to, "-xf", p.Path).CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%v\n%s", err, out)
	}
	same(t, to, all)
}

// A second pack of the part gets another name; of two captures of a process the longer one stays, and proofs of life are all kept once.
func TestPacksAreJoined(t *testing.T) {
	captures := t.TempDir()
	first, _ := node(t, map[string]int{"n1.0a/1.2.0.capture": 1000})
	second, all := node(t, map[string]int{"n1.0a/1.2.0.capture": 2000})
	for from, text := range map[string]string{first: "a", second: "b"} {
		if err := os.WriteFile(filepath.Join(from, "n1.0a", "alive"), []byte(strings.Repeat(text, 512)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(t, captures, second)
	write(t, captures, first)
	if got := names(t, captures); got != "n1.7.0-2.tar.zst n1.7.0.tar.zst" {
		t.Errorf("packs %s", got)
	}
	for range 2 {
		if err := Unpack(context.Background(), captures, 2); err != nil {
			t.Fatal(err)
		}
		same(t, captures, all)
		alive, err := os.ReadFile(filepath.Join(captures, "n1.0a", "alive"))
		if err != nil || len(alive) != 1024 || !strings.Contains(string(alive), strings.Repeat("a", 512)) || !strings.Contains(string(alive), strings.Repeat("b", 512)) {
			t.Errorf("alive: %d bytes, %v", len(alive), err)
		}
		write(t, captures, first)
	}
}

// What does not come in whole is cut off, be it that the time is over or that the file system is full.
func TestPackOfWhatFits(t *testing.T) {
	from, all := node(t, map[string]int{"n1.0a/1.2.0.capture": 50_000, "n1.0a/3.4.0.capture": 5_000_000})
	files, err := Files(from)
	if err != nil {
		t.Fatal(err)
	}
	check := func(name, captures string, p *Packed, err, want error) {
		t.Helper()
		if !errors.Is(err, want) || len(p.Files) != 1 || p.Files[0].Name != "n1.0a/1.2.0.capture" {
			t.Fatalf("%s: %+v, %v; want the small one, and %v", name, p, err, want)
		}
		if info, err := os.Stat(p.Path); err != nil || info.Size() != p.Written {
			t.Errorf("%s: %v, %v; want %d bytes: what did not come in whole is still there", name, info.Size(), err, p.Written)
		}
		if err := Unpack(context.Background(), captures, 1); err != nil {
			t.Fatal(err)
		}
		same(t, captures, map[string][]byte{"n1.0a/1.2.0.capture": all["n1.0a/1.2.0.capture"]})
		if got := names(t, filepath.Join(captures, "n1.0a")); got != "1.2.0.capture" {
			t.Errorf("%s: unpacked %s", name, got)
		}
	}
	captures := t.TempDir()
	p, err := Write(&ending{Context: context.Background(), calls: 5}, captures, "n1.7.0", from, files)
	check("time", captures, p, err, context.DeadlineExceeded)

	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	captures = t.TempDir()
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1 << 20, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	p, err = Write(context.Background(), captures, "n1.7.0", from, files)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	check("limit", captures, p, err, unix.EFBIG)
}

// ending is a context that ends at the n-th look.
type ending struct {
	context.Context
	calls int
}

func (e *ending) Err() error {
	if e.calls--; e.calls < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// What is no pack of ours, is newer, is cut, or leads elsewhere is refused, stays, and puts nothing anywhere.
func TestForeignPacksAreRefused(t *testing.T) {
	head := [2]string{"sigmatrace.pack", "sigmatrace.pack=1\npart=x\n"}
	for name, c := range map[string]struct {
		entries [][2]string
		link    string
		want    string
	}{
		"no head":      {entries: [][2]string{{"n1/1.2.0.capture", "x"}}, want: "not a pack"},
		"newer":        {entries: [][2]string{{"sigmatrace.pack", "sigmatrace.pack=2\n"}}, want: "version 2 is newer than 1"},
		"out of it":    {entries: [][2]string{head, {"../1.2.0.capture", "x"}}, want: "none of the recorder's files"},
		"deeper":       {entries: [][2]string{head, {"n1/a/1.2.0.capture", "x"}}, want: "none of the recorder's files"},
		"another file": {entries: [][2]string{head, {"n1/.bashrc", "x"}}, want: "none of the recorder's files"},
		"linked":       {entries: [][2]string{head, {"n1/1.2.0.capture", "x"}}, link: "n1", want: "is not a directory"},
	} {
		captures, elsewhere := t.TempDir(), t.TempDir()
		if c.link != "" {
			if err := os.Symlink(elsewhere, filepath.Join(captures, c.link)); err != nil {
				t.Fatal(err)
			}
		}
		path := filepath.Join(captures, "x.tar.zst")
		if err := os.WriteFile(path, archive(t, c.entries), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Unpack(context.Background(), captures, 1); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := names(t, elsewhere); got != "" {
			t.Errorf("%s: wrote %s", name, got)
		}
	}
	from, _ := node(t, map[string]int{"n1.0a/1.2.0.capture": 100_000})
	captures := t.TempDir()
	p := write(t, captures, from)
	if err := os.Truncate(p.Path, p.Written/2); err != nil {
		t.Fatal(err)
	}
	if err := Unpack(context.Background(), captures, 1); err == nil {
		t.Error("a pack that is cut in an entry was taken")
	}
	if _, err := os.Lstat(filepath.Join(captures, "n1.0a", "1.2.0.capture")); err == nil {
		t.Error("of a pack that is cut came a capture")
	}
}

func archive(t *testing.T, entries [][2]string) []byte {
	t.Helper()
	var b bytes.Buffer
	enc, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(enc)
	for _, e := range entries {
		err = errors.Join(w.WriteHeader(&tar.Header{Name: e[0], Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(e[1]))}))
		if err == nil {
			_, err = w.Write([]byte(e[1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), enc.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A few bytes of a pack can say that they are more than any disk holds.
func TestPacksThatUnpackToMoreThanThereIsRoomFor(t *testing.T) {
	const name = "n1/1.2.0.capture"
	holes := map[string]string{"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.name": name, "GNU.sparse.size": strconv.Itoa(1 << 60),
		"GNU.sparse.map": strconv.Itoa(1<<60) + ",0", "GNU.sparse.numblocks": "1"}
	var records string
	for key, value := range holes {
		line := " " + key + "=" + value + "\n"
		records += strconv.Itoa(len(line)+2) + line // each has 10 to 99 bytes
	}
	for what, c := range map[string]struct {
		headers []*tar.Header
		want    string
	}{
		"long":  {[]*tar.Header{{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: 1 << 60}}, "no space left"},
		"holes": {[]*tar.Header{{Name: "PaxHeaders.0/x", Typeflag: tar.TypeXHeader, Size: int64(len(records))}, {Name: name, Typeflag: tar.TypeReg}}, "none of the recorder's files"},
	} {
		var b bytes.Buffer
		enc, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		text := headName + "=1\n"
		head := make([]byte, 512)
		copy(head, text)
		enc.Write(append(block(&tar.Header{Name: headName, Typeflag: tar.TypeReg, Size: int64(len(text))}), head...)) //nolint:errcheck // to memory
		for _, h := range c.headers {
			enc.Write(block(h)) //nolint:errcheck // to memory
			if h.Typeflag == tar.TypeXHeader {
				enc.Write(append([]byte(records), make([]byte, (512-len(records)%512)%512)...)) //nolint:errcheck // to memory
			}
		}
		enc.Write(make([]byte, 1024)) //nolint:errcheck // to memory
		if err := enc.Close(); err != nil {
			t.Fatal(err)
		}
		captures := t.TempDir()
		if err := os.WriteFile(filepath.Join(captures, "x.tar.zst"), b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
		err = Unpack(ctx, captures, 1)
		stop()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}

// block is a header as old tar programs write it; archive/tar does not write all that it reads.
func block(h *tar.Header) []byte {
	b := make([]byte, 512)
	copy(b, h.Name)
	copy(b[100:], "0000600\x000000000\x000000000\x00")
	b[124] = 0x80                                          // base 256, as GNU's
	binary.BigEndian.PutUint64(b[128:136], uint64(h.Size)) //nolint:gosec // not negative
	copy(b[136:], "00000000000\x00        ")
	b[156] = h.Typeflag
	copy(b[257:], "ustar\x0000")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}
