package main

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// torchrun is PyTorch's launcher, by that name or as `python -m torch.distributed.run`. It hands its own environment to the ranks and
// has no option to give them another, so that its agent process gets the recorder too; there it is inert.
var torchrun = dialect{
	name:     "torchrun",
	matches:  func(_ context.Context, c *command) bool { _, is := torchrunOptions(c.argv); return is },
	ranks:    torchrunRanks,
	nodes:    func(*command) int { return 1 }, // an agent starts ranks on its own host
	programs: torchrunPrograms,
	inject:   plain.inject,
}

var torchrunSyntax = syntax{
	arguments: arguments(1, "local-addr local-ranks-filter log-dir logs-specs master-addr master-port max-restarts monitor-interval nnodes node-rank"+
		" nproc-per-node r rdzv-backend rdzv-conf rdzv-endpoint rdzv-id redirects role signals-to-handle start-method t tee"),
}

// torchModules are what `python -m` starts the same launcher by.
var torchModules = []string{"torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher"}

// torchrunOptions returns the words behind the launcher's name, and whether it is torchrun. Its options are spelled with "-" or "_".
func torchrunOptions(argv []string) ([]string, bool) {
	if len(argv) == 0 {
		return nil, false
	}
	rest := argv[1:]
	base := filepath.Base(argv[0])
	if base != "torchrun" {
		i := slices.Index(rest, "-m")
		if !strings.HasPrefix(base, "python") || i < 0 || i+1 >= len(rest) || !slices.Contains(torchModules, rest[i+1]) ||
			slices.ContainsFunc(rest[:i], func(word string) bool { return !strings.HasPrefix(word, "-") }) {
			return nil, false
		}
		rest = rest[i+2:]
	}
	words := slices.Clone(rest)
	for i, word := range words {
		if name, value, set := strings.Cut(word, "="); strings.HasPrefix(word, "--") {
			words[i] = strings.ReplaceAll(name, "_", "-")
			if set {
				words[i] += "=" + value
			}
		}
	}
	return words, true
}

// torchrunWorkers is the number of ranks that one torchrun starts, where the words are one: 0 where that depends on the host (gpu, auto).
func torchrunWorkers(argv []string) (int, bool) {
	if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	}
	words, is := torchrunOptions(argv)
	if !is {
		return 0, false
	}
	a := torchrunSyntax.parse(words)
	text, given := a.value("nproc-per-node")
	if !given {
		return 1, true
	}
	n, _ := strconv.Atoi(text)
	return n, true
}

func torchrunRanks(c *command) int {
	words, _ := torchrunOptions(c.argv)
	a := torchrunSyntax.parse(words)
	number := func(name, variable string) int {
		text, given := a.value(name)
		if !given {
			text, given = c.environ[variable]
		}
		if !given {
			return 1
		}
		n, _ := strconv.Atoi(text) // 0 for a range or "gpu"
		return n
	}
	return number("nnodes", "PET_NNODES") * number("nproc-per-node", "PET_NPROC_PER_NODE")
}

// torchrunPrograms is the Python that runs the ranks, or their program with --no-python.
func torchrunPrograms(c *command) []string {
	words, _ := torchrunOptions(c.argv)
	a := torchrunSyntax.parse(words)
	if _, direct := a.value("no-python"); direct {
		return executables([]appContext{a})
	}
	return c.argv[:1]
}
