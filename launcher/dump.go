package main

import (
	"fmt"
	"os"

	"github.com/sigmatrace/sigmatrace/merge/dump"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/urfave/cli/v2"
)

func dumpCommand() *cli.Command {
	return &cli.Command{
		Name:      "dump",
		Usage:     "print captures record by record, with offsets",
		ArgsUsage: "FILE|RUN...",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "header", Usage: "only file headers (parts may be combined)"},
			&cli.BoolFlag{Name: "definitions", Usage: "only definitions"},
			&cli.BoolFlag{Name: "events", Usage: "only events"},
			&cli.BoolFlag{Name: "aggregates", Usage: "only aggregate tables"},
			&cli.IntFlag{Name: "chunk", Value: -1, Usage: "only the event chunk in block `N` of the file; all when negative"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object a line"},
		},
		Action: func(c *cli.Context) error {
			if c.NArg() == 0 {
				return &usageError{err: fmt.Errorf("no capture or run directory is named"), hint: fmt.Sprintf("see `%s --help`", c.Command.HelpName)}
			}
			o := dump.Options{
				Header: c.Bool("header"), Definitions: c.Bool("definitions"), Events: c.Bool("events"), Aggregates: c.Bool("aggregates"),
				Chunk: c.Int("chunk"), JSON: c.Bool("json"),
			}
			for _, path := range c.Args().Slice() {
				if dir, err := rundir.Open(path); err == nil {
					resumeCollecting(c.Context, os.Stderr, dir)
				}
				if err := dump.Dump(c.Context, os.Stdout, path, o); err != nil {
					return fmt.Errorf("dumping %s: %w", path, err)
				}
			}
			return nil
		},
	}
}
