package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/sigmatrace/sigmatrace/merge"
)

func exportCommand() *cli.Command {
	return &cli.Command{
		Name:  "export",
		Usage: "write one export of a run",
		UsageText: "sigmatrace export --format NAME [--layer LAYER]... [--from TIME] [--to TIME] [--ranks LIST] [--epoch NAME]\n" +
			"                  [--split auto|N|SIZE] [-o PATH] [-j N] [--memory SIZE] RUN",
		Description: "Without -o it goes into the run directory, under the name that a merge gives it. Times are after the first thing recorded, such as 1.5s\n" +
			"or 200ms, or dates as RFC 3339 has them; what overlaps them is exported. --split writes the Perfetto trace in pieces that a browser\n" +
			"opens, with an index, into the folder trace/: by itself (auto), N of them, or of at most SIZE of a browser's memory each. An\n" +
			"operation is in the piece of its post, and nothing is left out. The exit status is 3 where the trace is incomplete.",
		ArgsUsage: "RUN",
		Flags: append(mergeFlags(),
			&cli.StringFlag{Name: "format", Usage: "`NAME` of the export: " + joined(exportNames()), Value: "perfetto"},
			&cli.StringSliceFlag{Name: "layer", Usage: "only `LAYER`; may be given again"},
			&cli.StringFlag{Name: "epoch", Usage: "matrix: only of the epoch `NAME`, or of its number in info --epochs"},
			&cli.StringFlag{Name: "from", Usage: "only from `TIME` on"},
			&cli.StringFlag{Name: "to", Usage: "only before `TIME`"},
			&cli.StringFlag{Name: "ranks", Usage: "only the ranks of `LIST`, such as 0-7,16"},
			&cli.StringFlag{Name: "split", Usage: "in pieces: `auto`, a number, or a size"},
			&cli.StringFlag{Name: "o", Usage: "write to `PATH`"}),
		Action: runExport,
	}
}

func runExport(c *cli.Context) error {
	dir, o, err := mergeInput(c)
	if err != nil {
		return err
	}
	e, err := merge.FindExporter(c.String("format"))
	if err != nil {
		return wrongExport(err)
	}
	split, err := splitOf(c)
	if err != nil {
		return err
	}
	name := e.File
	if split != nil {
		if e.Name != "perfetto" {
			return &usageError{err: fmt.Errorf("--split: only the perfetto export is written in pieces, not %s", e.Name)}
		}
		name = merge.PiecesName
	}
	narrow, err := narrowedOf(c)
	if err != nil {
		return err
	}
	if c.IsSet("epoch") && e.Name != "matrix" {
		return &usageError{err: fmt.Errorf("--epoch: %s has no epochs, only matrix has", e.Name)}
	}
	path := c.String("o")
	if path == "" {
		path = filepath.Join(dir.Path(), name)
	}
	ctx, stop := interruptible(c)
	defer stop()
	p := newProgressLine(os.Stderr)
	defer p.end()
	o.Progress = p.show
	m, err := merge.Open(ctx, dir, o)
	if err != nil {
		return err
	}
	defer m.Close()
	options, err := narrow.options(m)
	if err != nil {
		return err
	}
	options.Epoch = c.String("epoch")
	if e.Name == "perfetto" {
		wanted := merge.Split{Pieces: 1}
		if split != nil {
			wanted = *split
		}
		var plan *merge.SplitPlan
		plan, err = m.PlanSplit(ctx, wanted, options)
		if err != nil {
			return err
		}
		p.end()
		tellPlan(plan, split != nil)
		if plan.Operations == 0 {
			tellTimes(m.Info().Time)
		}
		if split != nil {
			err = m.ExportPieces(ctx, plan, path)
		} else {
			err = m.Export(ctx, e, path, options)
		}
	} else {
		err = m.Export(ctx, e, path, options)
	}
	if errors.Is(err, merge.ErrCannotNarrow) {
		return &usageError{err: err}
	}
	if err != nil {
		return err
	}
	p.end()
	tellExport(c, m, path)
	return nil
}

// tellPlan says how much a trace will take, before it is written.
func tellPlan(plan *merge.SplitPlan, split bool) {
	text := fmt.Sprintf("%d operations: about %s of memory in a browser", plan.Operations, merge.Size(plan.Memory))
	if split && plan.Pieces() > 1 {
		text += fmt.Sprintf("; in %d pieces of up to %s", plan.Pieces(), merge.Size(plan.Largest()))
	}
	note(os.Stderr, "%s", text)
	if plan.Largest() > browserMemory && split {
		printHint(os.Stderr, "a browser has 2 GiB for it: --split auto makes smaller pieces; `trace_processor server http FILE` opens larger ones for ui.perfetto.dev")
	}
}

// tellTimes says when there are operations at all, to somebody who has asked for a time without any.
func tellTimes(t *merge.Times) {
	if t != nil && t.FirstOperationNS != nil {
		printHint(os.Stderr, "the run: "+t.String())
	}
}

// browserMemory is what every browser gives a page.
const browserMemory = 2 << 30

// tellExport says what was written and what is missing.
func tellExport(c *cli.Context, m *merge.Merged, path string) {
	if !m.Info().Complete() {
		setStatus(c, exitIncomplete)
		for _, x := range m.Info().Ranks.Incomplete {
			warn(os.Stderr, "", "incomplete: %s", x)
		}
	}
	for _, x := range m.Info().Exports {
		if x.Rule != "" {
			note(os.Stderr, "%s: %s", x.File, x.Rule)
			printHint(os.Stderr, merge.SplitHint)
		}
		if x.FlowsCut > 0 {
			note(os.Stderr, "%s: flows cut: %d ends of messages whose other end is elsewhere", x.File, x.FlowsCut)
		}
	}
	note(os.Stderr, "written: %s", path)
}
