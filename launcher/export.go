package main

import (
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/sigmatrace/sigmatrace/merge"
)

func exportCommand() *cli.Command {
	return &cli.Command{
		Name:      "export",
		Usage:     "write one export of a run",
		UsageText: "sigmatrace export --format NAME [--layer LAYER]... [-o FILE] [-j N] [--memory SIZE] RUN",
		Description: "Without -o the file goes into the run directory, under the name that a merge gives it. The exit status is 3 where the trace is\n" +
			"incomplete.",
		ArgsUsage: "RUN",
		Flags: append(mergeFlags(),
			&cli.StringFlag{Name: "format", Usage: "`NAME` of the export: " + joined(exportNames()), Value: "perfetto"},
			&cli.StringSliceFlag{Name: "layer", Usage: "only `LAYER`; may be given again"},
			&cli.StringFlag{Name: "o", Usage: "write to `FILE`"}),
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
	layers, err := layersOf(c)
	if err != nil {
		return err
	}
	path := c.String("o")
	if path == "" {
		path = filepath.Join(dir.Path(), e.File)
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
	if err := m.Export(ctx, e, path, merge.ExportOptions{Layers: layers}); err != nil {
		return err
	}
	p.end()
	if !m.Info().Complete() {
		setStatus(c, exitIncomplete)
		for _, x := range m.Info().Ranks.Incomplete {
			warn(os.Stderr, "", "incomplete: %s", x)
		}
	}
	note(os.Stderr, "written: %s", path)
	return nil
}
