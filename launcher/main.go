// Command sigmatrace launches, merges and examines traces of parallel jobs.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/sigmatrace/sigmatrace/profiles"
	"github.com/urfave/cli/v2"
)

// version is set by the linker.
var version = "devel"

// commands is the table of subcommands; each has a file of its own.
func commands() []*cli.Command {
	return []*cli.Command{
		dumpCommand(),
		launchCommand(),
		collectCommand(),
		calibrateCommand(),
		mergeCommand(),
		exportCommand(),
		infoCommand(),
		profileCommand(),
		windowCommand(),
		slurmCommand(),
		doctorCommand(),
		cleanCommand(),
		metricsCommand(),
		manualCommand(),
	}
}

func main() { os.Exit(run(os.Args)) }

// run executes one command line and returns the exit status.
func run(args []string) int {
	status := 0
	app := application()
	ctx := withStatus(context.Background(), &status)
	if err := app.RunContext(ctx, reorder(app.Commands, helpFor(app.Commands, args))); err != nil {
		return report(os.Stderr, err)
	}
	return status
}

func application() *cli.App {
	app := &cli.App{
		Name:                      "sigmatrace",
		Usage:                     "record and show the RDMA communication of a parallel job",
		UsageText:                 "sigmatrace launch -p simple -- mpirun -np 4 ./app\nsigmatrace COMMAND --help",
		Version:                   version,
		Commands:                  commands(),
		DisableSliceFlagSeparator: true, // --set takes lists: providers=ucx,ibverbs
		ExitErrHandler:            func(*cli.Context, error) {},
		Action: func(c *cli.Context) error {
			if c.NArg() == 0 {
				return cli.ShowAppHelp(c)
			}
			return unknownCommand(c.Args().First(), c.App.Commands)
		},
	}
	app.OnUsageError = wrongUsage
	for _, c := range app.Commands {
		prepare(c)
	}
	return app
}

// helpFor turns `help COMMAND...` into `COMMAND... --help`: cli's own help knows no commands below a command.
func helpFor(table []*cli.Command, args []string) []string {
	if len(args) < 3 || (args[1] != "help" && args[1] != "h") {
		return args
	}
	for _, c := range table {
		if c.HasName(args[2]) {
			return append(append([]string{args[0]}, args[2:]...), "--help")
		}
	}
	return []string{args[0], args[2]} // which says that there is no such command
}

// prepare gives a command and those below it the common behaviour: every usage error goes out through report.
func prepare(c *cli.Command) {
	c.OnUsageError = wrongUsage
	c.HideHelpCommand = true // or `sigmatrace launch -- help` would print help instead of running help
	if len(c.Subcommands) > 0 {
		c.Action = func(ctx *cli.Context) error {
			if ctx.NArg() == 0 {
				return cli.ShowSubcommandHelp(ctx)
			}
			return unknownCommand(ctx.Args().First(), ctx.Command.Subcommands)
		}
	}
	for _, sub := range c.Subcommands {
		prepare(sub)
	}
}

func wrongUsage(c *cli.Context, err error, _ bool) error {
	return &usageError{err: err, hint: fmt.Sprintf("see `%s --help`", c.Command.HelpName)}
}

func unknownCommand(name string, table []*cli.Command) error {
	var names []string
	for _, c := range table {
		if !c.Hidden && c.Name != "help" {
			names = append(names, c.Name)
		}
	}
	return &usageError{err: &profiles.Problem{What: fmt.Sprintf("unknown command %q", name), Valid: names, Nearest: profiles.Nearest(name, names)}}
}

type statusKey struct{}

func withStatus(ctx context.Context, status *int) context.Context {
	return context.WithValue(ctx, statusKey{}, status)
}

// setStatus makes the process exit with status although the command returned no error: launch returns its command's.
func setStatus(c *cli.Context, status int) {
	if p, ok := c.Context.Value(statusKey{}).(*int); ok {
		*p = status
	}
}
