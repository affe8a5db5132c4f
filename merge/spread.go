package merge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/sigmatrace/sigmatrace/merge/match"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/merge/spill"
	"github.com/sigmatrace/sigmatrace/merge/spread"
)

// Spread starts workers that call Work with the folder, and calls ended when there are none any more, or none could be started. It returns a
// function that waits until they have gone, which they do when the merge has ended.
type Spread func(folder string, ended func()) (wait func())

const (
	kindPair    = "pair"
	maxUnits    = 512     // of pairing: files that are open until the merge ends
	minUnit     = 4 << 20 // bytes of captures in one, as far as several processes share it
	spillName   = "spill"
	stateName   = "state"
	temporaryOf = "merge"
)

// job is what a coordinator tells all workers.
type job struct {
	Program []byte // the hash of its executable: bytes are the same only where the program is
	Digest  []byte // of what it sees of the run
	Memory  int64
	Alive   []bool // by process: only its own host can tell
	Units   []unit
}

// unit is a range of processes that are paired together.
type unit struct{ From, To int }

// spreading is the coordinator's side of a merge that other hosts help with. nil is none.
type spreading struct {
	folder  string
	discard func()
	file    *spill.File
	pool    *spread.Pool
	wait    func()
	spread  Spread
	memory  int64
	helped  func(map[string]int)
	log     hclog.Logger
	files   []*spill.File // that units have made
	names   []string
	at      []int // by process: the number of its file, 0 for file
}

// newSpreading makes what the merge and its workers share, or returns nil where this process is to do all, or has to.
func newSpreading(dir *rundir.Dir, o *Options) (*spreading, *spill.File) {
	if o.Spread == nil {
		return nil, nil
	}
	folder, discard, err := dir.Temporary(temporaryOf)
	if err != nil {
		o.Log.Warn("this process merges alone", "error", err)
		return nil, nil
	}
	file, err := spill.CreateNamed(filepath.Join(folder, spillName))
	if err != nil {
		o.Log.Warn("this process merges alone", "error", err)
		discard()
		return nil, nil
	}
	return &spreading{folder: folder, discard: discard, file: file, spread: o.Spread, memory: o.Memory, helped: o.Helped, log: o.Log, names: []string{spillName}}, file
}

// close sends the workers away and removes what was shared.
func (s *spreading) close() {
	if s == nil {
		return
	}
	if s.pool != nil {
		s.pool.Close()
		s.wait()
		s.helped(s.pool.Finished())
	}
	for _, f := range s.files {
		f.Close()
	}
	s.discard()
}

// units divides the processes, in order, into ranges of about the same number of bytes.
func (in *inventory) units() (list []unit) {
	each := max(in.bytes()/maxUnits, minUnit)
	for i, n := 0, int64(0); i < len(in.processes); i++ {
		if n == 0 {
			list = append(list, unit{i, i})
		}
		list[len(list)-1].To = i + 1
		if n += in.processes[i].bytes + 1; n >= each {
			n = 0
		}
	}
	return list
}

// digest is a hash of what is seen of a run: processes with their sizes, problems and clocks.
func (in *inventory) digest() []byte {
	h := sha256.New()
	for _, p := range in.processes {
		c := p.topology.Clock
		fmt.Fprintf(h, "%q %q %+v %+v %d %v %q %d %d %d %d %d\n", p.path, p.node, p.header, p.live, p.bytes, p.gap, p.problems, p.from, p.to, c.NS(p.from), c.NS(p.to), len(p.topology.Carry))
	}
	return h.Sum(nil)
}

// program is the hash of this executable.
func program() ([]byte, error) {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, fmt.Errorf("reading this program: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return nil, fmt.Errorf("reading this program: %w", err)
	}
	return h.Sum(nil), nil
}

// start gets workers.
func (s *spreading) start(in *inventory) error {
	self, err := program()
	if err != nil {
		return err
	}
	j := job{Program: self, Digest: in.digest(), Memory: s.memory, Units: in.units()}
	for _, p := range in.processes {
		j.Alive = append(j.Alive, p.alive)
	}
	pool, err := spread.Listen(s.folder, j, s.log)
	if err != nil {
		return err
	}
	if err := pool.Start(kindPair, len(j.Units), struct{}{}); err != nil {
		pool.Close()
		return err
	}
	s.pool, s.wait = pool, s.spread(s.folder, pool.Alone)
	return nil
}

// pair has workers pair the processes, and pairs here what they leave.
func (s *spreading) pair(ctx context.Context, ps *pass, workers int) error {
	if err := s.start(ps.in); err != nil {
		s.log.Warn("this process merges alone", "error", err)
		return ps.pairAll(ctx, workers)
	}
	s.at = make([]int, len(ps.in.processes))
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	for i, u := range ps.in.units() {
		var made pairedUnit
		path, err := s.pool.Wait(gctx, kindPair, i, &made)
		if err == nil && path != "" {
			err = s.take(ps, u, path, &made)
		}
		if err != nil {
			group.Wait()
			return err
		}
		if path != "" {
			continue
		}
		for _, p := range ps.in.processes[u.From:u.To] {
			group.Go(func() error { return ps.pair(gctx, p) })
		}
	}
	return group.Wait()
}

// take adds what a worker made of a unit.
func (s *spreading) take(ps *pass, u unit, path string, made *pairedUnit) error {
	if len(made.Processes) != u.To-u.From {
		return fmt.Errorf("a worker has paired %d processes of %d", len(made.Processes), u.To-u.From)
	}
	f, err := spill.OpenNamed(path)
	if err != nil {
		return err
	}
	s.files, s.names = append(s.files, f), append(s.names, filepath.Base(path))
	ps.halves.AddRun(f, made.Halves)
	for k := range made.Processes {
		p := ps.in.processes[u.From+k]
		s.at[u.From+k] = len(s.names) - 1
		made.Processes[k].give(p, f)
		ps.progress.add(p.bytes)
	}
	return nil
}

// state is what workers need to read the run's operations.
type state struct {
	Files     []string
	Processes []struct {
		File   int
		Paired pairedProcess
	}
	Flows spill.Run
}

// ready lets workers read the run.
func (s *spreading) ready(file *spill.File, in *inventory, flows *matched) error {
	if s == nil || s.pool == nil {
		return nil
	}
	x := state{Files: s.names}
	x.Processes = make([]struct {
		File   int
		Paired pairedProcess
	}, len(in.processes))
	for i, p := range in.processes {
		x.Processes[i].File, x.Processes[i].Paired = s.at[i], pairedOf(p, nil)
	}
	var err error
	if x.Flows, err = match.Keep(flows, file); err != nil {
		return err
	}
	text, err := spread.Encode(x)
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = rundir.WriteWhole(filepath.Join(s.folder, stateName), func(w io.Writer) error {
			_, err := w.Write(text)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("telling workers where the operations are: %w", err)
	}
	return nil
}

// matched are the results of matching.
type matched = spill.Sorted[match.Result, *match.Result]

// sameAs tells whether a worker sees what its coordinator does.
func (j *job) sameAs(in *inventory) error {
	self, err := program()
	switch {
	case err != nil:
		return err
	case !bytes.Equal(self, j.Program):
		return fmt.Errorf("%w: it has another version of this program", spread.ErrMismatch)
	case !bytes.Equal(in.digest(), j.Digest):
		return spread.ErrMismatch
	}
	return nil
}
