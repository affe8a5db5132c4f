// Package needs has what tests that run the built programs begin with.
package needs

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Built returns the absolute path of something that the makefile makes in build/.
func Built(t testing.TB, path string) string {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	p := filepath.Join(filepath.Dir(file), "..", "..", "build", path)
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("not built (run `make tests`): %v", err)
	}
	return p
}

// Time leaves a test that takes more than a moment out of the quick run.
func Time(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
}

// Modes are the modes of recording to test: all, or the quick run's, which records most.
func Modes() []string {
	if testing.Short() {
		return []string{"full"}
	}
	return []string{"aggregate", "simple", "full"}
}
