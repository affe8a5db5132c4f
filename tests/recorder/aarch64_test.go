package recorder

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
)

// The recorder for aarch64 (Grace hosts), run under user-mode emulation.
func TestAarch64(t *testing.T) {
	for _, tool := range []string{"aarch64-linux-gnu-gcc", "qemu-aarch64"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%s is not installed: run scripts/deps.sh test", tool)
		}
	}
	make := exec.Command("make", "aarch64")
	make.Dir = root
	if b, err := make.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	lib, err := filepath.Abs(filepath.Join(root, "build/aarch64"))
	if err != nil {
		t.Fatal(err)
	}
	client := filepath.Join(t.TempDir(), "client")
	cc := exec.Command("aarch64-linux-gnu-gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-I", filepath.Join(root, "preload"), "-o", client,
		"testdata/client.c", "-L", lib, "-lsigmatrace", "-Wl,-rpath,"+lib, "-lpthread", "-ldl")
	if b, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	qemu := func(env []string, args ...string) {
		run(t, env, append([]string{"qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", client}, args...)...)
	}
	for _, backEnd := range []string{"mapped", "written"} {
		env, captures := configure(t, t.TempDir(), settings{"record.back_end": backEnd})
		qemu(env, "series", "42", "5000")
		f := files(t, captures)[0]
		if f.Header().Architecture != capture.AArch64 {
			t.Errorf("architecture %v", f.Header().Architecture)
		}
		compare(t, events(t, f, 1), series(42, 5000, 1))
	}
	env, captures := configure(t, t.TempDir(), nil)
	qemu(env, "fork")
	fs := files(t, captures)
	if len(fs) != 2 {
		t.Fatalf("%d captures of a forking program, want 2", len(fs))
	}
	if fs[0].Header().ParentPid == fs[1].Header().Pid { // numbers come round
		fs[0], fs[1] = fs[1], fs[0]
	}
	compare(t, events(t, fs[1], 1), series(2, 300, 1))
	env, _ = configure(t, t.TempDir(), nil)
	qemu(env, "errno", "0", "1000")
}
