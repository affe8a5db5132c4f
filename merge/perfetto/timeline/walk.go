package timeline

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"sync"

	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// Sample is a counter's value from a time on.
type Sample struct {
	Track int
	Time  int64
	Value uint64
}

// Writer encodes a partition. Slice writes the slice of an operation with its instants and flows, together with the samples taken at
// its post and at its completion; what it is given is valid only during the call. Sample writes a sample of its own.
type Writer interface {
	Slice(op *ops.Op, track int, post, done []Sample) error
	Sample(s Sample) error
}

// Stats says what a trace holds. Slices and Instants count together as slices in a trace processor. Slices include those of the
// overview.
type Stats struct {
	Packets              int64 // of formats that have packets
	Slices, Instants     int64
	FlowBegins, FlowEnds int64
	FlowsCut             int64 // ends of messages whose other end is of another time, rank or piece
	Counters             int64 // samples
	CountersLeftOut      int64 // samples between those kept
	Tracks               int   // lanes and counters that hold anything
	Failed, Unfinished   int64
	Reversed             int64            // operations whose completion was stamped before their post; shown with no length
	Written              map[string]int64 // operations shown, by layer
	LeftOut              map[string]int64 // operations left out for the limit, by layer
	Filtered             int64            // operations of other layers, times and ranks than the options name
	Rule                 string           // what was left out, in words; "" where nothing was
	Bytes                int64            // size of the output

	Used TrackSet            // tracks that hold anything
	half map[uint64]struct{} // messages of which one end was seen; nil where none can be cut
	mu   sync.Mutex          // of Add
}

// NewStats makes empty statistics for the tracks of p.
func (p *Plan) NewStats() *Stats {
	s := &Stats{Written: map[string]int64{}, LeftOut: map[string]int64{}, Rule: p.Rule(), Used: p.NewTrackSet()}
	if o := &p.Options; o.Piece != nil || o.Ranks != nil || o.From > p.Run.First || o.To <= p.Run.Last {
		s.half = map[uint64]struct{}{}
	}
	return s
}

// see notes an end of a message: a second one of the same flow makes it whole.
func (s *Stats) see(flow uint64) {
	if _, ok := s.half[flow]; ok {
		delete(s.half, flow)
	} else {
		s.half[flow] = struct{}{}
	}
}

// Add adds what a partition holds. It may be called concurrently.
func (s *Stats) Add(t *Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Packets += t.Packets
	s.Slices += t.Slices
	s.Instants += t.Instants
	s.FlowBegins += t.FlowBegins
	s.FlowEnds += t.FlowEnds
	s.Counters += t.Counters
	s.CountersLeftOut += t.CountersLeftOut
	s.Failed += t.Failed
	s.Unfinished += t.Unfinished
	s.Reversed += t.Reversed
	s.Filtered += t.Filtered
	for l, n := range t.Written {
		s.Written[l] += n
	}
	for l, n := range t.LeftOut {
		s.LeftOut[l] += n
	}
	for flow := range t.half {
		s.see(flow)
	}
	s.FlowsCut = int64(len(s.half))
	for i, w := range t.Used {
		s.Tracks += bits.OnesCount64(w &^ s.Used[i])
		s.Used[i] |= w
	}
}

// TrackSet is a set of tracks.
type TrackSet []uint64

// NewTrackSet makes an empty set for the tracks of p.
func (p *Plan) NewTrackSet() TrackSet { return make(TrackSet, (p.tracks+63)/64) }

// Add adds a track and says whether it is new in the set.
func (u TrackSet) Add(i int) bool {
	isNew := u[i/64]&(1<<(i%64)) == 0
	u[i/64] |= 1 << (i % 64)
	return isNew
}

func (u TrackSet) merge(v TrackSet) {
	for i := range u {
		u[i] |= v[i]
	}
}

func (u TrackSet) count() (n int) {
	for _, w := range u {
		n += bits.OnesCount64(w)
	}
	return n
}

// Shows says whether an operation is of the layers, times and ranks that the options name. It fails where the operation is not one of the run.
func (p *Plan) Shows(op *ops.Op) (bool, error) {
	if err := p.check(op); err != nil {
		return false, err
	}
	return p.shown(op), nil
}

func (p *Plan) shown(op *ops.Op) bool {
	if piece := p.Options.Piece; piece != nil && (op.Post < piece.From || op.Post >= piece.To) {
		return false
	}
	return p.ranks[op.Process] && p.layers[p.text.events[op.Event].event.Layer] && op.Post < p.Options.To && max(op.Done, op.Post) >= p.Options.From
}

