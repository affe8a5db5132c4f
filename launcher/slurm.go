package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/profiles"
	"github.com/urfave/cli/v2"
)

// jobVariable holds the profile that travels with a job. Slurm makes the first part of the name of its own job control variables.
const jobVariable = "SLURM_SPANK_SIGMATRACE_JOB"

// slurmCommand is what the Slurm plugin runs: as the user, with a time limit. spank/README.md has the whole of it.
func slurmCommand() *cli.Command {
	return &cli.Command{
		Name:   "slurm",
		Usage:  "what the Slurm plugin runs",
		Hidden: true,
		Subcommands: []*cli.Command{
			{Name: "begin", Usage: "make the run directory of a step, and print what its nodes need", ArgsUsage: "-- COMMAND...",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "job", Usage: "the step is of job `ID`"},
					&cli.StringFlag{Name: "place", Usage: "the run is where `TEXT` says, which the nodes were told before"},
					&cli.StringFlag{Name: "step", Usage: "the step's number, or its `NAME`"},
					&cli.IntFlag{Name: "world", Usage: "expect `N` ranks; 0 where it is not known"},
					&cli.StringFlag{Name: "libdir", Usage: "the recorder is in `DIR`"}},
				Action: slurmBegin},
			slurmNodeCommand(),
			{Name: "place", Usage: "print where nodes find a step's run by the numbers of job and step", Action: slurmPlace},
			{Name: "end", Usage: "close the run of a step and merge it", ArgsUsage: "RUN",
				Flags: []cli.Flag{
					&cli.IntFlag{Name: "tasks", Usage: "the step had `N` tasks; 0: as its nodes say"},
					&cli.BoolFlag{Name: "no-ranks", Usage: "its tasks are no ranks but start some"},
					&cli.BoolFlag{Name: "no-merge", Usage: "there is no time to merge"},
					&cli.IntFlag{Name: "seconds", Usage: "merge for `N` seconds at most; 0: as the profile says"},
					&cli.Int64Flag{Name: "memory-mib", Usage: "there are `N` MiB of memory; 0: as the profile says"},
					&cli.BoolFlag{Name: "allocation", Usage: "the allocation that the step was in goes on"},
					&cli.BoolFlag{Name: "discard-empty", Usage: "remove the run directory where nothing was recorded"},
					&cli.BoolFlag{Name: "unasked", Usage: "and say nothing of it: nobody asked for the run"}},
				Action: slurmEnd},
		},
	}
}

// resolveForJob prints the profile that travels with a job. Inside a job that has one already, that one holds where nothing else is
// asked for: the nodes need not have the profile's files.
func resolveForJob(c *cli.Context) error {
	name, err := profileArgument(c, 1)
	if err != nil {
		return err
	}
	req := request(c)
	req.Profile = name
	if req.By = c.String("named-by"); req.By != "" { // the plugin's users know its own options
		req.SetOption = "--sigmatrace-set"
	}
	if text := os.Getenv(jobVariable); text != "" && text != profiles.Off {
		carried, err := profiles.ParseJob(text)
		switch {
		case err != nil:
			warn(c.App.ErrWriter, "", "%s: %v", jobVariable, err)
		case c.Bool("site-only"): // by a site that trusts no text
			carried.Set = slices.DeleteFunc(carried.Set, func(set string) bool { return !strings.HasPrefix(set, "output.directory=") })
			req.Set = append(carried.Set, req.Set...)
		case carried.Asked == name && len(req.Set) == 0:
			_, err := fmt.Fprintln(c.App.Writer, text)
			return err
		default:
			req.Set = append(slices.Clone(carried.Set), req.Set...)
		}
	}
	if dir := c.String("site-profiles"); dir != "" {
		if st, err := os.Stat(dir); err == nil && st.Mode().Perm()&0o002 != 0 {
			return fmt.Errorf("the site's profiles in %s are not read: anybody can write there", dir)
		}
		req.Search.Dirs[len(req.Search.Dirs)-1] = dir
	}
	if c.Bool("site-only") {
		req.Environ, req.Search.Dirs = nil, req.Search.Dirs[len(req.Search.Dirs)-1:]
	}
	req.Output, req.Relative = c.String("site-output"), c.Bool("relative")
	res, err := profiles.Resolve(req)
	if err != nil {
		return err
	}
	job, err := profiles.NewJob(req, res)
	if err != nil {
		return err
	}
	text, err := job.Text()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(c.App.Writer, text)
	return err
}

