package spank

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// What comes from outside, as libFuzzer varies it: so many inputs, nearly the same in every run, under the sanitizers. `make fuzz` tries more.
func TestFuzzTargets(t *testing.T) {
	for _, need := range []string{"/usr/include/slurm/spank.h", "/usr/bin/clang"} {
		if _, err := os.Stat(need); err != nil {
			t.Skipf("%s is not installed (libslurm-dev, clang, libclang-rt-14-dev)", need)
		}
	}
	for target, runs := range map[string]int{"site": 20000, "options": 10000, "step": 20000, "job": 20000, "node": 1500} {
		t.Run(target, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
			defer cancel()
			out, err := exec.CommandContext(ctx, "./fuzz.sh", target, folder, "-seed=1", "-runs="+strconv.Itoa(runs)).CombinedOutput()
			done := 0
			if _, told, is := strings.Cut(string(out), "\nDone "); is {
				fmt.Sscan(told, &done)
			}
			if err != nil || done < runs { // it ends an input's variations that it has begun
				t.Fatalf("%d runs: %v\n%s\n%s", done, err, out, found(folder, target))
			}
		})
	}
}

// found is the input at which a target broke, quoted.
func found(folder, target string) string {
	names, _ := filepath.Glob(filepath.Join(folder, target+"-*"))
	var b strings.Builder
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err == nil {
			b.WriteString(filepath.Base(name) + ": " + strconv.QuoteToASCII(string(text)) + "\n")
		}
	}
	return b.String()
}
