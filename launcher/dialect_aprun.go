package main

import (
	"context"
	"strconv"
)

// aprun is that of Cray's ALPS, and of PALS, which has one for scripts that were written for ALPS. Variables go to the ranks by
// -e NAME=VALUE in each context.
var aprun = dialect{
	name:      "aprun",
	matches:   func(_ context.Context, c *command) bool { return c.called("aprun") },
	ranks:     aprunRanks,
	nodes:     aprunNodes,
	elsewhere: true,
	programs:  func(c *command) []string { return executables(aprunSyntax.contexts(c.argv)) },
	inject: func(c *command, in *injection) (*plan, error) {
		return aprunSyntax.environmentOption(c, in, "-e", "environment-override"), nil
	},
}

var aprunSyntax = syntax{
	attached: "adDeEFjlLmMnNpPrRStz",
	arguments: arguments(1, "a architecture cc cpu-binding cp cpu-binding-file cpus-per-cu cpus-per-pe d D debug e environment-override"+
		" exclude-node-list E F access-mode j l L m memory-per-pe mpmd-env n N node-list node-list-file p P pes pes-per-node pes-per-numa-node"+
		" protection-domain r R relaunch S sl sn specialized-cpus t cpu-time-limit wdir"),
}

func aprunRanks(c *command) int {
	total := 0
	for _, a := range aprunSyntax.contexts(c.argv) {
		ranks := 1 // aprun(1)
		if text, given := a.value("n", "pes"); given {
			ranks, _ = strconv.Atoi(text)
		}
		if ranks <= 0 {
			return 0
		}
		total += ranks
	}
	return total
}

// aprunNodes goes by the ranks a node where the command line has both numbers.
func aprunNodes(c *command) int {
	total := 0
	for _, a := range aprunSyntax.contexts(c.argv) {
		text, _ := a.value("n", "pes")
		ranks, _ := strconv.Atoi(text)
		text, _ = a.value("N", "pes-per-node")
		per, _ := strconv.Atoi(text)
		if ranks <= 0 || per <= 0 {
			return allocationNodes(c.environ)
		}
		total += (ranks + per - 1) / per
	}
	return total
}
