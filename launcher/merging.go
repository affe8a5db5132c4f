package main

import (
	"cmp"
	"context"
	"io"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"golang.org/x/sys/unix"
)

// mergeInfo is a merge's account of a run.
type mergeInfo interface {
	// Complete says whether every expected rank is there and nothing was lost.
	Complete() bool
	// Summary writes a few lines.
	Summary(io.Writer)
}

// mergeOptions are what a profile says of the merge.
type mergeOptions struct {
	Memory   int64 // bytes
	Workers  int   // cores, 0: all
	Exports  []string
	Clock    clockOptions
	Counters bool         // of what GPUs ring for
	Spread   merge.Spread // gets other hosts to help; nil for none
}

// merger merges the captures of a run directory. It is nil in a build without the merge package.
var merger func(context.Context, *rundir.Dir, mergeOptions) (mergeInfo, error)

// mergeRun merges, prints the summary and the paths to open, and returns whether the trace is complete. SIGINT and SIGTERM end the
// merge; the captures stay, as they do where not all have come home.
func (s *session) mergeRun(ctx context.Context, dir *rundir.Dir, home bool) bool {
	again := "merge with: " + cmp.Or(s.again, "sigmatrace merge "+quote(dir.Path()))
	if merger == nil {
		warn(os.Stderr, "captures: "+dir.Capture(), "not merged: this build has no merger")
		return false
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	info, err := merger(ctx, dir, mergeOptions{Memory: cmp.Or(s.mergeMemory, s.profile.Size("merge.memory")), Workers: s.workers, Exports: s.profile.List("merge.exports"),
		Clock: clockOf(s.profile), Counters: s.profile.Bool("gpu.counters"), Spread: s.spread})
	if err != nil {
		warn(os.Stderr, again, "merging %s: %v", dir.Path(), timedOut(ctx, err))
		return false
	}
	info.Summary(os.Stderr)
	note(os.Stderr, "run: %s", dir.Path())
	if isFile(dir.Trace()) {
		note(os.Stderr, "trace: %s (open in https://ui.perfetto.dev)", dir.Trace())
	}
	if json := filepath.Join(dir.Path(), "trace.json"); isFile(json) {
		note(os.Stderr, "trace: %s", json)
	}
	if isFile(dir.Matrix()) {
		note(os.Stderr, "matrix: %s", dir.Matrix())
	}
	if info.Complete() && home && !s.profile.Bool("merge.keep_captures") {
		if err := os.RemoveAll(dir.Capture()); err != nil {
			warn(os.Stderr, "", "removing captures: %v", err)
		}
	}
	return info.Complete() && home
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
