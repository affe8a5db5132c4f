package recorder

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/tests/sources"
)

// mixed holds that the parent's and the children's records of client.c's mixed() are all there.
func mixed(t *testing.T, all []*capture.File, children int) {
	t.Helper()
	if len(all) != 1+children {
		t.Fatalf("%d captures of a parent and %d children", len(all), children)
	}
	for _, f := range all {
		n := int(f.Live().LostEvents)
		for thread := uint32(1); thread <= f.Live().Threads; thread++ {
			n += len(events(t, f, thread))
		}
		if n != 300 && n != 3*5*2000+2*20*2000+100*6 {
			t.Errorf("%d records in %s", n, f.Path())
		}
	}
}

// windowsUnder opens and closes a window again and again while threads record, epochs are marked and children are forked, which record too
// where they are to.
func windowsUnder(t *testing.T, children bool, backEnd, client string, options []string) {
	t.Helper()
	args := []string{client, "paced_threads", "6", "100000"}
	if children {
		args = append(args, "children")
	}
	all := files(t, toggled(t, 4, settings{"record.back_end": backEnd, "window.max_events": "100000000"}, options, args...))
	if (len(all) > 1) != children {
		t.Errorf("%d captures", len(all))
	}
	var recorded, total uint64
	for _, f := range all {
		r, n, _ := numbers(t, f, false)
		recorded, total = recorded+r, total+n
		if f.Live().LostEvents != 0 {
			t.Errorf("%d events lost in %s", f.Live().LostEvents, f.Path())
		}
	}
	if recorded == 0 || recorded >= total {
		t.Errorf("%s: %d recorded of %d", backEnd, recorded, total)
	}
}

// The recorder and its client in one program, under each sanitizer.
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
			client := filepath.Join(t.TempDir(), "client")
			args := []string{"-std=gnu11", "-O1", "-g", flags, "-fno-sanitize-recover=all", "-I", filepath.Join(root, "preload"), "-o", client, "testdata/client.c"}
			args = append(append(args, sources.Recorder(t)...), "-lpthread", "-ldl")
			if b, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, b)
			}
			options := []string{"TSAN_OPTIONS=halt_on_error=1 die_after_fork=0 report_thread_leaks=0 suppressions=" + suppressions, "ASAN_OPTIONS=detect_leaks=0"} // a child cannot look for leaks: a thread it lacks may hold the lock
			for _, backEnd := range []string{"mapped", "written", "memory"} {
				if backEnd != "memory" {
					windowsUnder(t, name == "address", backEnd, client, options)
				}
				for _, c := range [][]string{{"series", "5", "20000"}, {"threads", "8"}, {"one_by_one", "5"}, {"fork"}, {"burst", "300000"}, {"mixed", "6", "300"}, {"marks", "200", "5"}} {
					children := 6
					if name == "thread" && c[0] == "mixed" {
						c[2], children = "0", 0 // nor does it see that the kernel wipes the child's memory
					}
					if name == "thread" && c[0] == "fork" {
						continue // the thread sanitizer does not follow a program that starts threads of its own into a child
					}
					with := settings{"record.back_end": backEnd, "record.budget": "4194304", "epoch.interval": "10000000ns"}
					end := func() (int, error) { return 0, nil }
					env, captures := []string(nil), ""
					if backEnd == "memory" {
						with["record.back_end"] = "mapped"
						var folder string
						env, captures, folder = inMemory(t, 8<<20, with)
						end = moving(t, folder, captures)
					} else {
						env, captures = configure(t, t.TempDir(), with)
					}
					run(t, append(env, options...), append([]string{"timeout", "60", client}, c...)...)
					if left, err := end(); left != 0 || err != nil {
						t.Errorf("%v: %d captures left in memory, %v", c, left, err)
					}
					all := files(t, captures)
					if len(all) == 0 {
						t.Errorf("%v: no capture", c)
					}
					if c[0] == "mixed" {
						mixed(t, all, children)
					}
				}
			}
		})
	}
}
