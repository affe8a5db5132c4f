package timeline

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// Elsewhere lets other processes make parts of an export, of the same source and the same plan. What they make has the bytes that this process
// would make.
type Elsewhere interface {
	// Start gives out the parts of a kind, from 0 on; about is what they have in common.
	Start(kind string, parts int, about any) error
	// Wait returns the path of what was made of a part, with what was said of it in said; "" where it has to be made here.
	Wait(ctx context.Context, kind string, part int, said any) (path string, err error)
}

// KindCensus are the parts of a plan's first pass over the run, for Elsewhere.
const KindCensus = "census"

// censusOf is how many partitions are counted together elsewhere: what is said of them is large.
const censusOf = 8

func censusParts(partitions int) int { return (partitions + censusOf - 1) / censusOf }

// CensusPart counts part i of the plan's first pass.
func (p *Plan) CensusPart(ctx context.Context, src ops.Source, i int) (*Census, error) {
	c := &Census{Used: p.NewTrackSet()}
	for k := i * censusOf; k < min((i+1)*censusOf, p.Run.Partitions); k++ {
		if err := p.countPartition(ctx, src, k, c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Selection is what a plan leaves out, and Choose makes a plan leave out the same.
func (p *Plan) Selection() Selection { return p.sel }

// Choose makes the plan leave out what another one does.
func (p *Plan) Choose(s Selection) { p.sel = s }

// TakePart writes part i, made elsewhere, to w, what was said of it to said, and removes it. It returns false where the part has to be made here.
func (p *Plan) TakePart(ctx context.Context, kind string, i int, w io.Writer, said any) (bool, error) {
	if p.Options.Elsewhere == nil {
		return false, nil
	}
	path, err := p.Options.Elsewhere.Wait(ctx, kind, i, said)
	if err != nil || path == "" {
		return false, err
	}
	f, err := os.Open(path)
	if err == nil {
		_, err = io.Copy(w, f)
		f.Close()
	}
	if err != nil {
		return false, fmt.Errorf("taking a part that another process made: %w", err)
	}
	return true, os.Remove(path)
}

// StartParts gives the partitions to other processes, where there are any.
func (p *Plan) StartParts(kind string) error {
	if p.Options.Elsewhere == nil {
		return nil
	}
	return p.Options.Elsewhere.Start(kind, p.Run.Partitions, p.sel)
}
