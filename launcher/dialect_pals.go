package main

import (
	"context"
	"path/filepath"
	"strings"
)

// pals is the mpiexec of HPE Cray's Parallel Application Launch Service. Variables go to the ranks by --env NAME=VALUE in each context,
// and mpiexec and the service's daemons stay untouched. It is asked for after the other makers of an mpiexec, which name themselves.
var pals = dialect{
	name:     "pals",
	matches:  isPALS,
	ranks:    palsRanks,
	nodes:    palsNodes,
	programs: func(c *command) []string { return executables(palsSyntax.contexts(c.argv)) },
	inject: func(c *command, in *injection) (*plan, error) {
		return palsSyntax.environmentOption(c, in, "--env", "genv"), nil
	},
}

var palsSyntax = syntax{
	pairs: words("env genv"),
	arguments: arguments(1, "cpu-bind configfile d depth envlist genvlist gpu-bind host hostfile hostlist hosts mem-bind n np pmi ppn"+
		" rlimits soft umask wdir"),
}

func isPALS(ctx context.Context, c *command) bool {
	if !c.called("mpiexec", "mpirun") {
		return false
	}
	real, err := filepath.EvalSymlinks(c.path)
	return err == nil && strings.Contains(real, "/pals/") || c.says(ctx, "PALS", "mpiexec version ")
}

func palsRanks(c *command) int { return total(palsSyntax.contexts(c.argv), "n", "np") }

func palsNodes(c *command) int {
	return hostsOf(palsSyntax.contexts(c.argv), c, []string{"hosts", "hostlist", "host"}, []string{"hostfile"})
}
