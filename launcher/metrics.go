package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/sigmatrace/sigmatrace/launcher/sweep"
	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// mostLabels is how many values of one label are told apart: names of profiles and reasons come from files of users.
const mostLabels = 20

const (
	longestLabel = 200    // bytes
	mostCounted  = 10_000 // before it is known which of them are the most common
)

const otherLabel = "other"

func metricsCommand() *cli.Command {
	return &cli.Command{
		Name:      "metrics",
		Usage:     "count the runs below a directory for Prometheus",
		UsageText: "sigmatrace metrics [--output FILE] DIR...",
		Description: "Prints what there is of runs below DIR, of all users, in Prometheus' text format, or writes it to FILE at once: for the textfile collector of\n" +
			"node_exporter, FILE is DIRECTORY/sigmatrace.prom. All are gauges: they count the runs that are there now, and what `sigmatrace clean` has\n" +
			"removed is not. Nothing is merged or changed.",
		ArgsUsage: "DIR...",
		Flags:     []cli.Flag{&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "write `FILE`, readable by all"}},
		Action:    runMetrics,
	}
}

func runMetrics(c *cli.Context) error {
	if c.NArg() == 0 {
		return &usageError{err: fmt.Errorf("no directory to look for runs in"), hint: "sigmatrace metrics DIR"}
	}
	a := newAccount()
	s := sweep.Sweeper{Skipped: func(path string, err error) {
		a.unreadable++
		warn(os.Stderr, "", "%s is not counted: %v", path, err)
	}, Read: a.add}
	for _, base := range c.Args().Slice() {
		if _, err := s.Find(base); err != nil {
			return err
		}
	}
	if file := c.String("output"); file != "" {
		if err := writeForAll(file, a.write); err != nil {
			return fmt.Errorf("writing metrics: %w", err)
		}
		return nil
	}
	return a.write(c.App.Writer)
}

