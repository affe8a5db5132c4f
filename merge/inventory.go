package merge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/clock"
	"github.com/sigmatrace/sigmatrace/merge/match"
	"github.com/sigmatrace/sigmatrace/merge/pack"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/merge/topology"
)

// inventory is what was found in a run directory.
type inventory struct {
	processes []*process // in the run's order: node, pid, start time, image
	alive     []alive
	damaged   []Damage // files of which nothing can be used
	copies    []Damage // captures of processes that have another one
	clocks    map[string]*clock.Clock
	told      told // of the run's clock
	manifest  *rundir.Manifest
	tasks     *rundir.Tasks // how the nodes of a step saw its tasks end
}

// alive is a proof of life with the node's folder that it was found in.
type alive struct {
	capture.Alive
	node string
}

// process is one capture.
type process struct {
	path     string
	node     string
	header   capture.Header
	live     capture.Live
	size     int64
	bytes    int64 // committed in event chunks, headers included
	survey   *topology.Survey
	topology *topology.Process
	problems []error    // what of the file cannot be read
	gap      bool       // chunks are missing
	alive    bool       // the process was running when its capture was opened
	from, to uint64     // ticks known, 0 where none
	place    *clock.Map // from the times of its node's clock to the run's, once the merge knows it

	paired
}

// exact says whether the tables hold every call. The written back end brings them up to date at an orderly end only.
func (p *process) exact() bool {
	return !p.behind() && p.live.LostTables == 0 && len(p.problems) == 0 && (p.header.BackEnd != capture.Written || p.live.EndMark != capture.EndNone)
}

// behind says whether the end of the capture was left in memory. That of a process which goes on is where its next records are.
func (p *process) behind() bool { return p.live.Behind && !p.alive }

// missing tells why records of the process are missing, "" where none are.
func (p *process) missing() string {
	switch {
	case p.behind() || p.gap || len(p.problems) > 0 || p.live.LostEvents > 0:
		return match.LostRecords
	case p.windowed():
		return match.LeftOut
	}
	return ""
}

// holes tells whether records of a half's object may be missing between those that are there. For windows its counters tell. What is
// numbered by its order, and posted before the first hole, has its number all the same, unless threads share the object: one may have
// gone on recording for a moment when another did no more.
func (p *process) holes(h *match.Half) bool {
	switch p.missing() {
	case "":
		return false
	case match.LeftOut:
		return (p.counts.Holes[h.Object] && h.Rule != match.Rank) || (h.Rule == match.Rank && p.shared[h.Object])
	}
	return true
}

func (p *process) problem(err error) {
	if err != nil {
		p.problems = append(p.problems, flatten(err)...)
	}
}

// flatten takes joined errors apart.
func flatten(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range j.Unwrap() {
			all = append(all, flatten(e)...)
		}
		return all
	}
	return []error{err}
}

