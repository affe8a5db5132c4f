package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// elsewhere returns a directory on another file system than dir's.
func elsewhere(t *testing.T, dir string) string {
	t.Helper()
	var here, there unix.Stat_t
	other, err := os.MkdirTemp("/dev/shm", "sigmatrace")
	if err != nil {
		t.Skipf("no second file system: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(other) })
	if unix.Stat(dir, &here) != nil || unix.Stat(other, &there) != nil || here.Dev == there.Dev {
		t.Skip("/dev/shm is no second file system")
	}
	return other
}

func fill(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func holds(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, want := range files {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(text) != want {
			t.Errorf("%s: got %q, %v", name, text, err)
		}
	}
}

func TestCapturesMove(t *testing.T) {
	files := map[string]string{"n1/1.cap": strings.Repeat("x", 100_000), "n1/2.cap": "", "n2/alive": "y"}
	for name, from := range map[string]func(*testing.T, string) string{
		"within a file system":   func(t *testing.T, _ string) string { return t.TempDir() },
		"to another file system": elsewhere,
	} {
		t.Run(name, func(t *testing.T) {
			to := t.TempDir()
			src := filepath.Join(from(t, to), "run")
			fill(t, src, files)
			if err := moveTree(src, to); err != nil {
				t.Fatal(err)
			}
			holds(t, to, files)
			if info, err := os.Stat(filepath.Join(to, "n1/1.cap")); err != nil || info.Mode() != 0o600 {
				t.Errorf("got %v, %v", info.Mode(), err)
			}
			if _, err := os.Lstat(src); !os.IsNotExist(err) {
				t.Errorf("%s is left: %v", src, err)
			}
		})
	}
}

// A name that is taken stops the move; both files stay what they were.
func TestCapturesOverwriteNothing(t *testing.T) {
	for name, from := range map[string]func(*testing.T, string) string{
		"within a file system":   func(t *testing.T, _ string) string { return t.TempDir() },
		"to another file system": elsewhere,
	} {
		t.Run(name, func(t *testing.T) {
			to := t.TempDir()
			src := filepath.Join(from(t, to), "run")
			fill(t, src, map[string]string{"n1/1.cap": "new"})
			fill(t, to, map[string]string{"n1/1.cap": "old"})
			if err := moveTree(src, to); err == nil {
				t.Error("no error")
			}
			holds(t, src, map[string]string{"n1/1.cap": "new"})
			holds(t, to, map[string]string{"n1/1.cap": "old"})
		})
	}
}

// What a killed move has copied, wholly or in part, is moved again; another file of its name stays, and holds back no other.
func TestCapturesMoveAgain(t *testing.T) {
	to := t.TempDir()
	src := filepath.Join(elsewhere(t, to), "run")
	long := strings.Repeat("0123456789", 20_000)
	fill(t, src, map[string]string{"n1/half": long, "n1/whole": long, "n1/none": "z", "n1/other": "abc", "n1/zz": "last"})
	fill(t, to, map[string]string{"n1/half": long[:150_000], "n1/whole": long, "n1/none": "", "n1/other": "abd"})
	if err := moveTree(src, to); err == nil || !strings.Contains(err.Error(), "n1/other") {
		t.Errorf("got %v", err)
	}
	holds(t, to, map[string]string{"n1/half": long, "n1/whole": long, "n1/none": "z", "n1/other": "abd", "n1/zz": "last"})
	holds(t, src, map[string]string{"n1/other": "abc"})
	left, err := os.ReadDir(filepath.Join(src, "n1"))
	if err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A link among the captures is not followed to what it points to.
func TestCapturesFollowNoLink(t *testing.T) {
	to := t.TempDir()
	src := filepath.Join(elsewhere(t, to), "run")
	fill(t, src, map[string]string{"n1/a": "x"})
	secret := filepath.Join(t.TempDir(), "secret")
	fill(t, filepath.Dir(secret), map[string]string{"secret": "s"})
	if err := os.Symlink(secret, filepath.Join(src, "n1/b")); err != nil {
		t.Fatal(err)
	}
	if err := moveTree(src, to); err == nil {
		t.Error("a link was copied")
	}
	if _, err := os.Lstat(filepath.Join(to, "n1/b")); err == nil {
		t.Error("something was made of the link")
	}
}
