// Package objects names the libraries of preload/ that tests and benchmarks load by themselves, without `sigmatrace launch`.
package objects

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Whole is the object in the library directory that holds the recorder and these providers.
func Whole(dir string, providers ...string) string {
	return filepath.Join(dir, "libsigmatrace."+strings.Join(slices.Sorted(slices.Values(providers)), "+")+".so")
}

// Apart is the recorder's object and one for each provider.
func Apart(dir string, providers ...string) []string {
	list := []string{filepath.Join(dir, "libsigmatrace.so")}
	for _, p := range providers {
		list = append(list, filepath.Join(dir, "provider-"+p+".so"))
	}
	return list
}

// List is what launch would preload: the whole one where it was built, else those apart.
func List(dir string, providers ...string) []string {
	if whole := Whole(dir, providers...); len(providers) > 0 && exists(whole) {
		return []string{whole}
	}
	return Apart(dir, providers...)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
