package rig

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Tmpfs mounts a small file system of its own kind and returns where. options: as of mount(8), with a size.
func Tmpfs(t testing.TB, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("no file system can be mounted: %v", err)
	}
	unmountLater(t, dir)
	return dir
}

// Grow gives a Tmpfs another size, so that a merge has room.
func Grow(t testing.TB, dir, options string) {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, options); err != nil {
		t.Fatal(err)
	}
}

// Ext4 makes an ext4 file system of so many MiB on a loop device and returns where it is mounted. mkfs, mount: more options.
func Ext4(t testing.TB, mib int64, mkfs []string, mount string) string {
	t.Helper()
	dir, image := t.TempDir(), filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, mib<<20); err != nil {
		t.Fatal(err)
	}
	if b, err := exec.Command("mkfs.ext4", append(append([]string{"-q", "-F", "-m", "0"}, mkfs...), image)...).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, b)
	}
	if b, err := exec.Command("mount", "-o", "loop"+mount, image, dir).CombinedOutput(); err != nil {
		t.Skipf("no loop device can be mounted: %v: %s", err, b)
	}
	unmountLater(t, dir)
	return dir
}

func unmountLater(t testing.TB, dir string) {
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// DeviceOf is the number of a file's file system as the mount table writes it.
func DeviceOf(t testing.TB, path string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
}

// Fill writes a file until nothing more fits.
func Fill(t testing.TB, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, n := range []int{1 << 20, 4096} {
		var err error
		for err == nil {
			_, err = f.Write(make([]byte, n))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
}

// Quota makes a btrfs file system with a subvolume that may hold so many bytes ("4M") and returns the subvolume.
func Quota(t testing.TB, limit string) string {
	t.Helper()
	dir, image := t.TempDir(), filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 256<<20); err != nil {
		t.Fatal(err)
	}
	volume := filepath.Join(dir, "volume")
	for n, line := range [][]string{{"mkfs.btrfs", "-q", image}, {"mount", "-o", "loop", image, dir}, {"btrfs", "-q", "subvolume", "create", volume},
		{"btrfs", "quota", "enable", dir}, {"btrfs", "qgroup", "limit", limit, volume}} {
		b, err := exec.Command(line[0], line[1:]...).CombinedOutput()
		if err != nil && n == 1 {
			t.Skipf("no btrfs can be mounted: %v: %s", err, b)
		}
		if err != nil {
			t.Fatalf("%v: %v\n%s", line, err, b)
		}
		if n == 1 {
			unmountLater(t, dir)
		}
	}
	return volume
}

// Unlimited takes a Quota's limit away.
func Unlimited(t testing.TB, volume string) {
	t.Helper()
	if b, err := exec.Command("btrfs", "qgroup", "limit", "none", volume).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
}
