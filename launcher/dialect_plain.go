package main

import "context"

// plain is any command that hands its environment on to what it starts: an application, a shell script, a launcher of one host.
var plain = dialect{
	name:     "plain",
	matches:  func(context.Context, *command) bool { return true },
	ranks:    func(*command) int { return 0 },
	nodes:    func(*command) int { return 1 },
	programs: func(c *command) []string { return c.argv[:1] },
	inject: func(c *command, in *injection) (*plan, error) {
		p := &plan{argv: c.argv, environ: in.environment(c), preload: in.preload(c.environ["LD_PRELOAD"])}
		p.environ["LD_PRELOAD"] = p.preload
		p.environ["SIGMATRACE_CONFIG"] = in.config
		return p, nil
	},
}
