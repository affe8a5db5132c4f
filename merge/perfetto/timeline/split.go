package timeline

import (
	"context"
	"fmt"
	"math"

	"golang.org/x/sync/errgroup"

	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// DefaultPieceMemory is the memory that a piece takes in a browser where nothing else is asked for: browsers give a page 2 GiB for sure,
// and what is queried takes some, too.
const DefaultPieceMemory = 1 << 30

// Bytes that a 32-bit trace processor takes at its peak, sorting included, as measured with traces of this program (README.md).
const (
	memorySlice  = 235 // a slice or instant
	memoryArg    = 65  // an argument of one
	memorySample = 152 // a counter's value
)

// Part is a piece with what it holds.
type Part struct {
	Piece
	Operations int64
	Memory     int64 // estimate of what it takes in a trace processor, bytes
	first, end int   // partitions that hold its operations
}

// checkpoint is a stretch of a partition's operations: those from a time of post on up to the next checkpoint.
type checkpoint struct {
	post, last         int64 // posts of its first and last operation
	memory, operations int64
	partition          int
}

// stretches is about how many checkpoints a partition has: pieces cannot be cut finer.
const stretches = 64

// Split cuts what the plan shows into parts of about equal memory: as many as pieces says, or, where that is 0, as few as take at most
// memory bytes each. Operations posted at the same time are never cut apart, so there may be fewer. It reads the run once.
func (p *Plan) Split(ctx context.Context, src ops.Source, pieces int, memory int64) ([]Part, error) {
	all := make([][]checkpoint, p.Run.Partitions)
	step := max(p.Run.Operations/int64(max(p.Run.Partitions, 1))/stretches, 1)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(p.Options.Workers)
	for i := range all {
		g.Go(func() (err error) {
			all[i], err = p.measure(ctx, src, i, step)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var total int64
	for _, list := range all {
		for _, c := range list {
			total += c.memory
		}
	}
	if pieces == 0 {
		pieces = int(max(1, (total+memory-1)/memory))
	}
	each := max(float64(total)/float64(pieces), 1)
	parts := []Part{{Piece: Piece{From: math.MinInt64, To: math.MaxInt64}}}
	var before int64
	last := int64(math.MinInt64)
	for _, list := range all {
		for _, c := range list {
			part := &parts[len(parts)-1]
			if int(float64(before)/each) >= len(parts) && c.post > last && len(parts) < pieces {
				part.To = c.post
				parts = append(parts, Part{Piece: Piece{From: c.post, To: math.MaxInt64}, first: c.partition})
				part = &parts[len(parts)-1]
			}
			part.Memory += c.memory
			part.Operations += c.operations
			part.end = c.partition + 1
			before += c.memory
			last = c.last
		}
	}
	return parts, nil
}

// measure makes the checkpoints of a partition.
func (p *Plan) measure(ctx context.Context, src ops.Source, partition int, step int64) (list []checkpoint, err error) {
	v := &walker{p: p}
	var args []Arg
	err = src.Partition(ctx, partition, func(block []ops.Op) error {
		for k := range block {
			op := &block[k]
			if shown, err := p.Shows(op); !shown {
				if err != nil {
					return err
				}
				continue
			}
			if n := len(list); n == 0 || list[n-1].operations >= step && op.Post > list[n-1].last {
				list = append(list, checkpoint{post: op.Post, partition: partition})
			}
			v.samples(op)
			args = p.Args(op, args[:0])
			c := &list[len(list)-1]
			c.last = op.Post
			c.operations++
			c.memory += rows(op)*memorySlice + int64(len(args))*memoryArg + int64(len(v.post)+len(v.done))*memorySample
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("measuring partition %d: %w", partition, err)
	}
	return list, nil
}

// Source is the run as a part sees it: its own partitions only.
func (x *Part) Source(src ops.Source) ops.Source {
	run := *src.Run()
	run.Partitions = max(x.end-x.first, 0)
	return partSource{src, &run, x.first}
}

type partSource struct {
	src   ops.Source
	run   *ops.Run
	first int
}

func (s partSource) Run() *ops.Run { return s.run }

func (s partSource) Partition(ctx context.Context, i int, fn func([]ops.Op) error) error {
	return s.src.Partition(ctx, s.first+i, fn)
}
