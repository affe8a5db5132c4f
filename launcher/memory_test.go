package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/profiles"
)

func TestGroupLimit(t *testing.T) {
	for name, c := range map[string]struct {
		list  string
		files map[string]string
		want  int64
	}{
		"none":                         {"0::/\n", nil, math.MaxInt64},
		"version 2":                    {"0::/a/b\n", map[string]string{"a/b/memory.max": "max\n", "a/memory.max": "900\n", "memory.max": "1000\n"}, 900},
		"version 1":                    {"4:cpu,memory:/j\n0::/\n", map[string]string{"memory/j/memory.limit_in_bytes": "700\n", "memory/memory.limit_in_bytes": "9223372036854771712\n"}, 700},
		"another controller":           {"4:cpuset:/j\n", map[string]string{"memory/j/memory.limit_in_bytes": "700\n"}, math.MaxInt64},
		"a group that is not in sight": {"0::/a/b\n", map[string]string{"memory.max": "1000\n"}, 1000},
	} {
		dir := t.TempDir()
		for file, text := range c.files {
			path := filepath.Join(dir, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		list := filepath.Join(dir, "cgroup")
		if err := os.WriteFile(list, []byte(c.list), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := groupLimit(list, dir); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// A folder of the memory's name, whoever made it, is left alone: the disk serves, unless memory is insisted on.
func TestMemoryFolderInTheWay(t *testing.T) {
	folder := t.TempDir()
	for _, wanted := range []string{"auto", "memory"} {
		p := &prepared{placement: &placement{memory: folder, memoryLimit: 1 << 20, directory: "/r/capture"}, flat: &profiles.Flat{Memory: folder}}
		err := p.makeMemory(wanted)
		if wanted == "memory" {
			if err == nil || !strings.Contains(err.Error(), "file exists") {
				t.Errorf("memory: %v", err)
			}
			continue
		}
		if err != nil || p.memory != "" || p.flat.Memory != "" || !strings.Contains(p.place(), "records go to /r/capture at once, since mkdir "+folder) {
			t.Errorf("auto: %v, %+v, %s", err, p.placement, p.place())
		}
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("the folder that was there has %v, %v", left, err)
	}
}
