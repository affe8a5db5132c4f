// Package spank tests those parts of the Slurm plugin that need no Slurm to run.
package spank

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// What reaches the plugin from outside is read within bounds, whatever it is, and taken only where the contract allows it.
func TestReadersTakeNothingWrong(t *testing.T) {
	if _, err := os.Stat("/usr/include/slurm/spank.h"); err != nil {
		t.Skip("slurm/spank.h is not installed (libslurm-dev)")
	}
	program := filepath.Join(t.TempDir(), "parse")
	args := []string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-I../../spank",
		"-o", program, "testdata/parse.c", "../../spank/step.c", "../../spank/site.c"}
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, out)
	}
	if out, err := exec.Command(program).CombinedOutput(); err != nil || string(out) != "well\n" {
		t.Fatalf("%v\n%s", err, out)
	}
}
