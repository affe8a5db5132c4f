package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"strings"

	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

func collectCommand() *cli.Command {
	return &cli.Command{
		Name:      "collect",
		Usage:     "move this host's captures from where they were written to the run directory",
		UsageText: "sigmatrace collect [--within TIME] [--part HOST.JOB.STEP] RUN",
		ArgsUsage: "RUN",
		Description: "For runs whose captures did not come home from the nodes (record.scratch, and under the Slurm plugin record.place too), because the\n" +
			"launcher died, a node could not be reached then, or the time was over: run it on each node, then sigmatrace merge. Nothing is\n" +
			"overwritten, and it can be repeated. The Slurm plugin runs it when the last task of a node has ended. The exit status is 3 where\n" +
			"something is left here.",
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "within", Usage: "stop after `TIME`, such as 4s; what was not moved then stays; 0: no limit"},
			&cli.StringFlag{Name: "part", Usage: "as the Slurm plugin does it: only what is of `HOST.JOB.STEP`, whose tasks have ended"}},
		Action: runCollect,
	}
}

func runCollect(c *cli.Context) error {
	if c.NArg() != 1 {
		return &usageError{err: errors.New("collect takes one run directory"), hint: "sigmatrace collect RUN"}
	}
	ctx, stop := interruptible(c)
	if c.IsSet("part") { // who ends the step's tasks signals this too, and it is for when they have ended
		stop()
		signal.Ignore(unix.SIGTERM, unix.SIGINT)
		ctx = c.Context
	}
	defer stop()
	if within := c.Duration("within"); within > 0 {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, within)
		defer end()
		context.AfterFunc(ctx, func() { signal.Reset(unix.SIGTERM) })
	}
	dir, err := rundir.Open(c.Args().First())
	if err != nil {
		return err
	}
	if isDirectory(dir.NodesPath()) {
		return collectNodeLocal(ctx, c, dir)
	}
	fetchMemory(os.Stderr, dir)
	return collectRun(dir)
}

// collectNodeLocal collects after steps under the Slurm plugin. The plugin itself leaves the manifest to the end of the step.
func collectNodeLocal(ctx context.Context, c *cli.Context, dir *rundir.Dir) error {
	var home bool
	var err error
	part := c.String("part")
	if part != "" {
		home, err = collectOwn(ctx, dir, part)
	} else {
		home, err = collectParts(ctx, dir)
	}
	if err == nil && part == "" {
		var nodes []rundir.Node
		nodes, err = dir.TakeNodes()
		for i := range nodes {
			if n := &nodes[i]; n.Host == nodeName() && n.Left() {
				warnLeft(os.Stderr, dir, n)
			}
		}
	}
	if err == nil && !home {
		setStatus(c, exitIncomplete)
	}
	return err
}

// collectRun brings home what the run left in a scratch directory. Without one there is nothing to bring: where the run was recorded then is a
// run directory, this one or, for a copy, another's, which keeps what it has.
func collectRun(dir *rundir.Dir) error {
	m, err := dir.ReadManifest()
	if err != nil {
		return err
	}
	if m.Profile.Values["record.scratch"].Value == "" {
		note(os.Stderr, "nothing to collect: record.scratch was not set, captures were written to the run directory")
		return nil
	}
	from, err := recordedDirectory(dir)
	if err != nil {
		return err
	}
	return collect(from, dir.Capture())
}

// recordedDirectory is where the recorder was told to write: capture.directory of the flat profile.
func recordedDirectory(dir *rundir.Dir) (string, error) {
	text, err := dir.ReadResolved()
	if err != nil {
		return "", fmt.Errorf("reading where captures were written: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if path, is := strings.CutPrefix(line, "capture.directory="); is {
			return strings.TrimSuffix(path, "\n"), nil
		}
	}
	return "", fmt.Errorf("reading where captures were written: %s has no capture.directory", dir.ResolvedPath())
}

// collect moves captures from this host's directory from to the run's. A host without the directory has recorded nothing. Hosts that
// share it take turns.
func collect(from, to string) error {
	f, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("collecting captures: %w", err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err == nil { // a file system without locks is hardly shared
		if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
			return nil // it was another's turn before
		}
	}
	if err := moveTree(from, to); err != nil {
		return fmt.Errorf("collecting captures: %w", err)
	}
	return nil
}

// collectStep is the job step that collects on each node of the allocation: srun's words and its environment, which keeps nothing of
// the job's own wishes for its steps.
func collectStep(srunPath, self, run string, environ map[string]string) ([]string, []string) {
	nodes := environ["SLURM_JOB_NUM_NODES"]
	argv := []string{srunPath, "--jobid=" + environ["SLURM_JOB_ID"], "--nodes=" + nodes, "--ntasks=" + nodes, "--ntasks-per-node=1",
		"--overlap", "--mpi=none", "--input=none", "--immediate=60", "--job-name=sigmatrace-collect", "--export=NONE", self, "collect", run}
	var env []string
	for _, name := range sortedNames(environ) {
		if name == "SLURM_CONF" || !strings.HasPrefix(name, "SLURM_") && !strings.HasPrefix(name, "SRUN_") && !strings.HasPrefix(name, "SLURMD_") {
			env = append(env, name+"="+environ[name])
		}
	}
	return argv, env
}

// collectFromNodes runs that step and waits for it. SIGINT and SIGTERM end it; captures are then in one place or the other.
func (s *session) collectFromNodes(ctx context.Context, dir *rundir.Dir) error {
	srunPath, err := lookUp("srun", s.cmd.environ["PATH"])
	if s.dialect.name == srun.name {
		srunPath, err = s.cmd.path, nil
	}
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program's own path: %w", err)
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	argv, env := collectStep(srunPath, self, dir.Path(), s.cmd.environ)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, os.Stderr, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("job step on the nodes: %w", err)
	}
	return nil
}