// takeInventory finds the captures, reads their headers and surveys, and fits the clocks.
func takeInventory(ctx context.Context, dir *rundir.Dir, manifest *rundir.Manifest, cat *catalogue.Catalogue, o *Options) (*inventory, error) {
	tasks, err := dir.ReadTasks()
	if err != nil {
		return nil, err
	}
	in := &inventory{manifest: manifest, tasks: tasks, clocks: map[string]*clock.Clock{}}
	nodes, err := capture.Find(dir.Capture())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the run has no captures: %w", err)
	}
	for _, e := range flatten(err) {
		if e != nil {
			in.damaged = append(in.damaged, damageOf(dir.Capture(), e))
		}
	}
	packs, err := pack.Find(dir.Capture())
	if err != nil {
		in.damaged = append(in.damaged, damageOf(dir.Capture(), err))
	}
	for _, path := range packs {
		in.damaged = append(in.damaged, Damage{File: path, Reason: "captures of a node that could not be unpacked"})
	}
	var paths []string
	for _, n := range nodes {
		paths = append(paths, n.Captures...)
		if n.Alive == "" {
			continue
		}
		records, err := capture.ReadAlive(n.Alive)
		if err != nil {
			for _, e := range flatten(err) {
				in.damaged = append(in.damaged, damageOf(n.Alive, e))
			}
		}
		for _, a := range records {
			in.alive = append(in.alive, alive{a, n.Name})
		}
	}
	found := make([]*process, len(paths))
	failed := make([]error, len(paths))
	progress := newProgress(o.Progress, StageInventory, 2*int64(len(paths)))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(o.Workers)
	for i, path := range paths {
		group.Go(func() error {
			found[i], failed[i] = readProcess(path, cat)
			progress.add(1)
			return ctx.Err()
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for i, p := range found {
		if failed[i] != nil {
			o.Log.Warn("capture cannot be read", "file", paths[i], "error", failed[i])
			in.damaged = append(in.damaged, damageOf(paths[i], failed[i]))
			continue
		}
		in.processes = append(in.processes, p)
	}
	slices.SortFunc(in.processes, func(a, b *process) int {
		x, y := &a.header, &b.header
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(x.Pid, y.Pid), cmp.Compare(x.PidNamespace, y.PidNamespace), cmp.Compare(x.StartTime, y.StartTime),
			cmp.Compare(x.Image, y.Image),
			cmp.Compare(b.bytes, a.bytes), cmp.Compare(len(a.problems), len(b.problems)), cmp.Compare(b.size, a.size), cmp.Compare(a.path, b.path))
	})
	in.leaveOutCopies()
	in.fitClocks()
	return in, nil
}

// leaveOutCopies keeps one capture of each process, that with the most in it: a copy beside it would be counted again.
func (in *inventory) leaveOutCopies() {
	kept := in.processes[:0]
	for _, p := range in.processes {
		if n := len(kept); n > 0 && kept[n-1].node == p.node && kept[n-1].identity() == p.identity() {
			in.copies = append(in.copies, Damage{File: p.path, Reason: "a second capture of the same process, left out: the first is " + kept[n-1].path})
			continue
		}
		kept = append(kept, p)
	}
	in.processes = kept
}

// readProcess reads a capture's header, block list and survey.
func readProcess(path string, cat *catalogue.Catalogue) (*process, error) {
	f, err := capture.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p := &process{path: path, header: *f.Header(), live: f.Live(), size: f.Size()}
	p.node = p.header.Node()
	p.alive = running(&p.header)
	for _, e := range f.Problems() {
		p.problem(e)
	}
	// The mapped back end reserves a block before it gives it out; the written one has them all in the file at an orderly end.
	if need := headerBytes + int64(p.live.Blocks)*int64(p.header.ChunkBytes); p.size < need && !p.live.Behind && (p.header.BackEnd == capture.Mapped || p.live.EndMark != capture.EndNone) {
		p.problem(&capture.Error{Path: path, Offset: p.size, Kind: capture.ErrTruncated, Detail: fmt.Sprintf("the file ends here, %d bytes before its last block does", need-p.size)})
	}
	next := map[uint32]uint32{}
	for _, ch := range f.Chunks() {
		if ch.Sequence != next[ch.Thread] {
			p.gap = true
		}
		next[ch.Thread] = ch.Sequence + 1
		if ch.Committed > 0 {
			p.bytes += int64(ch.Committed) + chunkHeader
		}
		if ch.Domain == 0 && ch.First > 0 {
			p.from, p.to = minTick(p.from, ch.First), max(p.to, ch.First, ch.Last)
		}
	}
	var bad error
	p.survey, bad = topology.ReadSurvey(f, cat)
	p.problem(bad)
	for _, pair := range p.survey.Pairs {
		p.from, p.to = minTick(p.from, pair.Before), max(p.to, pair.After)
	}
	return p, nil
}

// Sizes of the headers of a file and of a chunk.
const (
	headerBytes = 4096
	chunkHeader = 64
)

func minTick(a, b uint64) uint64 {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// fitClocks makes one clock for each node of all its processes' pairs: the processes of a node read the same counter.
func (in *inventory) fitClocks() {
	for first := 0; first < len(in.processes); {
		end := first
		var pairs []clock.Pair
		hz, invariant := uint64(0), true
		from, at := uint64(0), int64(math.MaxInt64)
		for ; end < len(in.processes) && in.processes[end].node == in.processes[first].node; end++ {
			p := in.processes[end]
			pairs = append(pairs, p.survey.Pairs...)
			hz = max(hz, p.header.ClockHz)
			invariant = invariant && p.header.Invariant()
			if p.from > 0 && int64(p.header.RealtimeNS) < at {
				from, at = p.from, int64(p.header.RealtimeNS)
			}
		}
		if at == math.MaxInt64 {
			at = 0
		}
		in.clocks[in.processes[first].node] = clock.Fit(topology.Thin(pairs), hz, invariant, from, at)
		first = end
	}
}

// topologies reads the objects of all processes.
func (in *inventory) topologies(ctx context.Context, cat *catalogue.Catalogue, o *Options) ([]*topology.Process, error) {
	surveys := make([]*topology.Survey, len(in.processes))
	for i, p := range in.processes {
		surveys[i] = p.survey
	}
	addresses := topology.NewAddresses(surveys)
	all := make([]*topology.Process, len(in.processes))
	progress := newProgress(o.Progress, StageInventory, int64(len(all)))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(o.Workers)
	for i, p := range in.processes {
		group.Go(func() error {
			f, err := capture.Open(p.path)
			if err != nil {
				return err
			}
			defer f.Close()
			t, err := topology.Load(uint32(i), f, cat, in.clocks[p.node], addresses)
			if err != nil && len(p.problems) == 0 {
				p.problem(err) // else the survey has told it
			}
			t.Node, t.Identity = p.node, p.identity()
			all[i], p.topology = t, t
			p.survey.Forget()
			progress.add(1)
			return ctx.Err()
		})
	}
	err := group.Wait()
	progress.end()
	return all, err
}

// identity is a number that names the process in every merge: what identifies it, hashed.
func (p *process) identity() uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %x %d %d %d %d", p.header.Hostname, p.header.BootID, p.header.Pid, p.header.PidNamespace, p.header.StartTime, p.header.Image)
	return h.Sum64()
}

func (in *inventory) bytes() (n int64) {
	for _, p := range in.processes {
		n += p.bytes
	}
	return n
}

// Damage is a file, or a part of one, that could not be read.
type Damage struct {
	File   string `json:"file"`
	Offset *int64 `json:"offset"`
	Reason string `json:"reason"`
}

func damageOf(path string, err error) Damage {
	d := Damage{File: path, Reason: err.Error()}
	var seen *seen
	if errors.As(err, &seen) {
		return seen.damage
	}
	var bad *capture.Error
	if errors.As(err, &bad) {
		d.File, d.Offset = bad.Path, &bad.Offset
		d.Reason = fmt.Sprintf("%v: %s", bad.Kind, bad.Detail)
	}
	return d
}

// fromName reads the pid and start time that a capture's name tells of a file that cannot be read.
func fromName(path string) (pid uint32, start uint64, ok bool) {
	parts := strings.Split(strings.TrimSuffix(filepath.Base(path), capture.Extension), ".")
	if len(parts) != 3 {
		return 0, 0, false
	}
	p, err1 := strconv.ParseUint(parts[0], 10, 32)
	s, err2 := strconv.ParseUint(parts[1], 10, 64)
	return uint32(p), s, err1 == nil && err2 == nil
}
