package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/profiles"
)

func init() {
	merger = func(ctx context.Context, dir *rundir.Dir, o mergeOptions) (mergeInfo, error) {
		p := newProgressLine(os.Stderr)
		defer p.end()
		options := merge.Options{Memory: o.Memory, Workers: o.Workers, Exports: exportsOf(o.Exports), Progress: p.show, AtEnd: true,
			ClockSource: o.Clock.Source, ClockWarnAbove: o.Clock.WarnAbove, ClockRepair: o.Clock.Repair, NoBandwidth: !o.Counters, Spread: o.Spread, Helped: tellHelpers}
		options.LimitMemory()
		info, err := merge.Run(ctx, dir, options)
		if err != nil {
			return nil, err
		}
		return info, nil
	}
}

// exportsOf keeps an empty list empty: it means no exports, while none given means the default ones.
func exportsOf(names []string) []string {
	if names == nil {
		return []string{}
	}
	return names
}

func mergeCommand() *cli.Command {
	return &cli.Command{
		Name:      "merge",
		Usage:     "merge a run's captures into trace and matrices",
		UsageText: "sigmatrace merge [-j N] [--memory SIZE] [--clock SOURCE] [--clock-repair] [--exports LIST] [--slurm] [--json] RUN",
		Description: "Merges what captures there are: of a run that has ended, was killed, or still goes on. Captures are never changed, and a merge can be\n" +
			"repeated at any time. What no option says is as the run's profile says. The exit status is 3 where the trace is incomplete.\n" +
			"With --slurm, inside an allocation, a job step over its nodes does the work; what it writes is the same.",
		ArgsUsage: "RUN",
		Flags: append(mergeFlags(),
			&cli.StringFlag{Name: "exports", Usage: "write `LIST`: " + strings.Join(exportNames(), ", ")},
			&cli.BoolFlag{Name: "slurm", Usage: "let all nodes of this Slurm allocation help"},
			&cli.StringFlag{Name: "worker", Usage: "help the merge that has made `FOLDER`", Hidden: true},
			&cli.BoolFlag{Name: "json", Usage: "print the run's account as JSON"}),
		Action: runMerge,
	}
}

func mergeFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: "j", Usage: "use `N` cores; 0: all"},
		&cli.StringFlag{Name: "memory", Usage: "use at most `SIZE` of memory"},
		&cli.StringFlag{Name: "clock", Usage: "bring nodes to one clock by `SOURCE`: " + strings.Join(merge.ClockSources, ", ")},
		&cli.BoolFlag{Name: "clock-repair", Usage: "move times where a message was received before it was sent"},
	}
}

func exportNames() []string {
	var names []string
	for _, e := range merge.Exporters {
		names = append(names, e.Name)
	}
	return names
}

// mergeInput takes the run directory and the options that merge, export and info share.
func mergeInput(c *cli.Context) (*rundir.Dir, merge.Options, error) {
	var o merge.Options
	if c.NArg() != 1 {
		return nil, o, &usageError{err: fmt.Errorf("%d arguments where one is taken, the run directory", c.NArg()), hint: fmt.Sprintf("see `%s --help`", c.Command.HelpName)}
	}
	dir, err := rundir.Open(c.Args().First())
	if err != nil {
		return nil, o, err
	}
	fetchMemory(os.Stderr, dir)
	resumeCollecting(c.Context, os.Stderr, dir)
	text, err := ofRun(c, dir, "memory", "merge.memory", profiles.FormatSize(merge.DefaultMemory))
	if err != nil {
		return nil, o, err
	}
	memory, err := profiles.ParseSize(text)
	if err != nil {
		return nil, o, &usageError{err: fmt.Errorf("--memory: %w", err)}
	}
	if memory < merge.MinMemory {
		return nil, o, &usageError{err: fmt.Errorf("--memory: %s is less than %s", profiles.FormatSize(memory), profiles.FormatSize(merge.MinMemory))}
	}
	if c.Int("j") < 0 {
		return nil, o, &usageError{err: fmt.Errorf("-j: %d is negative", c.Int("j"))}
	}
	o.Memory, o.Workers = memory, c.Int("j")
	if err := clockInput(c, dir, &o); err != nil {
		return nil, o, err
	}
	counters, err := ofRun(c, dir, "", "gpu.counters", "true")
	if err != nil {
		return nil, o, err
	}
	o.NoBandwidth = counters == "false"
	o.LimitMemory()
	return dir, o, nil
}

// ofRun returns an option's value: what the command line says, else what the run's profile said, else the default.
func ofRun(c *cli.Context, dir *rundir.Dir, option, key, otherwise string) (string, error) {
	if c.IsSet(option) {
		return c.String(option), nil
	}
	m, err := dir.ReadManifest()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return otherwise, nil
	case err != nil:
		return "", err
	}
	if v, ok := m.Profile.Values[key]; ok {
		return v.Value, nil
	}
	return otherwise, nil
}

// interruptible returns a context that SIGINT and SIGTERM end; what is being written then leaves nothing behind.
func interruptible(c *cli.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(c.Context, unix.SIGINT, unix.SIGTERM)
}

func runMerge(c *cli.Context) error {
	if c.IsSet("worker") {
		return helpMerge(c)
	}
	dir, o, err := mergeInput(c)
	if err != nil {
		return err
	}
	if o.Spread, err = spreadOf(c, dir); err != nil {
		return err
	}
	exports, err := ofRun(c, dir, "exports", "merge.exports", strings.Join(merge.DefaultExports, ","))
	if err != nil {
		return err
	}
	o.Exports = []string{}
	for name := range strings.SplitSeq(exports, ",") {
		if name = strings.TrimSpace(name); name != "" {
			o.Exports = append(o.Exports, name)
		}
	}
	ctx, stop := interruptible(c)
	defer stop()
	p := newProgressLine(os.Stderr)
	o.Progress, o.Helped = p.show, tellHelpers
	info, err := merge.Run(ctx, dir, o)
	p.end()
	if err != nil {
		return wrongExport(err)
	}
	if !info.Complete() || leftOnNodes(dir) {
		setStatus(c, exitIncomplete)
	}
	if c.Bool("json") {
		return printJSON(c.App.Writer, info)
	}
	info.Summary(os.Stderr)
	return nil
}

// wrongExport makes an export that does not exist a usage error.
func wrongExport(err error) error {
	if errors.Is(err, merge.ErrUnknownExport) {
		return &usageError{err: err}
	}
	return err
}
