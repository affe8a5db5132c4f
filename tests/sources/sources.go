// Package sources tells the C sources of preload/ as the makefile has them, for tests that compile them in other ways, as with a sanitizer.
package sources

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Recorder are the sources of the recorder, but for dlsym: a program under a sanitizer has that one's own.
func Recorder(t testing.TB) []string {
	t.Helper()
	return slices.DeleteFunc(of(t, "recorder"), func(path string) bool { return filepath.Base(path) == "interpose.c" })
}

// Provider are those of a provider, by the name that profiles know it by.
func Provider(t testing.TB, name string) []string {
	t.Helper()
	return of(t, name)
}

func of(t testing.TB, part string) []string {
	t.Helper()
	all, err := parts()
	if err != nil {
		t.Fatal(err)
	}
	if len(all[part]) == 0 {
		t.Fatalf("make names no sources of %s", part)
	}
	return slices.Clone(all[part])
}

// parts asks the makefile, once a process, for the absolute paths by part.
var parts = sync.OnceValues(func() (map[string][]string, error) {
	_, file, _, _ := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(file), "..", "..")
	var stderr bytes.Buffer
	cmd := exec.Command("make", "-s", "--no-print-directory", "-C", root, "sources")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("make sources: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		for _, name := range words[1:] {
			path := filepath.Join(root, name)
			if _, err := os.Stat(path); err != nil { // also lets `go test` see that one has changed
				return nil, fmt.Errorf("make sources: %w", err)
			}
			all[words[0]] = append(all[words[0]], path)
		}
	}
	return all, nil
})
