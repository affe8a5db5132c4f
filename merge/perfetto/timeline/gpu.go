package timeline

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// doorbellLayer is the layer of what GPUs ring for.
const doorbellLayer = "doorbell"

// doorbellNames are the tracks for the doorbells of a queue: those that move data, and those that only synchronize.
var doorbellNames = [...]string{"doorbells", "control doorbells"}

const doorbellTracks = len(doorbellNames)

// GPU is a GPU as it is shown: a group of its own, beside the processes.
type GPU struct {
	Name, Description string
	Pid               int32 // for formats where everything needs one
}

// gpuNames are the tracks of a GPU: where the flows of elements arrive that go to it, and the counter of what its queues were rung for.
var gpuNames = [...]string{"addressed", counterNames[Bandwidth]}

// layOutGPUs gives tracks to the GPUs of a run in which any queue is rung by them. free: the first process id that is not taken.
func (p *Plan) layOutGPUs(free int32) {
	p.gpuBase = p.tracks
	if !slices.ContainsFunc(p.endpoints, func(d endpoint) bool { return d.rung && d.lanes > 0 }) {
		return
	}
	for i := range p.Run.GPUs {
		g := &p.Run.GPUs[i]
		d := "host " + g.Host
		if g.UUID != "" {
			d += ", " + g.UUID
		}
		p.GPUs = append(p.GPUs, GPU{Name: g.Name, Description: d, Pid: free + int32(i)})
		p.tracks += len(gpuNames)
	}
}

func (p *Plan) gpuTrack(i int) Track {
	gpu, kind := (i-p.gpuBase)/len(gpuNames), (i-p.gpuBase)%len(gpuNames)
	t := Track{Name: gpuNames[kind], Process: -1, GPU: gpu, Rank: kind, Lanes: 1}
	if kind > 0 {
		t.Lane, t.Counter = -1, Bandwidth
	}
	return t
}

// Arrives is the track where the flow of an operation on track lane ends: that of a GPU where its completion is not seen.
func (p *Plan) Arrives(op *ops.Op, lane int) int {
	if op.Flags&ops.Unseen == 0 || op.PeerGPU == 0 {
		return lane
	}
	return p.gpuBase + int(op.PeerGPU-1)*len(gpuNames)
}

// gpuCounter is the track of a GPU's bandwidth, false where it is not known.
func (p *Plan) gpuCounter(gpu uint32) (int, bool) {
	return p.gpuBase + int(gpu-1)*len(gpuNames) + 1, gpu > 0 && int(gpu) <= len(p.GPUs)
}

// Bandwidth is told by interval: at most so many, and so many for all tracks together.
const (
	mostIntervals   = 2000
	leastIntervals  = 20
	mostBandwidth   = 400_000
	leastIntervalNS = 1000
)

// intervals divide time. The last one is longer by what is left: one that is shorter would tell of a rate that nobody had.
type intervals struct {
	from, to, width, last int64 // ns, but for the last one's number
}

func (v intervals) number(ns int64) int64 { return min((ns-v.from)/v.width, v.last) }

// of returns where an interval begins and ends.
func (v intervals) of(number int64) (begin, end int64) {
	begin = v.from + number*v.width
	if number == v.last {
		return begin, max(v.to, begin+1)
	}
	return begin, begin + v.width
}

// intervals divides the time that is shown for n counters.
func (p *Plan) intervals(n int) intervals {
	from, to := p.Range()
	to++
	count := int64(min(max(mostBandwidth/max(n, 1), leastIntervals), mostIntervals))
	width := max((to-from+count-1)/count, leastIntervalNS)
	return intervals{from, to, width, max((to-from)/width, 1) - 1}
}

// Bandwidth reads the run, where GPUs ring for anything, and returns what was rung for in each interval of time, as bytes a second: of every queue and every GPU,
// without what only synchronizes; nothing with NoBandwidth. Samples are in order of track and time; the counter holds from one to the next.
func (p *Plan) Bandwidth(ctx context.Context, src ops.Source) ([]Sample, error) {
	rung := 0
	for i := range p.endpoints {
		if p.endpoints[i].rung && p.endpoints[i].lanes > 0 {
			rung++
		}
	}
	if rung == 0 || p.Options.NoBandwidth {
		return nil, nil
	}
	v := p.intervals(rung + len(p.GPUs))
	p.intervalNS = v.width
	sums := map[bin]uint64{}
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(p.Options.Workers)
	for i := range p.Run.Partitions {
		g.Go(func() error {
			own, err := p.initiated(ctx, src, i, v)
			mu.Lock()
			defer mu.Unlock()
			for k, n := range own {
				sums[k] += n
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var samples []Sample
	at := bin{track: -1}
	for _, k := range slices.SortedFunc(maps.Keys(sums), func(a, b bin) int {
		return cmp.Or(cmp.Compare(a.track, b.track), cmp.Compare(a.number, b.number))
	}) {
		if at.track >= 0 && (at.track != k.track || at.number+1 < k.number) {
			_, end := v.of(at.number)
			samples = append(samples, Sample{at.track, end, 0})
		}
		begin, end := v.of(k.number)
		samples = append(samples, Sample{k.track, begin, uint64(float64(sums[k]) * 1e9 / float64(end-begin))})
		at = k
	}
	if at.track >= 0 {
		_, end := v.of(at.number)
		samples = append(samples, Sample{at.track, end, 0})
	}
	return samples, nil
}

// WriteBandwidth gives w the samples of Bandwidth, and counts them in s.
func (p *Plan) WriteBandwidth(samples []Sample, w Writer, s *Stats) error {
	for _, x := range samples {
		if err := w.Sample(x); err != nil {
			return err
		}
		if s.Used.Add(x.Track) {
			s.Tracks++
		}
	}
	s.Counters += int64(len(samples))
	return nil
}

// initiated adds up what the operations of a partition were rung for, by counter and interval.
func (p *Plan) initiated(ctx context.Context, src ops.Source, partition int, v intervals) (map[bin]uint64, error) {
	sums := map[bin]uint64{}
	err := src.Partition(ctx, partition, func(block []ops.Op) error {
		for i := range block {
			op := &block[i]
			shown, err := p.Shows(op)
			if err != nil {
				return err
			}
			if !shown || !initiates(op) || op.Post < v.from || !p.endpoints[op.Endpoint].rung {
				continue
			}
			number := v.number(op.Post)
			if t, ok := p.counter(op.Endpoint, Bandwidth); ok {
				sums[bin{t, number}] += op.Bytes
			}
			if t, ok := p.gpuCounter(p.Run.Endpoints[op.Endpoint].GPU); ok {
				sums[bin{t, number}] += op.Bytes
			}
		}
		return ctx.Err()
	})
	return sums, err
}

// initiates says whether an operation's bytes are data that a GPU rang for: those of elements, or, in mode simple, of doorbells.
func initiates(op *ops.Op) bool {
	return op.Bytes > 0 && op.Flags&ops.Unseen != 0 && op.Flags&ops.Synchronizes == 0 && op.Flags&(ops.Doorbell|ops.CallRecord) != ops.Doorbell
}