// Walk reads partition i and gives w what the trace shows of it.
func (p *Plan) Walk(ctx context.Context, src ops.Source, i int, w Writer) (*Stats, error) {
	s := p.NewStats()
	v := &walker{p: p, w: w, s: s, thin: map[bin]*extremes{}}
	err := src.Partition(ctx, i, func(block []ops.Op) error {
		for k := range block {
			if err := v.op(&block[k]); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
	if err == nil {
		err = v.flush()
	}
	if err != nil {
		return nil, fmt.Errorf("writing partition %d: %w", i, err)
	}
	return s, nil
}

type walker struct {
	p          *Plan
	w          Writer
	s          *Stats
	post, done []Sample
	thin       map[bin]*extremes
	counters   int64 // samples seen by thinning: breaks ties of time
}

func (v *walker) op(op *ops.Op) error {
	p, s := v.p, v.s
	shown, err := p.Shows(op)
	if err != nil {
		return err
	}
	if !shown {
		s.Filtered++
		return nil
	}
	v.samples(op)
	layer := p.text.events[op.Event].event.Layer
	keep := p.sel.keep(op)
	if p.sel.Active {
		for _, x := range v.post {
			v.thinned(x)
		}
		for _, x := range v.done {
			v.thinned(x)
		}
		v.post, v.done = v.post[:0], v.done[:0]
	} else {
		for _, x := range v.post {
			s.Used.Add(x.Track)
		}
		for _, x := range v.done {
			s.Used.Add(x.Track)
		}
		s.Counters += int64(len(v.post) + len(v.done))
	}
	if !keep {
		s.LeftOut[layer]++
		return nil
	}
	s.Written[layer]++
	s.Slices++
	if op.Flags&ops.Failed != 0 {
		s.Failed++
	}
	if op.Flags&ops.Unfinished != 0 {
		s.Unfinished++
	}
	if op.Done < op.Post {
		s.Reversed++
	}
	begin, end := FlowEnds(op)
	if begin {
		s.Instants++
		s.FlowBegins++
	}
	if end {
		s.Instants++
		s.FlowEnds++
	}
	if begin != end && s.half != nil {
		s.see(op.Flow)
	}
	track := p.lane(op)
	s.Used.Add(track)
	if end {
		s.Used.Add(p.Arrives(op, track))
	}
	return v.w.Slice(op, track, v.post, v.done)
}

// samples puts what an operation says about the counters of its endpoint into v.post and v.done. Polls count nothing, nor does what only synchronizes;
// calls, and what GPUs ring for, have no completion.
func (v *walker) samples(op *ops.Op) {
	v.post, v.done = v.post[:0], v.done[:0]
	if op.Flags&ops.PollRecord != 0 || op.Flags&ops.Unseen != 0 && !initiates(op) {
		return
	}
	o := &v.p.Options
	after := op.Post >= o.From
	if t, ok := v.p.counter(op.Endpoint, Outstanding); ok && op.Flags&(ops.CallRecord|ops.Unseen) == 0 {
		if after {
			v.post = append(v.post, Sample{t, op.Post, uint64(op.Outstanding)})
		}
		if done := max(op.Done, op.Post); done < o.To && op.Flags&ops.Unfinished == 0 {
			v.done = append(v.done, Sample{t, done, uint64(op.After)})
		}
	}
	if t, ok := v.p.counter(op.Endpoint, totalOf[op.Role]); ok && after && op.Bytes > 0 {
		v.post = append(v.post, Sample{t, op.Post, op.Total})
	}
}

// bin is a stretch of time of a counter, in which thinning keeps the first, lowest, highest and last value: what a drawing of that
// width shows is the same.
type bin struct {
	track  int
	number int64
}

type numbered struct {
	Sample
	n int64
}

type extremes struct {
	first, lowest, highest, last numbered
	n                            int64
}

func (a numbered) before(b numbered) bool { return a.Time < b.Time || a.Time == b.Time && a.n < b.n }

func (v *walker) thinned(x Sample) {
	v.counters++
	y := numbered{x, v.counters}
	k := bin{x.Track, (x.Time - v.p.Run.First) / v.p.sel.BinWidth}
	e := v.thin[k]
	if e == nil {
		v.thin[k] = &extremes{y, y, y, y, 1}
		return
	}
	e.n++
	if y.before(e.first) {
		e.first = y
	}
	if e.last.before(y) {
		e.last = y
	}
	if x.Value < e.lowest.Value {
		e.lowest = y
	}
	if x.Value > e.highest.Value {
		e.highest = y
	}
}

func (v *walker) flush() error {
	keys := slices.SortedFunc(maps.Keys(v.thin), func(a, b bin) int {
		return cmp.Or(cmp.Compare(a.track, b.track), cmp.Compare(a.number, b.number))
	})
	for _, k := range keys {
		e := v.thin[k]
		kept := []numbered{e.first, e.lowest, e.highest, e.last}
		slices.SortFunc(kept, func(a, b numbered) int { return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(a.n, b.n)) })
		kept = slices.CompactFunc(kept, func(a, b numbered) bool { return a.n == b.n })
		for _, x := range kept {
			if err := v.w.Sample(x.Sample); err != nil {
				return err
			}
		}
		v.s.Used.Add(k.track)
		v.s.Counters += int64(len(kept))
		v.s.CountersLeftOut += e.n - int64(len(kept))
	}
	return nil
}
