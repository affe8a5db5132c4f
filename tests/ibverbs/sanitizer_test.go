package ibverbs

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/tests/sources"
)

// A fork while another thread is inside the registry does not lock the child out of it.
func TestLockAfterFork(t *testing.T) {
	r := newRig(t, "full")
	c := compile(t, filepath.Join(t.TempDir(), "lock"), "testdata/lock.c", "../../preload/ibverbs_context.c", "-lpthread")
	r.env = append(r.env, "LD_PRELOAD=")
	r.run(c)
}

// Recorder, provider and client in one program, under each sanitizer, on the software HCA.
func TestSanitizers(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	own := slices.Concat(sources.Recorder(t), sources.Provider(t, "ibverbs"), sources.Provider(t, "mlx5dv"))
	cases := map[string][]string{
		"client.c":       {"fields", "interleaved", "forked_raw", "errnos", "storm 4 100"},
		"verbs-client.c": {""},
	}
	for name, flags := range map[string]string{"address": "-fsanitize=address,undefined", "thread": "-fsanitize=thread"} {
		for file, runs := range cases {
			dir := "testdata"
			if file == "verbs-client.c" {
				dir = "../clients"
			}
			t.Run(name+"/"+strings.TrimSuffix(file, ".c"), func(t *testing.T) {
				t.Parallel()
				args := append([]string{flags, "-fno-sanitize-recover=all", filepath.Join(dir, file)}, own...)
				c := compile(t, filepath.Join(t.TempDir(), "client"), append(args, "-libverbs", "-lpthread", "-ldl")...)
				for _, run := range runs {
					if name == "thread" && strings.HasPrefix(run, "forked") {
						continue // the thread sanitizer does not follow into a child made by a raw call
					}
					for _, mode := range []string{"simple", "full"} {
						r := newRig(t, mode)
						r.env = append(r.env, "LD_PRELOAD=", "ASAN_OPTIONS=detect_leaks=0", "TSAN_OPTIONS=report_mutex_bugs=0")
						r.run(append([]string{c}, strings.Fields(run)...)...)
						if rec := r.recorded(); rec.files == 0 {
							t.Errorf("%s: no capture", run)
						}
					}
				}
			})
		}
	}
}
