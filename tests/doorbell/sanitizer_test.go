package doorbell

import (
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sigmatrace/sigmatrace/tests/sources"
)

// whole builds the recorder, providers and bell_check in one program; and a driver, which has most of the threads, in a folder.
func whole(t *testing.T, flags, cuda []string) (program, lib string) {
	t.Helper()
	clients := "../softhca/clients/"
	program, lib = filepath.Join(t.TempDir(), "bell_check"), t.TempDir()
	var own []string
	for _, name := range []string{"check", "devx", "gpu", "bell", "bell_check", "bell_launches"} {
		own = append(own, clients+name+".c")
	}
	args := slices.Concat([]string{"-std=gnu11", "-D_GNU_SOURCE=", "-I", "../../preload"}, flags, []string{"-o", program}, own,
		sources.Recorder(t), sources.Provider(t, "ibverbs"), sources.Provider(t, "mlx5dv"), cuda, []string{filepath.Join(lib, "libcuda.so.1"), "-lmlx5", "-libverbs", "-lpthread", "-ldl"})
	driver, err := filepath.Glob("../standin/*.c")
	if err != nil || len(driver) == 0 {
		t.Fatalf("%v, %v", driver, err)
	}
	shared := slices.Concat([]string{"-D_GNU_SOURCE"}, flags, []string{"-fPIC", "-shared", "-Wl,-soname,libcuda.so.1", "-o", filepath.Join(lib, "libcuda.so.1")}, driver)
	for _, a := range [][]string{shared, args} {
		if b, err := exec.Command("gcc", a...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
	}
	return program, lib
}

// Recorder, providers and bell_check in one program, under each sanitizer.
func TestSanitizers(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	suppressions, err := filepath.Abs("testdata/tsan.supp")
	if err != nil {
		t.Fatal(err)
	}
	for name, flags := range map[string]string{"address": "-fsanitize=address,undefined", "thread": "-fsanitize=thread"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program, lib := whole(t, []string{"-O1", "-g", flags, "-fno-sanitize-recover=all"}, sources.Provider(t, "cuda"))
			cases := []struct{ name, how string }{{"stream", "3000,8,1,64"}, {"stream", "3000,6,4,32,host"}, {"pair", "1000,8,1,20"}, {"unregistered", "3000,8,1,64"}, {"two_gpus", "1000,8,1,64"},
				{"follow", "300,6,1,16"}, {"many", "1000,6,1,8"}, {"overtaken", "80,6,1,1"}}
			if name == "address" { // the thread sanitizer does not follow a program with threads into a child
				cases = append(cases, struct{ name, how string }{"forked", "3000,8,1,64"})
			}
			for _, c := range cases {
				options := []string{"env", "-u", "LD_PRELOAD", "ASAN_OPTIONS=detect_leaks=0", "TSAN_OPTIONS=halt_on_error=1 report_mutex_bugs=0 report_thread_leaks=0 suppressions=" + suppressions}
				_, info, want := bells(t, "full", c.name, c.how, recording{before: options, own: program, lib: lib})
				if c.name != "overtaken" {
					accounted(t, info, want["write"].Count, false)
				}
			}
		})
	}
}
