package timeline

import (
	"context"
	"fmt"
	"math/bits"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// When a run has more slices than a trace may hold, what stays is: every failed and every unfinished operation; the longest
// operations, in three quarters of the room left by those; and in the last quarter an even sample of the shorter ones, so that every
// part of the time range still shows its usual traffic. The sample goes by message, so that both ends of a sampled flow stay.
// Lengths and sample are cut at bucket borders known from a first pass over the run, so the choice does not depend on the order in
// which partitions are read, and is never over the limit.

// Buckets are of one eighth of a power of two.
const (
	durationBuckets = 62 * 8
	hashBuckets     = 30 * 8
	longestShare    = 0.75
)

// bucket is v on a logarithmic scale of 8 steps per power of two.
func bucket(v uint64) int {
	if v < 8 {
		return int(v)
	}
	e := bits.Len64(v) - 4 // v>>e is 8..15
	return e*8 + int(v>>e)
}

// lowest is the lowest value of a bucket.
func lowest(b int) uint64 {
	if b < 16 {
		return uint64(b)
	}
	e := b/8 - 1
	return uint64(b-e*8) << e
}

// Census counts the rows of operations by what the choice depends on.
type Census struct {
	Rows   int64
	Must   [hashBuckets]int64                  // failed and unfinished ones
	Others [durationBuckets][hashBuckets]int64 // by duration and hash
	Used   TrackSet
}

// Selection is what stays of a run that has more than a trace may hold.
type Selection struct {
	Active      bool
	MustCut     int // hash buckets below this one stay, of failed and unfinished operations
	MinDuration int // duration buckets from this one on stay
	SampleCut   int // hash buckets below this one stay, whatever the duration
	BinWidth    int64
	Sampled     float64 // share of the shorter operations that stay
	MustAll     bool
}

func mix(x uint64) uint64 {
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	return x ^ x>>32
}

// place gives the buckets of an operation.
func place(op *ops.Op) (must bool, duration, hash int) {
	key := op.Flow
	if key == 0 {
		key = mix(uint64(op.Endpoint)<<8|uint64(op.Role)) ^ op.Ordinal
		if op.Flags&ops.PollRecord != 0 {
			key ^= uint64(op.Post)
		}
	}
	must = op.Flags&(ops.Failed|ops.Unfinished) != 0
	return must, min(bucket(uint64(max(op.Done-op.Post, 0))), durationBuckets-1), bucket(mix(key) >> 32)
}

func (s *Selection) keep(op *ops.Op) bool {
	if !s.Active {
		return true
	}
	must, duration, hash := place(op)
	if must {
		return hash < s.MustCut
	}
	return duration >= s.MinDuration || hash < s.SampleCut
}

// maxRows is the most that rows may be.
const maxRows = 3

// rows is the number of slices and instants that show an operation.
func rows(op *ops.Op) int64 {
	begin, end := FlowEnds(op)
	n := int64(1)
	if begin {
		n++
	}
	if end {
		n++
	}
	return n
}

// FlowEnds says which ends of a flow an operation holds: its begin at the post, its end at the completion; a kernel has its end where it begins.
func FlowEnds(op *ops.Op) (begin, end bool) {
	switch {
	case op.Flow == 0:
		return false, false
	case op.Role == ops.Local: // a launch, and a kernel that it led to
		return op.Event != catalogue.EventGpuKernel, op.Event == catalogue.EventGpuKernel
	}
	return op.Role == ops.Initiator || op.Role == ops.OneSided, op.Role == ops.Target || op.Role == ops.OneSided
}

// Arrival says when a flow arrives at an operation, and what the instant there is called.
func Arrival(op *ops.Op) (int64, Sym) {
	switch op.Role {
	case ops.Target:
		return max(op.Done, op.Post), SymReceived
	case ops.Local:
		return op.Post, SymStarted
	}
	if op.Flags&ops.Unseen != 0 {
		return op.Post, SymAddressed
	}
	return max(op.Done, op.Post), SymComplete
}

// overviewRows is what the plan's own overview takes: one slice for the run and, where something is left out, one for that.
const overviewRows = 2

// Select decides what is left out. It reads the run once where the number of its operations says that it may be too much, and must
// be called before Walk.
func (p *Plan) Select(ctx context.Context, src ops.Source) error {
	limit := p.Options.MaxSlices
	if limit < 0 || p.Run.Operations*maxRows+1 <= limit {
		return nil
	}
	if p.Options.Elsewhere != nil {
		if err := p.Options.Elsewhere.Start(KindCensus, censusParts(p.Run.Partitions), struct{}{}); err != nil {
			return err
		}
	}
	total := &Census{Used: p.NewTrackSet()}
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(p.Options.Workers)
	for i := range censusParts(p.Run.Partitions) {
		g.Go(func() error {
			c, err := p.census(ctx, src, i)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			total.add(c)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if total.Rows+1 > limit {
		p.sel = total.choose(max(limit-overviewRows, 0))
		from, to := p.Range()
		bins := max(min(limit/(4*int64(max(total.Used.count(), 1))), 1<<20), 16)
		p.sel.BinWidth = max((to-from)/bins, 1)
	}
	return nil
}

// census counts part i, here or elsewhere.
func (p *Plan) census(ctx context.Context, src ops.Source, i int) (*Census, error) {
	if p.Options.Elsewhere != nil {
		c := &Census{}
		path, err := p.Options.Elsewhere.Wait(ctx, KindCensus, i, c)
		if err != nil || path != "" {
			return c, err
		}
	}
	return p.CensusPart(ctx, src, i)
}

func (p *Plan) countPartition(ctx context.Context, src ops.Source, i int, c *Census) error {
	err := src.Partition(ctx, i, func(block []ops.Op) error {
		for k := range block {
			if err := p.count(c, &block[k]); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
	if err != nil {
		return fmt.Errorf("counting the operations of partition %d: %w", i, err)
	}
	return nil
}

func (p *Plan) count(c *Census, op *ops.Op) error {
	if shown, err := p.Shows(op); !shown {
		return err
	}
	for _, k := range []CounterKind{Outstanding, totalOf[op.Role]} {
		if t, ok := p.counter(op.Endpoint, k); ok {
			c.Used.Add(t)
		}
	}
	n := rows(op)
	c.Rows += n
	must, duration, hash := place(op)
	if must {
		c.Must[hash] += n
	} else {
		c.Others[duration][hash] += n
	}
	return nil
}

func (c *Census) add(d *Census) {
	c.Rows += d.Rows
	c.Used.merge(d.Used)
	for h := range c.Must {
		c.Must[h] += d.Must[h]
	}
	for i := range c.Others {
		for h := range c.Others[i] {
			c.Others[i][h] += d.Others[i][h]
		}
	}
}

// fill takes buckets in order while they fit, and returns how many it took and what is left of the room.
func fill(room int64, n int, rows func(i int) int64) (int, int64) {
	for i := range n {
		if rows(i) > room {
			return i, room
		}
		room -= rows(i)
	}
	return n, room
}

func (c *Census) choose(room int64) Selection {
	s := Selection{Active: true}
	s.MustCut, room = fill(room, hashBuckets, func(h int) int64 { return c.Must[h] })
	s.MustAll = s.MustCut == hashBuckets
	if !s.MustAll {
		s.MinDuration = durationBuckets
		return s
	}
	byDuration := func(d int) (n int64) {
		for _, v := range c.Others[d] {
			n += v
		}
		return n
	}
	longest := int64(float64(room) * longestShare)
	taken, left := fill(longest, durationBuckets, func(i int) int64 { return byDuration(durationBuckets - 1 - i) })
	s.MinDuration = durationBuckets - taken
	room -= longest - left
	byHash := func(h int) (n int64) {
		for d := range s.MinDuration {
			n += c.Others[d][h]
		}
		return n
	}
	s.SampleCut, left = fill(room, hashBuckets, byHash)
	var shorter int64
	for h := range hashBuckets {
		shorter += byHash(h)
	}
	if shorter > 0 {
		s.Sampled = float64(room-left) / float64(shorter)
	}
	return s
}

// Rule says in words what was left out, or "" where nothing was.
func (p *Plan) Rule() string {
	s := &p.sel
	switch {
	case !s.Active:
		return ""
	case !s.MustAll:
		return "kept: an even sample of the failed and unfinished operations, nothing else"
	case s.MinDuration == durationBuckets:
		return fmt.Sprintf("kept: every failed or unfinished operation, and an even sample of %.2g %% of the others; counters thinned to first, lowest, highest and last value per %d ns",
			100*s.Sampled, s.BinWidth)
	default:
		return fmt.Sprintf("kept: every failed or unfinished operation, those of %d ns or longer, and an even sample of %.2g %% of the shorter ones; counters thinned to first, lowest, highest and last value per %d ns",
			lowest(s.MinDuration), 100*s.Sampled, s.BinWidth)
	}
}
