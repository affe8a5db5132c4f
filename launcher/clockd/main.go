// Command sigmatrace-clockd publishes how a node's clocks stand, from time to time.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/sigmatrace/sigmatrace/launcher/calibrate"
	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

// version is set by the linker.
var version = "devel"

func main() {
	app := &cli.App{
		Name:      "sigmatrace-clockd",
		Usage:     "publish how this node's clocks stand",
		UsageText: "sigmatrace-clockd [--interval TIME] [--keep N] [--directory DIR]",
		Description: "Reads and asks what `sigmatrace calibrate` does, again and again, and keeps the last records in a file that everybody can read. Traced job steps take\n" +
			"those of their time. A clock that stands still, is set, or belongs to a servo that does not steer is said so on standard error: a step each time, the others once.",
		Version:         version,
		HideHelpCommand: true,
		Flags: append(calibrate.Flags(),
			&cli.DurationFlag{Name: "interval", Value: time.Minute, Usage: "make a record every `TIME`"},
			&cli.IntFlag{Name: "keep", Value: 1440, Usage: "keep `N` records"},
			&cli.StringFlag{Name: "directory", Value: calibrate.PublishedDir, Usage: "publish in `DIR`, which only root may be able to write"}),
		Action: run,
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	if err := app.RunContext(ctx, os.Args); err != nil {
		fmt.Fprintf(os.Stderr, "sigmatrace: error: clockd: %v\n", err)
		os.Exit(1)
	}
}

func run(c *cli.Context) error {
	o, err := calibrate.FromFlags(c)
	if err != nil {
		return err
	}
	interval, keep := c.Duration("interval"), c.Int("keep")
	switch {
	case c.NArg() > 0:
		return errors.New("it takes no arguments")
	case interval < o.Limit:
		return fmt.Errorf("--interval has to be no less than --limit, %v", o.Limit)
	case keep < 1 || keep > 10_000:
		return errors.New("--keep has to be 1 to 10000")
	}
	o.Tool, o.When = "sigmatrace-clockd "+version, calibration.During
	last, err := calibrate.Take(c.Context, o)
	if err != nil {
		return err
	}
	p, err := calibrate.NewPublisher(c.String("directory"), keep, last.Boot)
	if err != nil {
		return err
	}
	defer p.Close()
	t := teller{}
	t.tell(last)
	for tick := time.NewTicker(interval); ; {
		if err := p.Add(last); err != nil {
			fmt.Fprintf(os.Stderr, "sigmatrace: warning: clockd: %v\n", err) // there may be room the next time
		}
		select {
		case <-c.Context.Done():
			return nil
		case <-tick.C:
		}
		r, err := calibrate.Take(c.Context, o)
		if err != nil {
			return err
		}
		calibrate.Compare(last, r)
		t.tell(r)
		last = r
	}
}

// again is after how many records without it a problem is said once more.
const again = 60

// teller says what is newly wrong.
type teller map[string]int // since how many records a problem was not there

func (t teller) tell(r *calibration.Record) {
	for key := range t {
		if t[key]++; t[key] > again {
			delete(t, key)
		}
	}
	for _, p := range r.Problems {
		key := p.Name + " " + p.Clock
		if _, told := t[key]; !told || p.Name == calibration.Steps {
			fmt.Fprintf(os.Stderr, "sigmatrace: warning: clock %s: %s: %s\n", p.Clock, p.Name, p.Text)
		}
		t[key] = 0
	}
}
