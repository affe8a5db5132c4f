package merge

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"path/filepath"

	"github.com/sigmatrace/sigmatrace/merge/parquet"
	"github.com/sigmatrace/sigmatrace/merge/perfetto"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// PiecesName is the folder that pieces of a trace go into, in the run directory.
const PiecesName = "trace"

// PiecesSchema is the JSON schema of the index of pieces.
//
//go:embed pieces.schema.json
var PiecesSchema []byte

// Split says how a trace is to be split: into a number of pieces, or into as few as take at most so much memory in a browser each; 0 of
// both means timeline.DefaultPieceMemory.
type Split struct {
	Pieces int
	Memory int64 // bytes
}

// SplitPlan is what a split will give.
type SplitPlan struct {
	Memory     int64 // that the whole takes in a browser, estimated, bytes
	Operations int64
	parts      []timeline.Part
	options    timeline.Options
}

// Pieces is how many there will be.
func (s *SplitPlan) Pieces() int { return len(s.parts) }

// Largest is the estimate of the memory that the largest piece takes, bytes.
func (s *SplitPlan) Largest() (n int64) {
	for i := range s.parts {
		n = max(n, s.parts[i].Memory)
	}
	return n
}

// PiecesIndex says what the pieces of a trace hold.
type PiecesIndex struct {
	Version int             `json:"version"`
	Format  string          `json:"format"`
	Run     string          `json:"run"`
	Account parquet.Summary `json:"account"`
	Memory  int64           `json:"memory"` // of all pieces at once
	// Of all pieces together. A message whose ends are in two pieces counts with both of its ends.
	Operations int64   `json:"operations"`
	FlowsCut   int64   `json:"flows_cut"`
	Pieces     []Piece `json:"pieces"`
}

// Piece is one piece of a trace.
type Piece struct {
	File       string `json:"file"`
	FromNS     int64  `json:"from_ns"` // operations posted from here on, ns since the Unix epoch
	ToNS       int64  `json:"to_ns"`   // and before here
	Operations int64  `json:"operations"`
	Slices     int64  `json:"slices"` // and instants
	Flows      int64  `json:"flows"`
	FlowsCut   int64  `json:"flows_cut"` // ends of messages whose other end is in another piece, or left out
	Counters   int64  `json:"counters"`
	Bytes      int64  `json:"bytes"`
	Memory     int64  `json:"memory"` // that it takes in a browser, estimated, bytes
}

// PlanSplit decides where a trace is to be split: it reads the run once and writes nothing.
func (m *Merged) PlanSplit(ctx context.Context, s Split, o ExportOptions) (*SplitPlan, error) {
	plan := &SplitPlan{options: m.TraceOptions(o)}
	plan.options.MaxSlices = -1
	p, err := timeline.NewPlan(m.Run(), plan.options)
	if err != nil {
		return nil, err
	}
	if s.Memory <= 0 {
		s.Memory = timeline.DefaultPieceMemory
	}
	if plan.parts, err = p.Split(ctx, m, s.Pieces, s.Memory); err != nil {
		return nil, err
	}
	for i := range plan.parts {
		plan.Memory += plan.parts[i].Memory
		plan.Operations += plan.parts[i].Operations
	}
	return plan, nil
}

// ExportPieces writes the Perfetto trace in pieces, trace.000.pftrace and so on, into the folder path, with an index, as
// rundir.WriteWholeDir does. An operation is in the piece of its post, so that together they hold every operation once.
func (m *Merged) ExportPieces(ctx context.Context, plan *SplitPlan, path string) error {
	return m.result(path, func() (*Exported, error) {
		index := &PiecesIndex{Version: 1, Format: "sigmatrace pieces", Run: m.Run().Name, Account: m.account().Summary, Memory: plan.Memory, Pieces: []Piece{}}
		x := &Exported{Name: "perfetto", Slices: new(int64), Flows: new(int64), Counters: new(int64)}
		err := rundir.WriteWholeDir(path, isExport, func(dir string) error {
			for i := range plan.parts {
				p, err := m.piece(ctx, plan, i, dir)
				if err != nil {
					return fmt.Errorf("piece %d: %w", i, err)
				}
				index.Pieces = append(index.Pieces, *p)
				index.Operations += p.Operations
				index.FlowsCut += p.FlowsCut
				*x.Slices += p.Slices
				*x.Flows += p.Flows
				*x.Counters += p.Counters
				x.Bytes += p.Bytes
				m.opts.Progress(StageExport+" "+filepath.Base(path), int64(i+1), int64(len(plan.parts)))
			}
			text, err := json.MarshalIndent(index, "", "  ")
			if err != nil {
				return fmt.Errorf("encoding the index: %w", err)
			}
			return rundir.WriteWhole(filepath.Join(dir, parquet.IndexName), func(w io.Writer) error {
				_, err := w.Write(append(text, '\n'))
				return err
			})
		})
		x.FlowsCut = index.FlowsCut
		return x, err
	})
}

// piece writes one piece.
func (m *Merged) piece(ctx context.Context, plan *SplitPlan, i int, dir string) (*Piece, error) {
	part := &plan.parts[i]
	o := plan.options
	o.Piece = &part.Piece
	p := &Piece{File: fmt.Sprintf("trace.%03d.pftrace", i), FromNS: part.From, ToNS: part.To, Memory: part.Memory}
	if p.FromNS == math.MinInt64 {
		p.FromNS = m.Run().First
	}
	if p.ToNS == math.MaxInt64 {
		p.ToNS = m.Run().Last + 1
	}
	err := rundir.WriteWhole(filepath.Join(dir, p.File), func(to io.Writer) error {
		w := bufio.NewWriterSize(to, 1<<20)
		stats, err := perfetto.Write(ctx, w, part.Source(m), o)
		if err != nil {
			return err
		}
		for _, n := range stats.Written {
			p.Operations += n
		}
		p.Slices, p.Flows, p.FlowsCut, p.Counters, p.Bytes = stats.Slices+stats.Instants, stats.FlowBegins, stats.FlowsCut, stats.Counters, stats.Bytes
		return w.Flush()
	})
	return p, err
}
