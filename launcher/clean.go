package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/sigmatrace/sigmatrace/launcher/sweep"
	"github.com/sigmatrace/sigmatrace/profiles"
)

// cleanVersion is the major version of clean's JSON, schema/clean.schema.json.
const cleanVersion = 1

const (
	// restTime is how long nothing in a run must have changed, whatever is asked for.
	restTime = time.Hour
	// deadTime is how long nothing must have changed in a run of which nobody has written that it ended, and that is none of Slurm's.
	deadTime = 7 * 24 * time.Hour
)

// Actions on a run.
const (
	actionRemoved  = "removed"
	actionCaptures = "captures removed"
	actionKept     = "kept"
)

// cleaned is what became of one run, or of what one left.
type cleaned struct {
	Path   string    `json:"path"`
	Kind   string    `json:"kind"` // run, memory, scratch
	Owner  string    `json:"owner"`
	Ended  time.Time `json:"ended"`
	Bytes  int64     `json:"bytes"` // freed, or that would be
	Action string    `json:"action"`
	Reason string    `json:"reason"`
}

type cleanReport struct {
	Version  int       `json:"version"`
	DryRun   bool      `json:"dry_run"`
	Seen     int       `json:"seen"`  // runs
	Bytes    int64     `json:"bytes"` // of them all, before
	Freed    int64     `json:"freed"`
	Runs     []cleaned `json:"runs"` // those that are due
	Problems []string  `json:"problems"`
}

func cleanCommand() *cli.Command {
	return &cli.Command{
		Name:      "clean",
		Usage:     "remove old runs below a directory",
		UsageText: "sigmatrace clean [--older-than AGE] [--quota SIZE] [--user-quota SIZE] [--captures] [--scratch DIR] [--dry-run] [--json] DIR...",
		Description: "Removes runs that ended longer ago than AGE, and of the others the oldest until what is left fits into SIZE, of each user and in all.\n" +
			"Only directories with a manifest of sigmatrace's are touched, never one that is being recorded or merged or in which anything changed within\n" +
			"the last hour; symbolic links are never followed. With --older-than, what killed launchers left in /dev/shm of this host goes as well.\n" +
			"As root it acts with the rights of each run's owner. The exit status is 1 where something could not be removed.",
		ArgsUsage: "DIR...",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "older-than", Usage: "remove runs that ended `AGE` ago: 30d, 12h"},
			&cli.StringFlag{Name: "quota", Usage: "leave at most `SIZE` in all"},
			&cli.StringFlag{Name: "user-quota", Usage: "leave at most `SIZE` of each user"},
			&cli.BoolFlag{Name: "captures", Usage: "remove captures only, and only of runs that were merged completely"},
			&cli.StringSliceFlag{Name: "scratch", Usage: "with --older-than, also captures left in `DIR` of this host (record.scratch)"},
			&cli.BoolFlag{Name: "dry-run", Usage: "only tell what would go"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"}},
		Action: runClean,
	}
}

// cleaning is one run of clean.
type cleaning struct {
	older, quota, userQuota int64 // ns and bytes; negative: not asked for
	captures, dry           bool
	now                     time.Time
	jobs                    map[string]bool // of Slurm's that are not over; nil: not known
	sweeper                 sweep.Sweeper
	report                  cleanReport
}

func runClean(c *cli.Context) error {
	k := &cleaning{captures: c.Bool("captures"), dry: c.Bool("dry-run"), now: time.Now()}
	k.report = cleanReport{Version: cleanVersion, DryRun: k.dry, Runs: []cleaned{}, Problems: []string{}}
	if err := k.options(c); err != nil {
		return err
	}
	k.sweeper.Skipped = func(path string, err error) { k.problem("%s is left: %v", path, err) }
	ctx, stop := interruptible(c)
	defer stop()
	k.jobs = slurmJobs(ctx)
	var runs []*sweep.Run
	for _, base := range c.Args().Slice() {
		found, err := k.sweeper.Find(base)
		if err != nil {
			return err
		}
		runs = append(runs, found...)
	}
	k.runs(ctx, runs)
	if k.older >= 0 && !k.captures {
		k.leftovers(ctx, c.StringSlice("scratch"))
	}
	if len(k.report.Problems) > 0 {
		setStatus(c, exitFailure)
	}
	if c.Bool("json") {
		return printJSON(c.App.Writer, k.report)
	}
	return k.print(c.App.Writer)
}