// writeForAll replaces a file at once by one that all may read. Until it has its name it ends in none that node_exporter looks at.
func writeForAll(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // after the rename there is nothing left to remove
	defer f.Close()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// States of a run.
const (
	stateRunning    = "running"    // or its end was not written
	stateUnmerged   = "unmerged"   // ended
	stateIncomplete = "incomplete" // merged
	stateComplete   = "complete"
)

type profileState struct{ profile, state string }

// account is what runs are counted into.
type account struct {
	runs                                      map[profileState]int
	jobs                                      map[string]map[string]bool // by profile
	disk, captures                            map[string]float64         // bytes by profile
	lost                                      map[string]float64         // records by profile
	untraced                                  map[string]int             // steps by reason
	clockWorst, mergeWorst, mergeSum, lastEnd float64
	clockKnown, clockUnknown, merged          int
	unreadable                                int
	labels                                    map[string]bool // that are counted
}

func newAccount() *account {
	return &account{runs: map[profileState]int{}, jobs: map[string]map[string]bool{}, disk: map[string]float64{}, captures: map[string]float64{},
		lost: map[string]float64{}, untraced: map[string]int{}, labels: map[string]bool{}}
}

// label is a text of a user's as it is counted: its length, and how many there are, are bounded.
func (a *account) label(text string) string {
	if len(text) > longestLabel {
		text = strings.Clone(text[:longestLabel])
	}
	if !a.labels[text] {
		if len(a.labels) >= mostCounted {
			return otherLabel
		}
		a.labels[text] = true
	}
	return text
}

func (a *account) add(r *sweep.Run, m *rundir.Manifest) {
	profile := a.label(m.Profile.Name)
	if profile == "" {
		profile = otherLabel
	}
	a.disk[profile] += float64(r.Bytes)
	a.captures[profile] += 0
	a.lost[profile] += 0
	if job := jobInName.FindStringSubmatch(r.Name); job != nil {
		if a.jobs[profile] == nil {
			a.jobs[profile] = map[string]bool{}
		}
		a.jobs[profile][job[1]+job[2]] = true
	}
	seen := map[string]bool{}
	for _, u := range m.Run.Untraced {
		if why := a.label(u.Reason); !seen[why] {
			seen[why] = true
			a.untraced[why]++
		}
	}
	state := stateRunning
	if m.Run.End != nil {
		state = stateUnmerged
		a.lastEnd = max(a.lastEnd, float64(m.Run.End.Unix()))
	}
	if m.Merge != nil {
		a.merged++
		a.mergeSum += m.Merge.Seconds
		a.mergeWorst = max(a.mergeWorst, m.Merge.Seconds)
	}
	if m.Result != nil {
		info, err := merge.ParseInfo(m.Result)
		if err != nil {
			a.unreadable++
			return
		}
		if state = stateIncomplete; info.Complete() {
			state = stateComplete
		}
		a.captures[profile] += float64(info.Bytes.Capture)
		a.lost[profile] += float64(info.Lost.Events)
		a.clock(info)
	}
	a.runs[profileState{profile, state}]++
}

func (a *account) clock(info *merge.Info) {
	worst, known := 0.0, len(info.Clock.Nodes) > 0
	for _, n := range info.Clock.Nodes {
		if n.ErrorNS == nil {
			known = false
			break
		}
		worst = max(worst, *n.ErrorNS/1e9)
	}
	if !known {
		a.clockUnknown++
		return
	}
	a.clockKnown++
	a.clockWorst = max(a.clockWorst, worst)
}

// common are the label values that are told apart: those of most runs.
func common(count map[string]int) func(string) string {
	names := slices.SortedFunc(maps.Keys(count), func(x, y string) int { return cmp.Or(count[y]-count[x], strings.Compare(x, y)) })
	kept := map[string]bool{}
	for _, n := range names[:min(mostLabels, len(names))] {
		kept[n] = true
	}
	return func(name string) string {
		if kept[name] {
			return name
		}
		return otherLabel
	}
}

// family is a metric with its samples, by labels as they are written.
type family struct {
	name, help string
	samples    map[string]float64
}

func (a *account) families() []family {
	perProfile := map[string]int{}
	for k, n := range a.runs {
		perProfile[k.profile] += n
	}
	profile, reason := common(perProfile), common(a.untraced)
	byProfile := func(values map[string]float64) map[string]float64 {
		sum := map[string]float64{}
		for name, v := range values {
			sum[labels("profile", profile(name))] += v
		}
		return sum
	}
	runs, jobs, untraced := map[string]float64{}, map[string]float64{}, map[string]float64{}
	for k, n := range a.runs {
		runs[labels("profile", profile(k.profile), "state", k.state)] += float64(n)
	}
	for name, list := range a.jobs {
		jobs[labels("profile", profile(name))] += float64(len(list))
	}
	for why, n := range a.untraced {
		untraced[labels("reason", reason(why))] += float64(n)
	}
	one := func(v float64, is bool) map[string]float64 {
		if !is {
			return nil
		}
		return map[string]float64{"": v}
	}
	return []family{
		{"sigmatrace_runs", "Runs that are there, one for each traced step, by profile and by what became of them.", runs},
		{"sigmatrace_jobs", "Jobs of Slurm that have runs, by profile.", jobs},
		{"sigmatrace_disk_bytes", "Space that runs take, by profile.", byProfile(a.disk)},
		{"sigmatrace_captured_bytes", "Size of the captures of merged runs when they were merged, by profile.", byProfile(a.captures)},
		{"sigmatrace_lost_records", "Records of merged runs that found no room, by profile.", byProfile(a.lost)},
		{"sigmatrace_untraced_steps", "Runs with nodes on which tasks ran without the recorder, by the reason.", untraced},
		{"sigmatrace_clock_error_worst_seconds", "Largest clock error of a node in merged runs, of those in which it is known.", one(a.clockWorst, a.clockKnown > 0)},
		{"sigmatrace_clock_unknown_runs", "Merged runs in which the clock error of some node is not known.", one(float64(a.clockUnknown), true)},
		{"sigmatrace_merge_worst_seconds", "Longest merge at the end of a run.", one(a.mergeWorst, a.merged > 0)},
		{"sigmatrace_merge_spent_seconds", "Time that the merges at the ends of all runs took.", one(a.mergeSum, true)},
		{"sigmatrace_last_end_timestamp_seconds", "When the run that ended last did.", one(a.lastEnd, a.lastEnd > 0)},
		{"sigmatrace_unreadable_runs", "Directories that could not be looked at, and runs of another version.", one(float64(a.unreadable), true)},
	}
}

// write writes the text format, version 0.0.4, in an order that depends on the runs alone.
func (a *account) write(w io.Writer) error {
	b := bufio.NewWriter(w)
	for _, f := range a.families() {
		if len(f.samples) == 0 {
			continue
		}
		fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s gauge\n", f.name, f.help, f.name)
		for _, l := range slices.Sorted(maps.Keys(f.samples)) {
			fmt.Fprintf(b, "%s%s %s\n", f.name, l, strconv.FormatFloat(f.samples[l], 'g', -1, 64))
		}
	}
	return b.Flush()
}

// labels writes pairs of names and values.
func labels(pairs ...string) string {
	var b strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		value := strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(strings.ToValidUTF8(pairs[i+1], "\ufffd"))
		fmt.Fprintf(&b, `%s%s="%s"`, map[bool]string{true: "{", false: ","}[i == 0], pairs[i], value)
	}
	return b.String() + "}"
}
