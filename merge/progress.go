package merge

import (
	"sync/atomic"
	"syscall"
)

// errReadOnly is the error of writing to a file system that is mounted read-only.
var errReadOnly error = syscall.EROFS

// progress counts what a stage has done, for Options.Progress.
type progress struct {
	report func(stage string, done, total int64)
	stage  string
	total  int64
	done   atomic.Int64
}

func newProgress(report func(string, int64, int64), stage string, total int64) *progress {
	report(stage, 0, total)
	return &progress{report: report, stage: stage, total: total}
}

func (p *progress) add(n int64) { p.report(p.stage, min(p.done.Add(n), p.total), p.total) }

func (p *progress) end() { p.report(p.stage, p.total, p.total) }
