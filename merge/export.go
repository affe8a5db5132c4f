package merge

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sigmatrace/sigmatrace/merge/chromejson"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/parquet"
	"github.com/sigmatrace/sigmatrace/merge/perfetto"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// Exporter writes one result of a merge, with one of Write and WriteDir. Either may be stopped at any byte: file or folder get their name
// only when it has succeeded.
type Exporter struct {
	Name     string // as Options.Exports and `sigmatrace export --format` call it
	File     string // in the run directory: a file, or a folder of several
	Narrows  bool   // takes the times and ranks of ExportOptions
	Write    func(ctx context.Context, m *Merged, w io.Writer, o ExportOptions) (*Exported, error)
	WriteDir func(ctx context.Context, m *Merged, dir string, o ExportOptions) (*Exported, error)
}

// Exported says what an export holds. Name, File and Bytes are filled in for the exporter.
type Exported struct {
	Name     string           `json:"name"`
	File     string           `json:"file"`
	Bytes    int64            `json:"bytes"`
	Rows     *int64           `json:"rows"`   // of tables: operations
	Slices   *int64           `json:"slices"` // null for what has none
	Flows    *int64           `json:"flows"`
	FlowsCut int64            `json:"flows_cut"` // ends whose other end is of another time, rank or piece
	Counters *int64           `json:"counters"`  // samples
	LeftOut  map[string]int64 `json:"left_out"`  // operations left out, by layer
	Rule     string           `json:"rule"`      // what was left out, in words
}

// ExportOptions narrow an export.
type ExportOptions struct {
	Layers   []string         // nil means all
	Epoch    string           // matrix: of this epoch alone, by name or number; "" means the whole run
	From, To int64            // only operations that overlap [From, To), ns since the Unix epoch; a To of 0 is the end of the run
	Ranks    func(int64) bool // only processes of these ranks; nil means all, also those without one
}

func (o *ExportOptions) narrow() bool { return o.From != 0 || o.To != 0 || o.Ranks != nil }

// TraceOptions are the options with which traces of the run are written, for an export with those of o.
func (m *Merged) TraceOptions(o ExportOptions) timeline.Options {
	t := timeline.Options{Workers: cap(m.slots), Layers: o.Layers, From: o.From, To: o.To, Ranks: o.Ranks, Facts: m.info.facts(), NoBandwidth: m.opts.NoBandwidth}
	if m.spread != nil && m.spread.pool != nil && o.Layers == nil && !o.narrow() { // workers know no narrower plan
		t.Elsewhere = m.spread.pool
	}
	return t
}

// DefaultExports are written where nothing else is asked for.
var DefaultExports = []string{"perfetto", "matrix"}

// Exporters is the table of exports.
var Exporters = []Exporter{
	{Name: "perfetto", File: "trace.pftrace", Narrows: true, Write: writePerfetto},
	{Name: "matrix", File: "matrix.json", Write: writeMatrix},
	{Name: "json", File: "trace.json", Narrows: true, Write: writeJSON},
	{Name: "parquet", File: "events", Narrows: true, WriteDir: writeParquet},
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
	stats, err := write(ctx, w, m, m.TraceOptions(o))
	if err != nil {
		return nil, err
	}
	slices := stats.Slices + stats.Instants
	return &Exported{Slices: &slices, Flows: &stats.FlowBegins, FlowsCut: stats.FlowsCut, Counters: &stats.Counters, LeftOut: stats.LeftOut, Rule: stats.Rule}, nil
}

func writeMatrix(_ context.Context, m *Merged, w io.Writer, o ExportOptions) (*Exported, error) {
	matrix := m.matrix
	if o.Epoch != "" {
		var err error
		if matrix, err = matrix.OfEpoch(o.Epoch, m.epochs); err != nil {
			return nil, err
		}
	}
	text, err := matrix.JSON(o.Layers)
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

// ErrCannotNarrow is the error of an export that holds all times and ranks or nothing.
var ErrCannotNarrow = errors.New("cannot be cut by time or rank")

// Export writes one export to path, as rundir.WriteWhole or WriteWholeDir do: an earlier export of the name is replaced when all of this
// one is on disk. What the run is made of is refused. What was written is added to the Info.
func (m *Merged) Export(ctx context.Context, e *Exporter, path string, o ExportOptions) error {
	if o.narrow() && !e.Narrows {
		return fmt.Errorf("writing %s: export %s %w: it comes from the aggregate tables", path, e.Name, ErrCannotNarrow)
	}
	return m.result(path, func() (x *Exported, err error) {
		if e.WriteDir != nil {
			err = rundir.WriteWholeDir(path, isExport, func(dir string) error {
				x, err = e.WriteDir(ctx, m, dir, o)
				return err
			})
		} else {
			err = rundir.WriteWhole(path, func(to io.Writer) (err error) {
				count := &counting{w: to}
				w := bufio.NewWriterSize(count, 1<<20)
				if x, err = e.Write(ctx, m, w, o); err != nil {
					return err
				}
				err = w.Flush()
				x.Bytes = count.n
				return err
			})
		}
		if x != nil {
			x.Name = e.Name
		}
		return x, err
	})
}

// result writes a result, with progress, and adds it to the Info.
func (m *Merged) result(path string, write func() (*Exported, error)) error {
	if m.dir.Owns(path) {
		return fmt.Errorf("writing %s: it belongs to the run: exports never replace captures, manifest or profile", path)
	}
	stage := StageExport + " " + filepath.Base(path)
	m.opts.Progress(stage, 0, 1)
	x, err := write()
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	m.opts.Progress(stage, 1, 1)
	x.File = filepath.Base(path)
	if x.LeftOut == nil {
		x.LeftOut = map[string]int64{}
	}
	m.info.Exports = append(m.info.Exports, *x)
	return nil
}

// isExport says whether a folder is an export of this program: only such a one is ever replaced.
func isExport(dir string) bool {
	text, err := os.ReadFile(filepath.Join(dir, parquet.IndexName))
	if err != nil {
		return false
	}
	var index struct{ Format string }
	return json.Unmarshal(text, &index) == nil && strings.HasPrefix(index.Format, "sigmatrace ")
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
