package merge

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/chromejson"
	"github.com/sigmatrace/sigmatrace/merge/match"
	"github.com/sigmatrace/sigmatrace/merge/parquet"
	"github.com/sigmatrace/sigmatrace/merge/perfetto"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/merge/spill"
	"github.com/sigmatrace/sigmatrace/merge/spread"
	"github.com/sigmatrace/sigmatrace/merge/topology"
)

// worker helps another process's merge.
type worker struct {
	opts   Options
	budget budget
	job    job
	dir    *rundir.Dir
	folder string
	cat    *catalogue.Catalogue
	in     *inventory
	top    *topology.Map

	mu    sync.Mutex
	src   *Source                   // nil until it was needed
	plans map[string]*timeline.Plan // by kind
}

// Work helps the merge of dir that has made folder, until that ends. Its memory and what it writes are the coordinator's choice.
func Work(ctx context.Context, dir *rundir.Dir, folder string, o Options) error {
	o.fill()
	w := &worker{dir: dir, folder: folder, cat: catalogue.Default, plans: map[string]*timeline.Plan{}}
	link, err := spread.Find(folder, &w.job)
	if err != nil {
		return err
	}
	o.Memory = w.job.Memory
	o.LimitMemory()
	w.opts, w.budget = o, o.budget()
	manifest, err := dir.ReadManifest()
	if err != nil {
		manifest = nil // the coordinator has told of it
	}
	if w.in, err = takeInventory(ctx, dir, manifest, w.cat, &o); err != nil {
		return err
	}
	if len(w.in.processes) != len(w.job.Alive) {
		return spread.ErrMismatch
	}
	for i, p := range w.in.processes {
		p.alive = w.job.Alive[i]
	}
	topologies, err := w.in.topologies(ctx, w.cat, &o)
	if err != nil {
		return err
	}
	w.top = topology.Connect(topologies)
	if err := w.job.sameAs(w.in); err != nil {
		return err
	}
	return link.Work(ctx, w.connections(), w.do)
}

// connections are what is done at the same time, as far as there is memory.
func (w *worker) connections() (list [][]string) {
	parquets := max(1, int(w.opts.Memory/2/parquet.WorkerBytes))
	for i := range max(1, min(w.opts.Workers, w.budget.partitions)) {
		kinds := []string{timeline.KindCensus, perfetto.KindPart, chromejson.KindPart}
		if i < w.budget.workers {
			kinds = append(kinds, kindPair)
		}
		if i < parquets {
			kinds = append(kinds, parquet.KindPart)
		}
		list = append(list, kinds)
	}
	return list
}

func (w *worker) do(ctx context.Context, u *spread.Unit, path string) (any, error) {
	if u.Kind == kindPair {
		return w.pair(ctx, u.Part, path)
	}
	src, plan, err := w.reading(u)
	if err != nil {
		return nil, err
	}
	switch u.Kind {
	case timeline.KindCensus:
		return plan.CensusPart(ctx, src, u.Part)
	case perfetto.KindPart:
		var made *perfetto.Made
		err := writeWhole(path, func(to io.Writer) (err error) {
			made, err = perfetto.Part(ctx, to, src, plan, u.Part)
			return err
		})
		return made, err
	case chromejson.KindPart:
		var stats *chromejson.Stats
		err := writeWhole(path, func(to io.Writer) (err error) {
			stats, err = chromejson.Part(ctx, to, src, plan, u.Part)
			return err
		})
		return stats, err
	case parquet.KindPart:
		return parquet.Part(ctx, path, src, plan, u.Part)
	}
	return nil, fmt.Errorf("work of kind %q is not known", u.Kind)
}

// writeWhole makes a file that is on disk when this returns.
func writeWhole(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := write(f); err != nil {
		return err
	}
	return f.Sync()
}

// pair pairs the processes of a unit. What is known of them here stays as it was: the unit may be done again.
func (w *worker) pair(ctx context.Context, part int, path string) (*pairedUnit, error) {
	u := w.job.Units[part]
	file, err := spill.CreateNamed(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	ps := &pass{in: w.in, top: w.top, cat: w.cat, file: file, halves: match.NewHalves(file, w.budget.sort/int64(w.budget.workers)), blockOps: blockSize(len(w.in.processes)),
		outstanding: w.budget.outstanding, progress: newProgress(w.opts.Progress, StagePairing, 0)}
	made := &pairedUnit{}
	for _, known := range w.in.processes[u.From:u.To] {
		p := *known
		p.problems = slices.Clone(known.problems)
		if err := ps.pair(ctx, &p); err != nil {
			return nil, err
		}
		made.Processes = append(made.Processes, pairedOf(&p, p.problems[len(known.problems):]))
	}
	sorted, err := ps.halves.Finish()
	if err != nil {
		return nil, err
	}
	if made.Halves, err = match.KeepHalves(sorted, file); err != nil {
		return nil, err
	}
	return made, file.Sync()
}

// reading returns the run's operations and the plan of an export.
func (w *worker) reading(u *spread.Unit) (*Source, *timeline.Plan, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.src == nil {
		if err := w.open(); err != nil {
			return nil, nil, err
		}
	}
	plan := w.plans[u.Kind]
	if plan == nil {
		var err error
		if plan, err = timeline.NewPlan(w.src.Run(), timeline.Options{}); err != nil {
			return nil, nil, err
		}
		if u.Kind == perfetto.KindPart || u.Kind == chromejson.KindPart {
			var s timeline.Selection
			if err := spread.Decode(u.About, &s); err != nil {
				return nil, nil, err
			}
			plan.Choose(s)
		}
		w.plans[u.Kind] = plan
	}
	return w.src, plan, nil
}

// open reads where the run's operations are. The files stay open as long as this process lives.
func (w *worker) open() error {
	text, err := os.ReadFile(filepath.Join(w.folder, stateName))
	if err != nil {
		return fmt.Errorf("reading where the operations are: %w", err)
	}
	var s state
	if err := spread.Decode(text, &s); err != nil {
		return err
	}
	files := make([]*spill.File, len(s.Files))
	for i, name := range s.Files {
		if files[i], err = spill.OpenNamed(filepath.Join(w.folder, name)); err != nil {
			return err
		}
	}
	for i, p := range w.in.processes {
		s.Processes[i].Paired.give(p, files[s.Processes[i].File])
	}
	w.src = newSource(w.dir.Name(), w.in, w.top, w.cat, match.ResultsAt(files[0], s.Flows), w.budget.partitions)
	return nil
}
