package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"

	"github.com/urfave/cli/v2"

	"github.com/sigmatrace/sigmatrace/launcher/calibrate"
	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

func calibrateCommand() *cli.Command {
	return &cli.Command{
		Name:      "calibrate",
		Usage:     "tell how this node's clocks stand",
		UsageText: "sigmatrace calibrate [--json]",
		Description: "Reads the counter beside the system clock and the NICs' PTP clocks, and asks ptp4l, chronyd or ntpd how far the system clock is off. Only reads; what\n" +
			"it may not read, which as a user may be ptp4l and the hardware clocks, it names. merge/calibration/ describes the record.",
		Flags: append(calibrate.Flags(),
			&cli.BoolFlag{Name: "json", Usage: "print the record, a line of JSON"},
			&cli.StringFlag{Name: "when", Value: string(calibration.ByHand), Usage: "write down that it is of `WHEN`: step-begin, step-end, during, by-hand"},
			&cli.StringFlag{Name: "published", Value: calibrate.PublishedDir, Usage: "what sigmatrace-clockd published is in `DIR`"},
			&cli.Int64Flag{Name: "since", Value: -1, Usage: "print first what was published after `NS` of the monotonic clock"}),
		Action: runCalibrate,
	}
}

func runCalibrate(c *cli.Context) error {
	if c.NArg() > 0 {
		return &usageError{err: errors.New("calibrate takes no arguments")}
	}
	o, err := calibrate.FromFlags(c)
	if err != nil {
		return &usageError{err: err}
	}
	o.Tool = "sigmatrace calibrate " + version
	switch o.When = calibration.When(c.String("when")); o.When {
	case calibration.StepBegin, calibration.StepEnd, calibration.During, calibration.ByHand:
	default:
		return &usageError{err: fmt.Errorf("--when: %q is none of step-begin, step-end, during, by-hand", o.When)}
	}
	ctx, stop := interruptible(c)
	defer stop()
	record, err := calibrate.Take(ctx, o)
	if err != nil {
		return err
	}
	var records []*calibration.Record
	if since := c.Int64("since"); since >= 0 {
		records, err = calibrate.Published(c.String("published"), record.Boot, since)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			record.Unread = append(record.Unread, calibration.Unread{What: "what sigmatrace-clockd published", Why: err.Error()})
		}
		records = calibrate.Pick(records, calibrate.MaxPicked)
	}
	var out bytes.Buffer
	for i, r := range append(records, record) {
		if c.Bool("json") {
			line, err := r.Line()
			if err != nil {
				return err
			}
			out.Write(line)
			continue
		}
		if i > 0 {
			out.WriteString("\n")
		}
		calibrate.Print(&out, r)
	}
	_, err = c.App.Writer.Write(out.Bytes())
	return err
}
