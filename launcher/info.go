package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/profiles"
)

func infoCommand() *cli.Command {
	return &cli.Command{
		Name:      "info",
		Usage:     "tell what a run holds and how complete it is",
		UsageText: "sigmatrace info [--json] [--epochs] [--again] [-j N] [--memory SIZE] [--clock SOURCE] [--clock-repair] RUN",
		Description: "Tells what the last merge found; where there was none, or one of the clock's options is given, reads the captures, and writes no result. The exit status is 0 whether or not\n" +
			"the trace is complete.",
		ArgsUsage: "RUN",
		Flags: append(mergeFlags(),
			&cli.BoolFlag{Name: "again", Usage: "read the captures even after a merge, as of a run that was still going on"},
			&cli.BoolFlag{Name: "epochs", Usage: "list the epochs that counts and matrix are kept apart for"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"}),
		Action: runInfo,
	}
}

func runInfo(c *cli.Context) error {
	dir, o, err := mergeInput(c)
	if err != nil {
		return err
	}
	info, err := mergedInfo(dir)
	if err != nil {
		return err
	}
	if info == nil || c.Bool("again") || c.IsSet("clock") || c.IsSet("clock-repair") {
		ctx, stop := interruptible(c)
		defer stop()
		p := newProgressLine(os.Stderr)
		o.Progress = p.show
		m, err := merge.Open(ctx, dir, o)
		p.end()
		if err != nil {
			return err
		}
		defer m.Close()
		info = m.Info()
	}
	if c.Bool("json") {
		return printJSON(c.App.Writer, info)
	}
	if c.Bool("epochs") {
		info.EpochLines(c.App.Writer)
		return nil
	}
	info.Summary(c.App.Writer)
	return nil
}

// mergedInfo returns what the last merge left in the manifest, nil where there was none.
func mergedInfo(dir *rundir.Dir) (*merge.Info, error) {
	m, err := dir.ReadManifest()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case m.Result == nil:
		return nil, nil
	}
	return merge.ParseInfo(m.Result)
}

// layersOf returns the layers that --layer names, nil for all.
func layersOf(c *cli.Context) ([]string, error) {
	layers := c.StringSlice("layer")
	if len(layers) == 0 {
		return nil, nil
	}
	var known []string
	for _, l := range catalogue.Default.Layers {
		known = append(known, l.Name)
	}
	for _, l := range layers {
		if !slices.Contains(known, l) {
			return nil, &usageError{err: &profiles.Problem{What: fmt.Sprintf("--layer: no layer %q", l), Valid: known, Nearest: profiles.Nearest(l, known)}}
		}
	}
	return layers, nil
}

func joined(names []string) string { return strings.Join(names, ", ") }
