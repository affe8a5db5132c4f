package main

import (
	"context"
	"strconv"
)

// jsrun is that of IBM's Job Step Manager. Variables go to the ranks by -E NAME=VALUE in each context.
var jsrun = dialect{
	name:      "jsrun",
	matches:   func(_ context.Context, c *command) bool { return c.called("jsrun") },
	ranks:     jsrunRanks,
	nodes:     jsrunNodes,
	elsewhere: true,
	programs:  func(c *command) []string { return executables(jsrunSyntax.contexts(c.argv)) },
	inject: func(c *command, in *injection) (*plan, error) {
		return jsrunSyntax.environmentOption(c, in, "-E", "env"), nil
	},
}

var jsrunSyntax = syntax{
	attached: "abcdDEfFgJKlmMnoprStUX",
	arguments: arguments(1, "a tasks_per_rs appfile b bind c cpu_per_rs chdir d launch_distribution D env_no_propagate E env"+
		" e stdio_mode erf_input erf_output f F env_eval g gpu_per_rs h J use_resources K rs_per_socket k stdio_stderr l latency_priority"+
		" launch_node_task m memory_per_rs M smpiargs n nrs np o stdio_stdout p progress r rs_per_host S save_resources t stdio_input U"+
		" X exit_on_error"),
}

func jsrunRanks(c *command) int {
	total := 0
	for _, a := range jsrunSyntax.contexts(c.argv) {
		ranks := 0
		if text, given := a.value("p", "np"); given {
			ranks, _ = strconv.Atoi(text)
		} else {
			text, _ := a.value("n", "nrs")
			sets, _ := strconv.Atoi(text) // or ALL_HOSTS
			text, _ = a.value("a", "tasks_per_rs")
			tasks, _ := strconv.Atoi(text)
			ranks = sets * tasks
		}
		if ranks <= 0 {
			return 0
		}
		total += ranks
	}
	return total
}

// jsrunNodes goes by the resource sets a host where the command line has both numbers.
func jsrunNodes(c *command) int {
	total := 0
	for _, a := range jsrunSyntax.contexts(c.argv) {
		text, _ := a.value("n", "nrs")
		sets, _ := strconv.Atoi(text)
		text, _ = a.value("r", "rs_per_host")
		per, _ := strconv.Atoi(text)
		if sets <= 0 || per <= 0 {
			return allocationNodes(c.environ)
		}
		total += (sets + per - 1) / per
	}
	return total
}
