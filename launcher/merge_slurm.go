package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/merge/spread"
	"github.com/sigmatrace/sigmatrace/profiles"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

// workerEnd is how long a job step of workers has to end when the merge has.
const workerEnd = 10 * time.Second

// errNoAllocation is the error of --slurm outside of a job.
var errNoAllocation = &usageError{err: errors.New("--slurm needs an allocation of Slurm's: SLURM_JOB_ID is not set"), hint: "run it in salloc or in a batch script"}

// slurmWorkers returns how a merge of dir gets workers: one job step over all nodes of the allocation, with so many cores on each, 0 for all.
func slurmWorkers(dir *rundir.Dir, cores int, environ map[string]string) (merge.Spread, error) {
	nodes, err := strconv.Atoi(environ["SLURM_JOB_NUM_NODES"])
	if environ["SLURM_JOB_ID"] == "" || err != nil || nodes < 1 {
		return nil, errNoAllocation
	}
	srunPath, err := lookUp("srun", environ["PATH"])
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program's own path: %w", err)
	}
	var polite []string // other steps of the job may be at work on its nodes
	if nice, err := lookUp("nice", environ["PATH"]); err == nil {
		polite = []string{nice, "-n", "10"}
	}
	return func(folder string, ended func()) func() {
		command := append(polite, self, "merge", "--worker="+folder, "-j", strconv.Itoa(cores), dir.Path())
		argv, env := workerStep(srunPath, command, nodes, environ)
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env, cmd.Stdout, cmd.Stderr = env, os.Stderr, os.Stderr
		cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // a key pressed ends the merge, and that its workers
		if err := cmd.Start(); err != nil {
			warn(os.Stderr, "", "this process merges alone: starting a job step: %v", err)
			ended()
			return func() {}
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := cmd.Wait(); err != nil {
				warn(os.Stderr, "", "not all workers of the merge have ended well: srun: %v", err)
			}
			ended()
		}()
		return func() {
			for _, s := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
				select {
				case <-done:
					return
				case <-time.After(workerEnd):
					cmd.Process.Signal(s)
				}
			}
			<-done
		}
	}, nil
}

// workerStep is the job step of a command on each node: srun's words and its environment, which keeps nothing of the job's own wishes for its
// steps. It goes on where a node or a task of it is lost, and is not traced.
func workerStep(srunPath string, command []string, nodes int, environ map[string]string) ([]string, []string) {
	n := strconv.Itoa(nodes)
	argv := []string{srunPath, "--jobid=" + environ["SLURM_JOB_ID"], "--nodes=" + n, "--ntasks=" + n, "--ntasks-per-node=1", "--overlap", "--mem=0",
		"--mpi=none", "--input=none", "--immediate=60", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--quiet", "--job-name=sigmatrace-merge", "--export=NONE"}
	var env []string
	for _, name := range sortedNames(environ) {
		own := strings.HasPrefix(name, "SIGMATRACE") || name == "LD_PRELOAD"
		if name == "SLURM_CONF" || !own && !strings.HasPrefix(name, "SLURM_") && !strings.HasPrefix(name, "SRUN_") && !strings.HasPrefix(name, "SLURMD_") {
			env = append(env, name+"="+environ[name])
		}
	}
	return append(argv, command...), append(env, "SIGMATRACE=off")
}

// spreadOf gets the workers that the options ask for.
func spreadOf(c *cli.Context, dir *rundir.Dir) (merge.Spread, error) {
	if !c.Bool("slurm") {
		return nil, nil
	}
	return slurmWorkers(dir, c.Int("j"), profiles.Environ(os.Environ()))
}

// helpMerge is what such a step runs on each node.
func helpMerge(c *cli.Context) error {
	dir, err := rundir.Open(c.Args().First())
	if err != nil {
		return err
	}
	ctx, stop := interruptible(c)
	defer stop()
	err = merge.Work(ctx, dir, c.String("worker"), merge.Options{Workers: c.Int("j")})
	if err != nil && !errors.Is(err, spread.ErrOver) {
		host, _ := os.Hostname() // of several, for people
		return fmt.Errorf("helping a merge on %s: %w", host, err)
	}
	return nil
}

// tellHelpers says which nodes did how much of a merge.
func tellHelpers(units map[string]int) {
	var list []string
	for _, host := range slices.Sorted(maps.Keys(units)) {
		list = append(list, fmt.Sprintf("%s %d", host, units[host]))
	}
	if len(list) == 0 {
		warn(os.Stderr, "", "no node has helped: this process has merged alone")
		return
	}
	note(os.Stderr, "units of the merge by node: %s", strings.Join(list, ", "))
}