// slurmBegin makes the run directory and prints the step's text: version, providers, run directory.
func slurmBegin(c *cli.Context) error {
	job, err := profiles.ParseJob(os.Getenv(jobVariable))
	if err != nil {
		return err
	}
	res := job.Profile
	libs, err := findLibraries(c.String("libdir"), res.List("providers"))
	if err != nil {
		return err
	}
	getenv := func(name string) string {
		switch name {
		case "SLURM_JOB_ID":
			return c.String("job")
		case "SLURM_STEP_ID":
			return c.String("step")
		}
		return os.Getenv(name)
	}
	start := time.Now()
	facts, err := profiles.CurrentFacts(getenv, start)
	if err != nil {
		return err
	}
	var dir *rundir.Dir
	if text := c.String("place"); text != "" {
		dir, err = createPlaced(text, facts)
	} else {
		dir, err = createGenerated(res, facts, getenv)
	}
	if err != nil {
		return err
	}
	world := slurmWorld(c.Int("world"), c.Args().Slice())
	flat := &profiles.Flat{Profile: res, Capture: dir.Capture(), Run: dir.Name(), World: world, Start: start,
		Clock: profiles.CurrentClock(start), Control: dir.ControlPath()}
	s := &session{cmd: &command{argv: c.Args().Slice(), environ: profiles.Environ(os.Environ())}, dialect: &dialect{name: "slurm"}, profile: res,
		world: world, start: start, facts: facts, inject: injection{libdir: c.String("libdir"), libs: libs}}
	m := s.manifest(dir, &plan{preload: s.inject.preload("")})
	m.Profile.Files = job.Files
	err = flat.WriteFile(dir.ResolvedPath())
	if err == nil {
		err = dir.WriteManifest(m)
	}
	if err == nil {
		err = dir.MakeTasks()
	}
	if err == nil && keepsOnNodes(res) {
		err = dir.MakeNodes()
	}
	if err != nil {
		os.RemoveAll(dir.Path()) // ours alone, and nothing has run
		return err
	}
	_, err = fmt.Fprintf(c.App.Writer, "1;%s;%s\n", res.Text("providers"), dir.Path())
	return err
}

// createGenerated makes a run directory of a name that none has.
func createGenerated(res *profiles.Resolved, facts *profiles.Facts, getenv func(string) string) (*rundir.Dir, error) {
	base, err := facts.Expand(res.Text("output.directory"))
	if err == nil {
		base, err = filepath.Abs(base) // a site's own text may leave it to each job's working directory
	}
	if err != nil {
		return nil, fmt.Errorf("output.directory: %w", err)
	}
	return rundir.CreateNamed(base, rundir.GeneratedName(getenv, facts.Host, facts.Time, facts.PID))
}

// slurmEnd closes the manifest by what the nodes wrote of the tasks' ends, and merges what is small enough.
func slurmEnd(c *cli.Context) error {
	if c.NArg() != 1 {
		return &usageError{err: errors.New("end takes one run directory")}
	}
	dir, err := rundir.Open(c.Args().First())
	if err != nil {
		return err
	}
	text, err := dir.ReadResolved()
	if err != nil {
		return err
	}
	res, err := profiles.ResolvedFromFlat(text)
	if err != nil {
		return fmt.Errorf("reading the run's profile %s: %w", dir.ResolvedPath(), err)
	}
	size, err := captureBytes(dir)
	if err != nil {
		return err
	}
	grace := othersCollect
	if c.Bool("no-merge") { // the job is being ended
		grace /= 2
	}
	nodes, err := settledNodes(dir, grace)
	if err != nil {
		warn(os.Stderr, "", "%v", err)
	}
	left := false
	for i := range nodes {
		left = left || nodes[i].Left()
		if done := nodes[i].Collected; done != nil {
			size += done.Bytes
		}
	}
	if size == 0 && !left && c.Bool("discard-empty") {
		if !c.Bool("unasked") {
			note(os.Stderr, "%s is removed: no process called a library that was traced", dir.Path())
		}
		return os.RemoveAll(dir.Path())
	}
	ends, err := dir.ReadTasks()
	if err != nil {
		warn(os.Stderr, "", "%v", err)
	}
	if tasks := c.Int("tasks"); tasks > 0 {
		ends.Of = tasks
	}
	home := tellNodes(os.Stderr, dir, nodes)
	end := time.Now().UTC()
	err = dir.Update(func(m *rundir.Manifest) {
		m.Run.End, m.Run.Untraced, m.Run.Nodes = &end, ends.Untraced, nodes
		m.Run.Status, m.Run.Signal = ends.Outcome()
		if world := slurmWorld(ends.Of, m.Run.Command); world > 0 && !c.Bool("no-ranks") {
			m.Run.ExpectedRanks = &world
		}
	})
	if err != nil {
		return err
	}
	for _, u := range ends.Untraced {
		warn(os.Stderr, "", "tasks on %s are not traced: %s", u.Node, u.Reason)
	}
	mergeStep(c, dir, res, size, home)
	return nil
}

// slurmWorld is the number of ranks of a step with so many tasks that run the command: torchrun starts several in each.
func slurmWorld(tasks int, command []string) int {
	if workers, is := torchrunWorkers(command); is {
		return tasks * workers
	}
	return tasks
}

// captureBytes is the size of a run's captures.
func captureBytes(dir *rundir.Dir) (int64, error) {
	paths, err := filepath.Glob(filepath.Join(dir.Capture(), "*", "*.capture"))
	if err != nil {
		return 0, fmt.Errorf("looking for captures: %w", err)
	}
	total := int64(0)
	for _, path := range paths {
		if info, err := os.Lstat(path); err == nil {
			total += info.Size()
		}
	}
	return total, nil
}
