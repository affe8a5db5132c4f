package life

import (
	"debug/elf"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/tests/needs"
)

// newest is what the oldest system that the recorder is for has: RHEL 8.
var newest = [2]int{2, 28}

// F28: a preload that asks for newer symbols than the system has, or brings libraries along, breaks every program there. Each library of
// ours needs glibc up to 2.28, and no library but libc and our own.
func TestF28SymbolVersions(t *testing.T) {
	libs, err := filepath.Glob(filepath.Join(filepath.Dir(needs.Built(t, "lib/sigmatrace/libsigmatrace.so")), "*.so"))
	if err != nil || len(libs) < 3 {
		t.Fatalf("%v, %v", libs, err)
	}
	for _, lib := range libs {
		name := filepath.Base(lib)
		f, err := elf.Open(lib)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		symbols, err := f.ImportedSymbols()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range symbols {
			if msg := tooNew(s); msg != "" {
				t.Errorf("%s: %s", name, msg)
			}
		}
		needed, err := f.ImportedLibraries()
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range needed {
			if !slices.Contains([]string{"libc.so.6", "libsigmatrace.so", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}, n) {
				t.Errorf("%s needs %s", name, n)
			}
		}
		if len(symbols) < 5 {
			t.Errorf("%s: %d imported symbols", name, len(symbols))
		}
	}
	// The same look at a program of today's sees what it is to see.
	if tooNew(elf.ImportedSymbol{Name: "dlopen", Version: "GLIBC_2.34"}) == "" || tooNew(elf.ImportedSymbol{Name: "x", Version: "GLIBC_PRIVATE"}) == "" {
		t.Error("a symbol of glibc 2.34 passes")
	}
}

func tooNew(s elf.ImportedSymbol) string {
	version, ok := strings.CutPrefix(s.Version, "GLIBC_")
	if !ok {
		return ""
	}
	var v [3]int
	if n, _ := fmt.Sscanf(version, "%d.%d.%d", &v[0], &v[1], &v[2]); n < 2 || slices.Compare(v[:2], newest[:]) > 0 {
		return fmt.Sprintf("%s of version %s, want none above %d.%d", s.Name, s.Version, newest[0], newest[1])
	}
	return ""
}
