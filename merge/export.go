package merge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sigmatrace/sigmatrace/merge/chromejson"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/perfetto"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// Exporter writes one result of a merge. Write may be stopped at any byte: the file gets its name only when Write has succeeded.
type Exporter struct {
	Name  string // as Options.Exports and `sigmatrace export --format` call it
	File  string // in the run directory
	Write func(ctx context.Context, m *Merged, w io.Writer, o ExportOptions) (*Exported, error)
}

// Exported says what an export holds. Name, File and Bytes are filled in for the exporter.
type Exported struct {
	Name     string           `json:"name"`
	File     string           `json:"file"`
	Bytes    int64            `json:"bytes"`
	Slices   *int64           `json:"slices"` // null for what has none
	Flows    *int64           `json:"flows"`
	Counters *int64           `json:"counters"` // samples
	LeftOut  map[string]int64 `json:"left_out"` // operations left out, by layer
	Rule     string           `json:"rule"`     // what was left out, in words
}

// ExportOptions narrow an export.
type ExportOptions struct {
	Layers []string // nil means all
}

// DefaultExports are written where nothing else is asked for.
var DefaultExports = []string{"perfetto", "matrix"}

// Exporters is the table of exports.
var Exporters = []Exporter{
	{"perfetto", "trace.pftrace", writePerfetto},
	{"matrix", "matrix.json", writeMatrix},
	{"json", "trace.json", writeJSON},
}

func writePerfetto(ctx context.Context, m *Merged, w io.Writer, o ExportOptions) (*Exported, error) {
	return m.timeline(ctx, w, o, perfetto.Write)
}

func writeJSON(ctx context.Context, m *Merged, w io.Writer, o ExportOptions) (*Exported, error) {
	return m.timeline(ctx, w, o, chromejson.Write)
}

type timelineWriter func(context.Context, io.Writer, ops.Source, timeline.Options) (*timeline.Stats, error)

// timeline writes the run with one of the writers of traces.
func (m *Merged) timeline(ctx context.Context, w io.Writer, o ExportOptions, write timelineWriter) (*Exported, error) {
	stats, err := write(ctx, w, m, timeline.Options{Workers: cap(m.slots), Layers: o.Layers})
	if err != nil {
		return nil, err
	}
	slices := stats.Slices + stats.Instants
	return &Exported{Slices: &slices, Flows: &stats.FlowBegins, Counters: &stats.Counters, LeftOut: stats.LeftOut, Rule: stats.Rule}, nil
}

func writeMatrix(_ context.Context, m *Merged, w io.Writer, o ExportOptions) (*Exported, error) {
	text, err := m.matrix.JSON(o.Layers)
	if err != nil {
		return nil, err
	}
	_, err = w.Write(text)
	return &Exported{}, err
}

// ErrUnknownExport is the error of an export that is not in the table.
var ErrUnknownExport = errors.New("unknown export")

// FindExporter returns the exporter of a name.
func FindExporter(name string) (*Exporter, error) {
	var names []string
	for i := range Exporters {
		if Exporters[i].Name == name {
			return &Exporters[i], nil
		}
		names = append(names, Exporters[i].Name)
	}
	return nil, fmt.Errorf("%w %q: there are %s", ErrUnknownExport, name, strings.Join(names, ", "))
}

func lookUp(names []string) ([]*Exporter, error) {
	var all []*Exporter
	for _, n := range names {
		e, err := FindExporter(n)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(all, e) {
			all = append(all, e)
		}
	}
	return all, nil
}

func (m *Merged) export(ctx context.Context, e *Exporter, dir *rundir.Dir) error {
	return m.Export(ctx, e, filepath.Join(dir.Path(), e.File), ExportOptions{})
}

// Export writes one export to path, as rundir.WriteWhole does: an earlier export of the name is replaced when all of this one is on disk.
// What the run is made of is refused. What was written is added to the Info.
func (m *Merged) Export(ctx context.Context, e *Exporter, path string, o ExportOptions) error {
	if m.dir.Owns(path) {
		return fmt.Errorf("writing %s: it belongs to the run: exports never replace captures, manifest or profile", path)
	}
	m.opts.Progress(StageExport+" "+filepath.Base(path), 0, 1)
	var x *Exported
	err := rundir.WriteWhole(path, func(to io.Writer) (err error) {
		count := &counting{w: to}
		w := bufio.NewWriterSize(count, 1<<20)
		if x, err = e.Write(ctx, m, w, o); err != nil {
			return err
		}
		err = w.Flush()
		x.Bytes = count.n
		return err
	})
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	m.opts.Progress(StageExport+" "+filepath.Base(path), 1, 1)
	x.Name, x.File = e.Name, filepath.Base(path)
	if x.LeftOut == nil {
		x.LeftOut = map[string]int64{}
	}
	m.info.Exports = append(m.info.Exports, *x)
	return nil
}

// counting counts what goes through it.
type counting struct {
	w io.Writer
	n int64
}

func (c *counting) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}