func (k *cleaning) options(c *cli.Context) (err error) {
	k.older, k.quota, k.userQuota = -1, -1, -1
	if c.NArg() == 0 {
		return &usageError{err: errors.New("no directory to look for runs in"), hint: "sigmatrace clean --older-than 30d DIR"}
	}
	if !c.IsSet("older-than") && !c.IsSet("quota") && !c.IsSet("user-quota") {
		return &usageError{err: errors.New("neither age nor quota says what is to go"), hint: "give --older-than, --quota or --user-quota; --dry-run shows what that means"}
	}
	if c.IsSet("older-than") {
		age, err := parseAge(c.String("older-than"))
		if err != nil {
			return &usageError{err: fmt.Errorf("--older-than: %w", err)}
		}
		k.older = int64(age)
	}
	for name, to := range map[string]*int64{"quota": &k.quota, "user-quota": &k.userQuota} {
		if !c.IsSet(name) {
			continue
		}
		if *to, err = profiles.ParseSize(c.String(name)); err != nil {
			return &usageError{err: fmt.Errorf("--%s: %w", name, err)}
		}
	}
	return nil
}

// parseAge reads 30d, 2w, 12h, 90m.
func parseAge(text string) (time.Duration, error) {
	for suffix, unit := range map[string]time.Duration{"d": 24 * time.Hour, "w": 7 * 24 * time.Hour} {
		number, is := strings.CutSuffix(text, suffix)
		if !is {
			continue
		}
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return 0, fmt.Errorf("%q is no age; write 30d, 2w or 12h", text)
		}
		return time.Duration(n) * unit, nil //nolint:gosec // at most 65,535 weeks
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is no age; write 30d, 2w or 12h", text)
	}
	return d, nil
}

// slurmJobs are the jobs that are not over; nil where Slurm does not say.
func slurmJobs(ctx context.Context) map[string]bool {
	out, err := bounded(ctx, time.Minute, "squeue", "--noheader", "--all", "--array", "--format=%A")
	if err != nil {
		return nil
	}
	jobs := map[string]bool{}
	for _, id := range strings.Fields(out) {
		jobs[id] = true
	}
	return jobs
}

var jobInName = regexp.MustCompile(`^sigmatrace-([0-9]+)(_[0-9]+)?(\.r[0-9]+)?\.`)

// ended is when a run ended; where nobody has written that, when something in it changed last.
func ended(r *sweep.Run) time.Time {
	if end := r.End; end != nil {
		return *end
	}
	return r.Changed
}

// lives says why a run may still go on; empty: it does not.
func (k *cleaning) lives(r *sweep.Run) string {
	idle := k.now.Sub(r.Changed)
	if idle < restTime {
		return "something in it changed within the last hour"
	}
	if r.End != nil {
		return ""
	}
	id := r.Job
	if id == "" {
		if m := jobInName.FindStringSubmatch(r.Name); m != nil && m[2] == "" {
			id = m[1]
		}
	}
	switch {
	case k.jobs[id]:
		return "its job is not over"
	case idle < deadTime && (id == "" || k.jobs == nil):
		return "nobody has written its end, and something in it changed within the last week"
	}
	return ""
}

