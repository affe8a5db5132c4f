// Package spank tests those parts of the Slurm plugin that need no Slurm to run.
package spank

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// well builds a program with files of the plugin's, under the sanitizers, and runs it.
func well(t *testing.T, source string, of ...string) {
	t.Helper()
	if _, err := os.Stat("/usr/include/slurm/spank.h"); err != nil {
		t.Skip("slurm/spank.h is not installed (libslurm-dev)")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	args := []string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-I../../spank", "-o", program, "testdata/" + source}
	for _, name := range of {
		args = append(args, "../../spank/"+name)
	}
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, out)
	}
	cmd := exec.Command(program)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "well\n" {
		t.Fatalf("%v\n%s", err, out)
	}
}

// What reaches the plugin from outside is read within bounds, whatever it is, and taken only where the contract allows it.
func TestReadersTakeNothingWrong(t *testing.T) {
	well(t, "parse.c", "step.c", "site.c")
}

// What slurmstepd has begun is done, though the step that it belongs to is being killed.
func TestChildrenThatAreEndedWithTheStep(t *testing.T) {
	well(t, "command.c", "command.c")
}
