package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

func windowCommand() *cli.Command {
	command := func(word, usage, said string) *cli.Command {
		return &cli.Command{
			Name: word, Usage: usage, ArgsUsage: "RUN",
			UsageText: "sigmatrace window " + word + " RUN",
			Description: "RUN is the directory of a run that goes on. Its processes notice it within about a second, at the next calls that they make.\n" +
				"Counts and matrix go on in any case.",
			Action: func(c *cli.Context) error { return runWindow(c, word, said) },
		}
	}
	return &cli.Command{
		Name:  "window",
		Usage: "start or stop the recording of events in a run that goes on",
		Subcommands: []*cli.Command{
			command(rundir.WindowStart, "record events from now on", "events are recorded"),
			command(rundir.WindowStop, "record no events from now on", "events are not recorded"),
		},
	}
}

func runWindow(c *cli.Context, window, said string) error {
	if c.NArg() != 1 {
		return &usageError{err: fmt.Errorf("%d arguments where one is taken, the run directory", c.NArg()), hint: fmt.Sprintf("see `%s --help`", c.Command.HelpName)}
	}
	dir, err := rundir.Open(c.Args().First())
	if err != nil {
		return err
	}
	m, err := dir.ReadManifest()
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case m.Run.End != nil:
		return failf("", "%s has ended: there is nothing to %s", c.Args().First(), window)
	case m.Profile.Values["window.control"].Value == "false":
		return failf("launch it with window.control = true", "the processes of %s do not look for commands", c.Args().First())
	}
	control, changed, err := dir.Command(window, time.Now())
	if err != nil {
		return err
	}
	if !changed {
		note(os.Stderr, "%s already, by command %d", said, control.Number)
		return nil
	}
	note(os.Stderr, "%s from now on (command %d)", said, control.Number)
	return nil
}
