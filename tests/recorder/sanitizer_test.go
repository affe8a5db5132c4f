package recorder

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// The recorder and its client in one program, under each sanitizer.
func TestSanitizers(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	sources, err := filepath.Glob(filepath.Join(root, "preload", "*.c"))
	if err != nil {
		t.Fatal(err)
	}
	for name, flags := range map[string]string{"address": "-fsanitize=address,undefined", "thread": "-fsanitize=thread"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := filepath.Join(t.TempDir(), "client")
			args := []string{"-std=gnu11", "-O1", "-g", flags, "-fno-sanitize-recover=all", "-I", filepath.Join(root, "preload"), "-o", client, "testdata/client.c"}
			for _, s := range sources {
				switch filepath.Base(s) {
				case "app.c", "config.c", "crc.c", "file.c", "lookup.c", "memory.c", "object.c", "recorder.c", "select.c", "window.c":
					args = append(args, s)
				}
			}
			if b, err := exec.Command("gcc", append(args, "-lpthread", "-ldl")...).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, b)
			}
			for _, backEnd := range []string{"mapped", "written"} {
				for _, c := range [][]string{{"series", "5", "20000"}, {"threads", "8"}, {"one_by_one", "5"}, {"fork"}, {"burst", "300000"}, {"marks", "200", "5"}} {
					if name == "thread" && c[0] == "fork" {
						continue // the thread sanitizer does not follow a program that starts threads of its own into a child
					}
					env, captures := configure(t, t.TempDir(), settings{"record.back_end": backEnd, "record.budget": "4194304", "epoch.interval": "10000000ns"})
					run(t, env, append([]string{client}, c...)...)
					if len(files(t, captures)) == 0 {
						t.Errorf("%v: no capture", c)
					}
				}
			}
		})
	}
}
