package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// injection is what has to reach the ranks: the recorder's libraries and the file that configures it.
type injection struct {
	libdir string
	libs   []string // absolute; of several, the recorder's first
	config string   // the flat profile
	clear  bool     // SIGMATRACE=off was inherited and overruled: it must not reach the ranks
}

// libraryDirectory is $SIGMATRACE_LIBDIR, or lib/sigmatrace beside the bin directory that this executable is in.
func libraryDirectory(getenv func(string) string) (string, error) {
	if dir := getenv("SIGMATRACE_LIBDIR"); dir != "" {
		return filepath.Abs(dir)
	}
	exe, err := os.Executable()
	if err == nil {
		exe, err = filepath.EvalSymlinks(exe)
	}
	if err != nil {
		return "", failf("set SIGMATRACE_LIBDIR to the directory of libsigmatrace.so", "finding this program's own directory: %w", err)
	}
	return filepath.Join(filepath.Dir(exe), "..", "lib", "sigmatrace"), nil
}

// findLibraries returns what is to be preloaded from dir: the one object that holds the recorder and these providers, where there is one, since
// every object makes the start of every program longer; else the recorder and the providers' libraries, in the order of preloading.
func findLibraries(dir string, providers []string) ([]string, error) {
	if i := strings.IndexAny(dir, ": \t\n\v\f\r$"); i >= 0 {
		return nil, failf("install sigmatrace, or set SIGMATRACE_LIBDIR to a copy of the directory, where the path has none of these",
			"library directory %q has a %q in its path: the dynamic linker splits or expands LD_PRELOAD there", dir, dir[i:i+1])
	}
	whole := filepath.Join(dir, "libsigmatrace."+strings.Join(slices.Sorted(slices.Values(providers)), "+")+".so")
	libs := []string{whole}
	if _, err := os.Stat(whole); len(providers) == 0 || errors.Is(err, fs.ErrNotExist) {
		libs = []string{filepath.Join(dir, "libsigmatrace.so")}
		for _, p := range providers {
			libs = append(libs, filepath.Join(dir, "provider-"+p+".so"))
		}
	}
	for _, lib := range libs {
		info, err := os.Stat(lib)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, failf("set SIGMATRACE_LIBDIR to the directory that holds it, or select other providers", "library %s does not exist", lib)
		case err != nil:
			return nil, failf("", "looking for library: %w", err)
		case !info.Mode().IsRegular():
			return nil, failf("", "library %s is not a regular file", lib)
		}
	}
	return libs, nil
}

// preload returns the value of LD_PRELOAD for a process that would otherwise have existing: our libraries, then what was there, in
// its order. Libraries of an enclosing launch are taken out first, so that none is there twice.
func (in *injection) preload(existing string) string {
	rest := strings.FieldsFunc(existing, func(r rune) bool { return r == ':' || r == ' ' })
	kept := in.libs[:len(in.libs):len(in.libs)]
	for _, lib := range rest {
		if !in.own(lib) {
			kept = append(kept, lib)
		}
	}
	return strings.Join(kept, ":")
}

func (in *injection) own(lib string) bool {
	return filepath.Clean(filepath.Dir(lib)) == in.libdir && ownName(filepath.Base(lib))
}

// ownName reports whether a library is one of ours, wherever it is installed.
func ownName(base string) bool {
	return (strings.HasPrefix(base, "libsigmatrace.") || strings.HasPrefix(base, "provider-")) && strings.HasSuffix(base, ".so")
}