// runs decides on each run, the oldest first.
func (k *cleaning) runs(ctx context.Context, runs []*sweep.Run) {
	slices.SortStableFunc(runs, func(a, b *sweep.Run) int { return ended(a).Compare(ended(b)) })
	all, users := int64(0), map[uint32]int64{}
	for _, r := range runs {
		all += r.Bytes
		users[r.UID] += r.Bytes
	}
	k.report.Seen, k.report.Bytes = len(runs), all
	for _, r := range runs {
		if ctx.Err() != nil {
			k.problem("interrupted: the rest is left")
			return
		}
		why := ""
		switch {
		case k.older >= 0 && k.now.Sub(ended(r)) >= time.Duration(k.older):
			why = "ended " + ended(r).UTC().Format(time.RFC3339)
		case k.userQuota >= 0 && users[r.UID] > k.userQuota:
			why = "its owner has " + profiles.FormatSize(users[r.UID]>>20<<20) + ", more than " + profiles.FormatSize(k.userQuota)
		case k.quota >= 0 && all > k.quota:
			why = "all have " + profiles.FormatSize(all>>20<<20) + ", more than " + profiles.FormatSize(k.quota)
		default:
			continue
		}
		freed := k.run(r, why)
		all -= freed
		users[r.UID] -= freed
	}
}

// run removes a run that is due, and returns what that frees.
func (k *cleaning) run(r *sweep.Run, why string) int64 {
	c := cleaned{Path: r.Path, Kind: "run", Owner: r.Owner(), Ended: ended(r).UTC(), Bytes: r.Bytes, Action: actionRemoved, Reason: why}
	remove := k.sweeper.Remove
	keep := k.lives(r)
	if k.captures {
		c.Action, c.Bytes, remove = actionCaptures, r.Captures, k.sweeper.RemoveCaptures
		switch {
		case r.Captures == 0:
			return 0
		case keep == "" && !r.Whole:
			keep = "its trace is not known to be complete and in place: captures are all there is"
		}
	}
	if k.dry {
		remove = k.sweeper.InUse
	}
	return k.act(c, keep, func() error { return remove(r) })
}

// act removes what is not to be kept, and writes down what became of it.
func (k *cleaning) act(c cleaned, keep string, remove func() error) int64 {
	if keep == "" {
		err := remove()
		switch {
		case errors.Is(err, sweep.ErrBusy):
			keep = "it is being recorded or merged"
		case err != nil:
			k.problem("%v", err)
			keep = "it could not be removed"
		}
	}
	if keep != "" {
		c.Action, c.Reason, c.Bytes = actionKept, keep, 0
	}
	k.report.Freed += c.Bytes
	k.report.Runs = append(k.report.Runs, c)
	return c.Bytes
}

// leftovers removes what dead runs left on this host outside their run directories.
func (k *cleaning) leftovers(ctx context.Context, scratch []string) {
	places := []struct {
		kind, path string
		find       func(string) ([]*sweep.Run, error)
	}{{"memory", sharedMemory, k.sweeper.FindMemory}}
	for _, dir := range scratch {
		places = append(places, struct {
			kind, path string
			find       func(string) ([]*sweep.Run, error)
		}{"scratch", dir, k.sweeper.FindScratch})
	}
	for _, p := range places {
		found, err := p.find(p.path)
		if err != nil {
			k.problem("%v", err)
			continue
		}
		for _, r := range found {
			age := k.now.Sub(r.Changed)
			if ctx.Err() != nil || age < time.Duration(k.older) || age < restTime {
				continue
			}
			remove := k.sweeper.RemoveFolder
			if k.dry {
				remove = k.sweeper.InUse
			}
			c := cleaned{Path: r.Path, Kind: p.kind, Owner: r.Owner(), Ended: r.Changed.UTC(), Bytes: r.Bytes, Action: actionRemoved, Reason: "left by a run that is over"}
			k.act(c, "", func() error { return remove(r) })
		}
	}
}

func (k *cleaning) problem(format string, args ...any) {
	k.report.Problems = append(k.report.Problems, oneLine(fmt.Sprintf(format, args...)))
}

func (k *cleaning) print(w io.Writer) error {
	would := ""
	if k.dry {
		would = "would be "
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range k.report.Runs {
		action := r.Action
		if action != actionKept {
			action = would + action
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", oneLine(r.Path), r.Owner, profiles.FormatSize(r.Bytes), action, r.Reason)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, p := range k.report.Problems {
		warn(os.Stderr, "", "%s", p)
	}
	_, err := fmt.Fprintf(w, "%s with %s; %s %sfreed\n", counted(k.report.Seen, "run"), profiles.FormatSize(k.report.Bytes), profiles.FormatSize(k.report.Freed), would)
	return err
}
