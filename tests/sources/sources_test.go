package sources

import (
	"path/filepath"
	"slices"
	"testing"
)

// Each C file of preload/ is in the makefile, and in what tests compile: none is left out, and none is in two parts.
func TestEveryFileHasAPart(t *testing.T) {
	var got []string
	for _, path := range slices.Concat(Recorder(t), Provider(t, "ibverbs"), Provider(t, "mlx5dv"), Provider(t, "libfabric"), Provider(t, "ucx"), Provider(t, "cuda"), Provider(t, "nccl")) {
		got = append(got, filepath.Base(path))
	}
	files, err := filepath.Glob("../../preload/*.c")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, path := range files {
		if name := filepath.Base(path); name != "interpose.c" {
			want = append(want, name)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("of the parts: %v\nin preload/:  %v", got, want)
	}
}
