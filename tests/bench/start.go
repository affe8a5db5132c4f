package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sigmatrace/sigmatrace/profiles"
	"github.com/sigmatrace/sigmatrace/tests/objects"
)

// allProviders are the providers that are built, in order of name.
func (b *bench) allProviders() ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(b.build, "lib/sigmatrace/provider-*.so"))
	if err != nil || len(paths) == 0 {
		return nil, fmt.Errorf("no providers in %s/lib/sigmatrace: run make (%v)", b.build, err)
	}
	var names []string
	for _, p := range paths {
		names = append(names, strings.TrimSuffix(strings.TrimPrefix(filepath.Base(p), "provider-"), ".so"))
	}
	slices.Sort(names)
	return names, nil
}

// preload is the variable that puts the recorder and the providers into a program, as `sigmatrace launch` does.
func (b *bench) preload(providers ...string) string {
	return "LD_PRELOAD=" + strings.Join(objects.List(filepath.Join(b.build, "lib/sigmatrace"), providers...), ":")
}

// defaultProviders are those that are recorded where nothing else is said.
func defaultProviders() []string {
	for _, k := range profiles.Keys {
		if k.Name == "providers" {
			return strings.Split(k.Default, ",")
		}
	}
	panic("profiles have no key providers")
}

// start measures how much longer a program takes that does nothing, /bin/true, with us in it: posix_spawn to its end, all ways taking
// turns. The baseline is the same without any preload.
func start(b *bench) error {
	const rounds = 1500
	spawn, err := b.compile("spawn")
	if err != nil {
		return err
	}
	noop, err := b.compile("noop", "-shared", "-fPIC")
	if err != nil {
		return err
	}
	providers, err := b.allProviders()
	if err != nil {
		return err
	}
	config, err := b.profile("start", "full")
	if err != nil {
		return err
	}
	all := b.preload(providers...)
	ways := []struct{ name, env string }{
		{"none", ""},
		{"noop", "LD_PRELOAD=" + noop},
		{"recorder", strings.Join(append(config, b.preload()), "\n")},
		{"default_providers", strings.Join(append(config, b.preload(defaultProviders()...)), "\n")},
		{"all_providers", strings.Join(append(config, all), "\n")},
		{"all_providers_apart", strings.Join(append(config, "LD_PRELOAD="+strings.Join(objects.Apart(filepath.Join(b.build, "lib/sigmatrace"), providers...), ":")), "\n")},
		{"all_providers_rank", strings.Join(append(config, all, "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1"), "\n")},
	}
	args := []string{spawn, strconv.Itoa(rounds), "/bin/true"}
	for _, w := range ways {
		args = append(args, w.env)
	}
	out, err := b.command(nil, args...)
	if err != nil {
		return err
	}
	lines := strings.Fields(out)
	if len(lines) != 3*len(ways) {
		return fmt.Errorf("spawn printed %q", out)
	}
	for i, w := range ways {
		for k, statistic := range []string{"least", "p25", "median"} {
			v, err := strconv.ParseFloat(lines[3*i+k], 64)
			if err != nil {
				return err
			}
			none, err := strconv.ParseFloat(lines[k], 64)
			if err != nil {
				return err
			}
			b.print("start_"+w.name+"_"+statistic, v, "us", none, "no preload", "spawn 1500 /bin/true")
		}
	}
	// The proof of life of a rank is all that there may be.
	left, err := filepath.Glob(filepath.Join(b.dir, "start", "*", "*.capture"))
	if err != nil || len(left) > 0 {
		return fmt.Errorf("idle programs left captures: %v (%v)", left, err)
	}
	return os.RemoveAll(filepath.Join(b.dir, "start"))
}
