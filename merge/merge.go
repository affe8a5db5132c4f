// Package merge makes one ordered, clock-corrected, matched stream of operations of a run's captures, and what is told of the run:
// its Info, its communication matrices, and the exports.
//
// Stages: inventory (which processes, which clocks), topology (who is connected with whom), pairing (requests with their completions,
// process by process), matching (sends with receives, over processes), and the ordered merge, which exporters drive through
// ops.Source. Between the stages everything lies in one temporary file, so that memory stays within its limit whatever the input.
package merge

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/match"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/merge/spill"
	"github.com/sigmatrace/sigmatrace/merge/topology"
)

// Options of a merge.
type Options struct {
	Workers        int           // processes and partitions worked on at the same time; 0 means as many as there are CPUs. The output does not depend on it
	Memory         int64         // bytes; 0 means DefaultMemory, less than MinMemory is raised to it
	Exports        []string      // names of Exporters; nil means DefaultExports
	AtEnd          bool          // the manifest is to say how long this merge took: that at the run's end, since one that is repeated changes nothing
	ClockSource    string        // one of ClockSources; "" means ClockAuto
	ClockRepair    bool          // remove every receive before its send, by moving times
	ClockWarnAbove time.Duration // nodes whose clock may be further off, or nobody knows how far, are warned of; 0: none
	NoBandwidth    bool          // traces without the counters of what GPUs ring for
	TempDir        string        // for the temporary file; "" means the run directory
	Log            hclog.Logger
	Progress       func(stage string, done, total int64) // called from several goroutines; nil for none
	Spread         Spread                                // gets other hosts to help; nil: this process does all. The output does not depend on it
	Helped         func(units map[string]int)            // called at the end of a merge that others have helped with: by host, the units of work done; nil for none
}

// Memory limits.
const (
	DefaultMemory = 1 << 30
	MinMemory     = 64 << 20
)

// budget is how the memory is given out. What a process's pairing may hold is fixed by the memory alone, so that the output does not
// depend on the number of workers.
type budget struct {
	workers     int   // processes at the same time
	partitions  int   // partitions at the same time
	outstanding int   // requests outstanding in one process
	sort        int64 // bytes of each external sort
}

const (
	entryBytes     = 400      // of an outstanding request, with its share of maps and queues
	partitionBytes = 40 << 20 // of a partition being merged
	baseBytes      = 16 << 20 // of a process being paired: run buffers, chunk buffers
)

func (o *Options) budget() budget {
	memory := max(o.Memory, MinMemory)
	perProcess := min(max(memory/4, 24<<20), 256<<20)
	b := budget{sort: memory / 16}
	b.outstanding = int(max(perProcess-baseBytes, 4<<20) / entryBytes)
	b.workers = max(1, min(o.Workers, int((memory-4*b.sort)/perProcess)))
	b.partitions = max(1, min(o.Workers, int((memory-2*b.sort)/partitionBytes)))
	return b
}

func (o *Options) fill() {
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	if o.Memory <= 0 {
		o.Memory = DefaultMemory
	}
	if o.Exports == nil {
		o.Exports = DefaultExports
	}
	if o.ClockSource == "" {
		o.ClockSource = ClockAuto
	}
	if o.Log == nil {
		o.Log = hclog.NewNullLogger()
	}
	if o.Helped == nil {
		o.Helped = func(map[string]int) {}
	}
	if o.Progress == nil {
		o.Progress = func(string, int64, int64) {}
	}
}

// Stages, as Progress names them.
const (
	StageInventory = "reading definitions"
	StagePairing   = "reading captures"
	StageMatching  = "matching"
	StageClocks    = "comparing clocks"
	StageExport    = "writing"
)

// Run merges the captures of dir, writes the exports and the manifest's result, and returns the run's account. The run may be whole,
// killed, or still going on; captures that cannot be read are named in the Info and the rest is merged. It may be repeated at any
// time; captures are never changed.
func Run(ctx context.Context, dir *rundir.Dir, o Options) (*Info, error) {
	began := time.Now()
	o.fill()
	exporters, err := lookUp(o.Exports)
	if err != nil {
		return nil, err
	}
	m, err := Open(ctx, dir, o)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	for _, e := range exporters {
		if err := m.export(ctx, e, dir); err != nil {
			return nil, err
		}
	}
	info := m.Info()
	text, err := info.JSON()
	if err != nil {
		return nil, err
	}
	var of []rundir.Merge
	if o.AtEnd {
		end := time.Now()
		of = append(of, rundir.Merge{End: end.UTC(), Seconds: end.Sub(began).Seconds()})
	}
	if err := dir.SetResult(text, of...); err != nil {
		return nil, err
	}
	return info, nil
}

