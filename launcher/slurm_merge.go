package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/profiles"
	"github.com/urfave/cli/v2"
)

// programBytes is what a merge takes beside merge.memory: program, stacks, what the runtime keeps.
const programBytes = 48 << 20

// mergeStep merges the run of a step that has ended, or says how to: in this process what is small, by a job step what is larger, as far as
// the profile and the plugin's own limits allow. home: nothing of it is still on nodes.
func mergeStep(c *cli.Context, dir *rundir.Dir, res *profiles.Resolved, size int64, home bool) {
	limit := res.Duration("merge.slurm_time")
	if n := time.Duration(c.Int("seconds")) * time.Second; n > 0 && n < limit {
		limit = n
	}
	memory := res.Size("merge.memory")
	if n := c.Int64("memory-mib"); n > 0 {
		memory = min(memory, n<<20-programBytes)
	}
	if c.Bool("no-merge") || limit == 0 || !res.Bool("merge.at_job_end") {
		note(os.Stderr, "merge with: %s", mergeCommandLine(c, dir, size, res))
		return
	}
	if memory < merge.MinMemory {
		note(os.Stderr, "%d MiB of memory are too little for a merge; merge with: %s", c.Int64("memory-mib"), mergeCommandLine(c, dir, size, res))
		return
	}
	ctx, stop := context.WithTimeoutCause(c.Context, limit, fmt.Errorf("it was not done within %v", limit))
	defer stop()
	again := mergeCommandLine(c, dir, size, res)
	s := &session{profile: res, workers: res.Number("merge.slurm_workers"), mergeMemory: memory, again: again}
	most := res.Size("merge.slurm_bytes")
	if size > most {
		note(os.Stderr, "captures of %s are more than srun merges alone (%s)", roughly(size), profiles.FormatSize(most))
		if !c.Bool("allocation") {
			note(os.Stderr, "merge with: %s", again)
			return
		}
	}
	home = unpack(ctx, os.Stderr, dir) && home
	if size > most {
		var err error
		s.workers = 0
		if s.spread, err = slurmWorkers(dir, 0, profiles.Environ(os.Environ())); err != nil {
			note(os.Stderr, "merge with: %s", again)
			return
		}
	}
	s.mergeRun(ctx, dir, home)
}

// mergeCommandLine is what merges a run: where it is large and its allocation is gone, a job of its own.
func mergeCommandLine(c *cli.Context, dir *rundir.Dir, size int64, res *profiles.Resolved) string {
	if size <= res.Size("merge.slurm_bytes") {
		return "sigmatrace merge " + quote(dir.Path())
	}
	if c.Bool("allocation") {
		return "sigmatrace merge --slurm " + quote(dir.Path())
	}
	return sbatchLine(dir, profiles.Environ(os.Environ()))
}

// sbatchLine is the command that merges a run in a job of its own, on as many nodes as it ran on, and in the same partition and account.
func sbatchLine(dir *rundir.Dir, environ map[string]string) string {
	self, err := os.Executable()
	if err != nil {
		self = "sigmatrace"
	}
	words := []string{"sbatch"}
	for _, o := range [][2]string{{"--nodes=", "SLURM_JOB_NUM_NODES"}, {"--partition=", "SLURM_JOB_PARTITION"}, {"--account=", "SLURM_JOB_ACCOUNT"}} {
		if v := environ[o[1]]; v != "" && v != "(null)" {
			words = append(words, quote(o[0]+v))
		}
	}
	return strings.Join(append(words, "--wrap="+quote(quote(self)+" merge --slurm "+quote(dir.Path()))), " ")
}

// roughly is a size for people.
func roughly(n int64) string {
	if n < 10<<20 {
		return strconv.FormatInt((n+1<<10-1)>>10, 10) + "KiB"
	}
	return strconv.FormatInt((n+1<<20-1)>>20, 10) + "MiB"
}

// timedOut is why a context has ended.
func timedOut(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, ctx.Err()) {
		return cause
	}
	return err
}
