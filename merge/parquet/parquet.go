// Package parquet writes a merged run as Parquet files (https://parquet.apache.org), for DuckDB, Arrow, pandas, Spark and the like:
// every operation as a row, and small tables of what rows refer to. SCHEMA.md lists the columns.
package parquet

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline"
)

// SchemaVersion is the major version of the tables and of the index; columns are only ever added to one.
const SchemaVersion = 1

// IndexSchema is the JSON schema of the index.
//
//go:embed index.schema.json
var IndexSchema []byte

// IndexName is the file of an export that says what the others hold.
const IndexName = "index.json"

// WorkerBytes is about the memory that one worker takes beyond what reading a partition does.
const WorkerBytes = 64 << 20

const (
	operationsName = "operations"
	maxFiles       = 64 // of a layer, where the run is not so large that they would hold too many row groups
	maxPartitions  = 256
	groupOf        = 2 // partitions in a row group
)

// Options of an export; the limit of slices has no meaning here.
type Options = timeline.Options

// File is one file of an export.
type File struct {
	Path    string  `json:"path"`  // in the export's folder
	Table   string  `json:"table"` // operations, or the name of a small table
	Layer   *string `json:"layer"` // of operations
	Rows    int64   `json:"rows"`
	Bytes   int64   `json:"bytes"`
	FirstNS *int64  `json:"first_ns"` // post of the first operation, ns since the Unix epoch
	LastNS  *int64  `json:"last_ns"`  // post of the last one
}

// Index says what an export holds.
type Index struct {
	Version int     `json:"version"`
	Format  string  `json:"format"`
	Run     string  `json:"run"`
	Rows    int64   `json:"rows"` // operations
	Account Summary `json:"account"`
	Files   []File  `json:"files"`

	Filtered int64 `json:"filtered"` // operations of other layers, times and ranks than were asked for
}

// Bytes is the size of all files but the index.
func (x *Index) Bytes() (n int64) {
	for i := range x.Files {
		n += x.Files[i].Bytes
	}
	return n
}

// Write writes the run of src into the empty folder dir: operations/layer=LAYER/part-NNNNN.parquet, the small tables, and the index.
// Each file holds a stretch of time, in order of post. The bytes are the same for any number of workers.
func Write(ctx context.Context, dir string, src ops.Source, account Account, o Options) (*Index, error) {
	o.MaxSlices = -1
	p, err := timeline.NewPlan(src.Run(), o)
	if err != nil {
		return nil, err
	}
	index := &Index{Version: SchemaVersion, Format: "sigmatrace parquet", Run: p.Run.Name, Account: account.Summary, Files: []File{}}
	each, n := stretches(p.Run.Partitions)
	parts := make([]part, n)
	if o.Elsewhere != nil {
		if err := o.Elsewhere.Start(KindPart, n, struct{}{}); err != nil {
			return nil, err
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(p.Options.Workers)
	for i := range parts {
		g.Go(func() error {
			if taken, err := parts[i].take(gctx, o.Elsewhere, dir, i); err != nil || taken {
				return err
			}
			return parts[i].make(gctx, dir, src, p, i, each)
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("writing operations: %w", err)
	}
	for i := range parts {
		index.Files = append(index.Files, parts[i].files...)
		index.Filtered += parts[i].filtered
	}
	layer := func(f File) int {
		return slices.IndexFunc(catalogue.Default.Layers, func(l catalogue.Layer) bool { return l.Name == *f.Layer })
	}
	slices.SortStableFunc(index.Files, func(a, b File) int { return layer(a) - layer(b) })
	for _, f := range index.Files {
		index.Rows += f.Rows
	}
	tables, err := writeTables(dir, p.Run, account)
	if err != nil {
		return nil, err
	}
	index.Files = append(index.Files, tables...)
	text, err := json.MarshalIndent(index, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding the index: %w", err)
	}
	return index, os.WriteFile(filepath.Join(dir, IndexName), append(text, '\n'), 0o600)
}

// part is a stretch of partitions: one file for each layer that has operations in it.
type part struct {
	*encoder
	dir      string
	number   int
	writers  map[string]layerWriter
	files    []File
	filtered int64
}

// make writes part i, of each partitions.
func (p *part) make(ctx context.Context, dir string, src ops.Source, plan *timeline.Plan, i, each int) error {
	*p = part{dir: dir, number: i, encoder: newEncoder(plan), writers: map[string]layerWriter{}}
	defer p.discard()
	return p.write(ctx, src, i*each, min((i+1)*each, plan.Run.Partitions))
}

func (p *part) write(ctx context.Context, src ops.Source, from, to int) error {
	for i := from; i < to; i++ {
		err := src.Partition(ctx, i, func(block []ops.Op) error {
			if err := p.block(block); err != nil {
				return err
			}
			return ctx.Err()
		})
		if err != nil {
			return fmt.Errorf("partition %d: %w", i, err)
		}
		if (i+1-from)%groupOf != 0 && i+1 < to {
			continue
		}
		for _, w := range p.writers {
			if err := w.rowGroup(); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.writers)) {
		w, err := p.writers[name].close()
		if err != nil {
			return err
		}
		p.files = append(p.files, File{Path: p.path(name), Table: operationsName, Layer: &name, Rows: w.rows, Bytes: w.bytes, FirstNS: &w.first, LastNS: &w.last})
	}
	p.encoder, p.writers = nil, nil
	return nil
}

// path is a file's path in the export, in the form from which readers take the partition's column.
func (p *part) path(layer string) string {
	return fmt.Sprintf("%s/layer=%s/part-%05d.parquet", operationsName, layer, p.number)
}

func (p *part) block(block []ops.Op) error {
	for i := range block {
		op := &block[i]
		shown, err := p.plan.Shows(op)
		if err != nil {
			return err
		}
		if !shown {
			p.filtered++
			continue
		}
		if op.Flags&(ops.Doorbell|ops.CallRecord) == ops.Doorbell {
			continue // its elements are rows: bytes would be twice in the table
		}
		layer := p.layer[op.Event]
		w := p.writers[layer]
		if w == nil {
			w = layers[layer](p.encoder)
			if err := w.create(filepath.Join(p.dir, p.path(layer)), p.plan.Run.Name); err != nil {
				return err
			}
			p.writers[layer] = w
		}
		w.add(op)
	}
	for _, w := range p.writers {
		if err := w.flush(); err != nil {
			return err
		}
	}
	return nil
}

func (p *part) discard() {
	for _, w := range p.writers {
		w.discard()
	}
}
