package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/profiles"
)

// clockOptions are what a profile says of the run's clock.
type clockOptions struct {
	Source    string
	WarnAbove time.Duration
	Repair    bool
}

func clockOf(p *profiles.Resolved) clockOptions {
	above, _ := time.ParseDuration(p.Text("clock.warn_above")) // the profile's reader checked it
	return clockOptions{p.Text("clock.source"), above, p.Bool("clock.repair")}
}

// clockInput takes what the command line, or else the run's profile, says of the run's clock.
func clockInput(c *cli.Context, dir *rundir.Dir, o *merge.Options) error {
	source, err := ofRun(c, dir, "clock", "clock.source", merge.ClockAuto)
	if err != nil {
		return err
	}
	if !slices.Contains(merge.ClockSources, source) {
		return &usageError{err: fmt.Errorf("--clock: %q is none of %s", source, strings.Join(merge.ClockSources, ", "))}
	}
	repair, err := ofRun(c, dir, "", "clock.repair", "false")
	if err != nil {
		return err
	}
	above, err := ofRun(c, dir, "", "clock.warn_above", "0s")
	if err != nil {
		return err
	}
	limit, err := time.ParseDuration(above)
	if err != nil {
		return fmt.Errorf("clock.warn_above of the run's profile: %w", err)
	}
	o.ClockSource, o.ClockRepair, o.ClockWarnAbove = source, repair == "true", limit
	if c.IsSet("clock-repair") {
		o.ClockRepair = c.Bool("clock-repair")
	}
	return nil
}