// Merged is a merged run, ready to be exported. It implements ops.Source.
type Merged struct {
	*Source
	dir    *rundir.Dir
	info   *Info
	matrix *Matrix
	epochs *epochs
	file   *spill.File
	spread *spreading // nil: this process does all
	opts   Options
	unused func() // tells that the run is no longer read
}

// Info returns the run's account.
func (m *Merged) Info() *Info { return m.info }

// Matrix returns the run's communication matrices.
func (m *Merged) Matrix() *Matrix { return m.matrix }

// Close frees the temporary file.
func (m *Merged) Close() error {
	m.unused()
	err := m.file.Close()
	m.spread.close()
	return err
}

// LimitMemory makes Go's soft memory limit that of the options, for programs that do nothing but merge: without it, what the garbage
// collector has not found yet comes on top of Options.Memory. The limit is the whole program's.
func (o *Options) LimitMemory() {
	memory := o.Memory
	if memory <= 0 {
		memory = DefaultMemory
	}
	debug.SetMemoryLimit(max(memory, MinMemory))
}

// Open merges the captures of dir and writes nothing into it.
func Open(ctx context.Context, dir *rundir.Dir, o Options) (*Merged, error) {
	o.fill()
	manifest, err := dir.ReadManifest()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	unused := dir.Use()
	m, err := openIn(ctx, dir, manifest, o)
	if o.TempDir == "" && errors.Is(err, syscall.ENOSPC) { // the run's disk is full: what became of the run can be told all the same
		o.TempDir, o.Spread = os.TempDir(), nil
		m, err = openIn(ctx, dir, manifest, o)
	}
	if err != nil {
		unused()
		return nil, err
	}
	m.unused = unused
	return m, nil
}

func openIn(ctx context.Context, dir *rundir.Dir, manifest *rundir.Manifest, o Options) (*Merged, error) {
	sp, file := newSpreading(dir, &o)
	if sp == nil {
		var err error
		if file, err = tempFile(dir, o.TempDir); err != nil {
			return nil, err
		}
	}
	m, err := open(ctx, dir, manifest, file, sp, o)
	if err != nil {
		file.Close()
		sp.close()
		return nil, err
	}
	return m, nil
}

// tempFile makes the temporary file in the run directory, which has room for captures, or where that cannot be written, elsewhere.
func tempFile(dir *rundir.Dir, place string) (*spill.File, error) {
	if place != "" {
		return spill.Create(place)
	}
	f, err := spill.Create(dir.Path())
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, errReadOnly) {
		return spill.Create(os.TempDir())
	}
	return f, err
}

func open(ctx context.Context, dir *rundir.Dir, manifest *rundir.Manifest, file *spill.File, sp *spreading, o Options) (*Merged, error) {
	cat := catalogue.Default
	b := o.budget()
	in, err := takeInventory(ctx, dir, manifest, cat, &o)
	if err != nil {
		return nil, err
	}
	topologies, err := in.topologies(ctx, cat, &o)
	if err != nil {
		return nil, err
	}
	top := topology.Connect(topologies)

	halves := match.NewHalves(file, b.sort)
	blockOps := blockSize(len(in.processes))
	progress := newProgress(o.Progress, StagePairing, in.bytes())
	ps := &pass{in: in, top: top, cat: cat, file: file, halves: halves, blockOps: blockOps, outstanding: b.outstanding, progress: progress}
	if sp != nil {
		err = sp.pair(ctx, ps, b.workers)
	} else {
		err = ps.pairAll(ctx, b.workers)
	}
	if err != nil {
		return nil, err
	}
	progress.end()

	sorted, err := halves.Finish()
	if err != nil {
		return nil, err
	}
	results := match.NewResults(file, b.sort)
	known := match.Knowledge{
		Missing:   func(i uint32) string { return in.processes[i].missing() },
		Holes:     func(h *match.Half) bool { return in.processes[h.Process].holes(h) },
		Displaced: func(h *match.Half) bool { return in.processes[h.Process].displaced(h) },
	}
	if err := clocksOf(in, &o).place(ctx, sorted, file, b, dir.Path(), &known); err != nil {
		return nil, err
	}
	summary, err := match.Run(ctx, sorted, results, known, func(done, total int64) { o.Progress(StageMatching, done, total) })
	if err != nil {
		return nil, err
	}
	flows, err := results.Finish()
	if err != nil {
		return nil, err
	}
	if err := sp.ready(file, in, flows); err != nil {
		return nil, err
	}
	m := &Merged{dir: dir, file: file, spread: sp, opts: o}
	m.Source = newSource(dir.Name(), in, top, cat, flows, b.partitions)
	m.epochs = in.epochs(cat)
	m.matrix = newMatrix(dir.Name(), in, top, cat, m.epochs)
	m.info = newInfo(dir.Name(), in, cat, summary, m.Source.Run(), m.epochs)
	return m, nil
}
