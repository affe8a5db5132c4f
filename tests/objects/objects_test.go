package objects

import (
	"debug/elf"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/profiles"
)

// built returns the absolute path of something that the Makefile makes.
func built(t *testing.T, path string) string {
	t.Helper()
	p, err := filepath.Abs(filepath.Join("../../build", path))
	if err != nil {
		t.Fatal(err)
	}
	if !exists(p) {
		t.Fatalf("%s is not built: run `make tests`", p)
	}
	return p
}

func libraries(t *testing.T) string { return filepath.Dir(built(t, "lib/sigmatrace/libsigmatrace.so")) }

// wholes are the objects that hold several things, with their providers.
func wholes(t *testing.T) map[string][]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(libraries(t), "libsigmatrace.*.so"))
	if err != nil {
		t.Fatal(err)
	}
	sets := map[string][]string{}
	for _, p := range paths {
		sets[p] = strings.Split(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(p), "libsigmatrace."), ".so"), "+")
	}
	return sets
}

func run(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// There is an object for every provider with what it needs, for what each profile that we ship selects and selected before mlx5dv was a provider, and for all.
func TestSets(t *testing.T) {
	have := wholes(t)
	wanted := map[string]bool{}
	var all []string
	for _, p := range profiles.Providers {
		wanted[Whole(libraries(t), append([]string{p.Name}, p.Needs...)...)] = true
		all = append(all, p.Name)
	}
	wanted[Whole(libraries(t), all...)] = true
	wanted[Whole(libraries(t), "ibverbs", "libfabric", "ucx")] = true
	for _, k := range profiles.Keys {
		if k.Name == "providers" {
			wanted[Whole(libraries(t), strings.Split(k.Default, ",")...)] = true
		}
	}
	if got, want := slices.Sorted(maps.Keys(have)), slices.Sorted(maps.Keys(wanted)); !slices.Equal(got, want) {
		t.Errorf("there are %v, want %v", got, want)
	}
}

// exported returns the symbols that other objects see, the recorder's own interface apart.
func exported(t *testing.T, path string) map[string]bool {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && !strings.HasPrefix(s.Name, "st_") {
			names[fmt.Sprintf("%s@%s", s.Name, s.Version)] = true
		}
	}
	return names
}

// A whole object is seen by programs as its parts are.
func TestExports(t *testing.T) {
	for path, providers := range wholes(t) {
		want := map[string]bool{}
		for _, p := range Apart(libraries(t), providers...) {
			maps.Copy(want, exported(t, p))
		}
		if got := exported(t, path); !maps.Equal(got, want) || len(got) < 7 {
			t.Errorf("%s exports\n%v\nits parts\n%v", path, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
		}
	}
}

// A program that asks by weak symbols whether a library is there gets the answer that it gets without us, but for providers that were selected.
func TestWeakSymbols(t *testing.T) {
	program := filepath.Join(t.TempDir(), "weak")
	run(t, nil, "gcc", "-fPIC", "-o", program, "testdata/weak.c")
	if got := run(t, nil, program); got != "" {
		t.Fatalf("without us: %q", got)
	}
	for path, providers := range wholes(t) {
		want := ""
		for _, p := range []string{"ibverbs", "libfabric", "mlx5dv", "ucx"} {
			if slices.Contains(providers, p) {
				want += p + "\n"
			}
		}
		if got := run(t, []string{"LD_PRELOAD=" + path}, program); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// recorded returns how many captures there are below a directory, how many proofs of life, and the requests in all tables.
func recorded(t *testing.T, dir string) (captures, alive int, requests uint64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case filepath.Base(path) == "alive":
			records, err := capture.ReadAlive(path)
			alive += len(records)
			return err
		case !strings.HasSuffix(path, capture.Extension):
			return nil
		}
		captures++
		f, err := capture.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return f.Aggregates(func(a *capture.Aggregate) error {
			requests += a.Calls
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return captures, alive, requests
}

const puts = 500

// Of two recorders in one process the first one records, and the other one does nothing.
func TestTwoRecorders(t *testing.T) {
	lib, copied := libraries(t), t.TempDir()
	run(t, nil, "cp", "-r", lib+"/.", copied)
	join := func(lists ...[]string) []string { return slices.Concat(lists...) }
	whole := func(dir string, providers ...string) []string { return []string{Whole(dir, providers...)} }
	for name, c := range map[string]struct {
		libs     []string
		captures int
	}{
		"one":                    {whole(lib, "ucx"), 1},
		"apart":                  {Apart(lib, "ucx"), 1},
		"whole before apart":     {join(whole(lib, "ucx"), Apart(lib, "ucx")), 1},
		"apart before whole":     {join(Apart(lib, "ucx"), whole(lib, "ucx")), 1},
		"two sets":               {join(whole(lib, "ucx"), whole(lib, "ibverbs", "libfabric", "ucx")), 1},
		"two installations":      {join(whole(lib, "ucx"), whole(copied, "ucx")), 1},
		"apart, twice":           {join(Apart(lib, "ucx"), Apart(copied, "ucx")), 1},
		"the first one's choice": {join(whole(lib, "ibverbs"), whole(lib, "ucx")), 0},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			dir := t.TempDir()
			config := filepath.Join(dir, "config")
			text := "sigmatrace.profile=1\nname=full\nmode=full\nproviders=ucx\nucx.level=ucp\ncapture.directory=" + dir + "\n"
			if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			run(t, []string{"SIGMATRACE_CONFIG=" + config, "LD_PRELOAD=" + strings.Join(c.libs, ":"), "UCX_TLS=self", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1"},
				built(t, "tests/burst-client"), "-l", "ucp", "-f", filepath.Join(dir, "published"), "-n", fmt.Sprint(puts))
			if captures, alive, requests := recorded(t, dir); captures != c.captures || alive != 1 || requests != uint64(c.captures*puts) {
				t.Errorf("%d captures, %d proofs of life, %d requests; want %d, 1, %d", captures, alive, requests, c.captures, c.captures*puts)
			}
		})
	}
}

// A launch inside a launch with other providers: its recorder is the only one in its processes, for NVTX too, whose variable the shell between
// the two has got from the outer one.
func TestLaunchInLaunch(t *testing.T) {
	sigmatrace := built(t, "bin/sigmatrace")
	for name, c := range map[string]struct {
		client string
		least  uint64
	}{
		"ucp":  {built(t, "tests/burst-client") + " -l ucp -f published -n " + fmt.Sprint(puts), puts},
		"nvtx": {built(t, "tests/nvtx-client"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			outer, inner := filepath.Join(dir, "outer"), filepath.Join(dir, "inner")
			script := fmt.Sprintf("cd %s; %s launch --no-merge -o inner -p full --providers ucx -- sh -c 'echo $LD_PRELOAD >&2; %s'", dir, sigmatrace, c.client)
			out := run(t, []string{"UCX_TLS=self"}, sigmatrace, "launch", "--no-merge", "-o", outer, "-p", "full", "--providers", "ibverbs", "--", "sh", "-c", script)
			if !strings.Contains(out, Whole(libraries(t), "ucx")+"\n") || strings.Contains(out, Whole(libraries(t), "ibverbs")) {
				t.Errorf("the inner command has\n%s", out)
			}
			if captures, _, _ := recorded(t, outer); captures != 0 {
				t.Errorf("the outer launch has %d captures", captures)
			}
			if captures, _, requests := recorded(t, inner); captures != 1 || requests < c.least {
				t.Errorf("the inner launch has %d captures with %d requests", captures, requests)
			}
		})
	}
}
