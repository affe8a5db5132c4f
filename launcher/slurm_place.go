package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/profiles"
	"github.com/urfave/cli/v2"
)

// The components of a heterogeneous step are told where its run is before the step has its number: by a path in which only that and, before
// there is a job, the job's are left open, as %j and %s. %% stands for a percent sign. In front of the path is
// the time: what has the name already is not the step's.

// slurmPlace prints the step's text with such a path.
func slurmPlace(c *cli.Context) error {
	job, err := profiles.ParseJob(os.Getenv(jobVariable))
	if err != nil {
		return err
	}
	const openJob, openStep = "\x00j", "\x00s"
	getenv := func(name string) string {
		value := os.Getenv(name)
		switch {
		case name == "SLURM_STEP_ID":
			return openStep
		case name == "SLURM_JOB_ID" && value == "":
			return openJob
		}
		return value
	}
	now := time.Now()
	facts, err := profiles.CurrentFacts(getenv, now)
	if err != nil {
		return err
	}
	base, err := facts.Expand(job.Profile.Text("output.directory"))
	if err != nil {
		return fmt.Errorf("output.directory: %w", err)
	}
	path, err := filepath.Abs(filepath.Join(base, rundir.GeneratedName(getenv, facts.Host, now, facts.PID)))
	if err != nil {
		return fmt.Errorf("output.directory %s: %w", base, err)
	}
	path = strings.NewReplacer("%", "%%", "\x00", "%").Replace(path)
	_, err = fmt.Fprintf(c.App.Writer, "1;%s;@%d%s\n", job.Profile.Text("providers"), now.Unix(), path)
	return err
}

// createPlaced makes the run directory where the step's text says.
func createPlaced(text string, facts *profiles.Facts) (*rundir.Dir, error) {
	_, path, is := strings.Cut(text, ";@")
	path = strings.TrimLeft(path, "0123456789")
	if !is {
		return nil, fmt.Errorf("%q is no place of a run", text)
	}
	return rundir.Create(strings.NewReplacer("%%", "%", "%j", facts.Job, "%s", facts.Step).Replace(path))
}
