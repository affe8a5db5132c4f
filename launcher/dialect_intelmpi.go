package main

import "context"

// intelMPI is the mpirun or mpiexec of Intel MPI: a Hydra with more options, which its own text tells from the others.
var intelMPI = dialect{
	name: "intelmpi",
	matches: func(ctx context.Context, c *command) bool {
		return c.called("mpirun", "mpiexec", "mpiexec.hydra") && c.says(ctx, "Intel(R) MPI")
	},
	ranks:    hydraRanks,
	nodes:    hydraNodes,
	programs: hydraPrograms,
	inject:   injectHydra,
}
