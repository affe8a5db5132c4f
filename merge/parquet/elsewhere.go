package parquet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline"
)

// KindPart are the stretches of time of an export, for timeline.Elsewhere. What is made of one is a folder.
const KindPart = "parquet"

// Made says what a stretch of time holds.
type Made struct {
	Files    []File
	Filtered int64
}

// stretches is how many partitions a file holds, and how many files of a layer there are.
func stretches(partitions int) (each, n int) {
	each = min(max((partitions+maxFiles-1)/maxFiles, 1), maxPartitions)
	return each, (partitions + each - 1) / each
}

// Part writes the files of part i of what Write writes by the same plan into the folder dir, which it makes.
func Part(ctx context.Context, dir string, src ops.Source, plan *timeline.Plan, i int) (*Made, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	var p part
	each, _ := stretches(plan.Run.Partitions)
	if err := p.make(ctx, dir, src, plan, i, each); err != nil {
		return nil, err
	}
	return &Made{p.files, p.filtered}, nil
}

// take moves the files of a part that was made elsewhere to where they belong. It returns false where the part has to be made here.
func (p *part) take(ctx context.Context, elsewhere timeline.Elsewhere, dir string, i int) (bool, error) {
	if elsewhere == nil {
		return false, nil
	}
	var made Made
	from, err := elsewhere.Wait(ctx, KindPart, i, &made)
	if err != nil || from == "" {
		return false, err
	}
	for k := range made.Files {
		f := &made.Files[k]
		if f.FirstNS == nil { // encoded for another process, a pointer to 0 is none
			f.FirstNS = new(int64)
		}
		if f.LastNS == nil {
			f.LastNS = new(int64)
		}
		to := filepath.Join(dir, f.Path)
		if err = os.MkdirAll(filepath.Dir(to), 0o700); err == nil {
			err = os.Rename(filepath.Join(from, f.Path), to)
		}
		if errors.Is(err, syscall.EXDEV) { // of the first: the export goes to another file system
			return false, os.RemoveAll(from)
		}
		if err != nil {
			return false, fmt.Errorf("taking a part that another process made: %w", err)
		}
	}
	p.files, p.filtered = made.Files, made.Filtered
	return true, os.RemoveAll(from)
}
