package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"
)

// doctorVersion is the major version of the report's JSON, schema/doctor.schema.json; fields are only ever added to one.
const doctorVersion = 1

// Verdicts of a finding.
const (
	verdictOK      = "ok"
	verdictNote    = "note"    // works, but less well than it could
	verdictProblem = "problem" // something will not work
)

// finding is what was found out about one thing, and what to do about it.
type finding struct {
	Area    string `json:"area"`
	Verdict string `json:"verdict"`
	What    string `json:"what"`
	Hint    string `json:"hint,omitempty"`
}

// diagnosis is what doctor says of one host.
type diagnosis struct {
	Version  int               `json:"version"`
	Host     string            `json:"host"`
	Facts    map[string]string `json:"facts"` // what ought to be the same on all nodes of a cluster
	Findings []finding         `json:"findings"`
	Problems int               `json:"problems"`
	Nodes    *nodesDiagnosis   `json:"nodes,omitempty"`

	area string
}

func (d *diagnosis) add(verdict, hint, format string, args ...any) {
	d.Findings = append(d.Findings, finding{d.area, verdict, oneLine(fmt.Sprintf(format, args...)), oneLine(hint)})
	if verdict == verdictProblem {
		d.Problems++
	}
}

func (d *diagnosis) ok(format string, args ...any) { d.add(verdictOK, "", format, args...) }

func (d *diagnosis) note(hint, format string, args ...any) {
	d.add(verdictNote, hint, format, args...)
}

func (d *diagnosis) problem(hint, format string, args ...any) {
	d.add(verdictProblem, hint, format, args...)
}

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:      "doctor",
		Usage:     "check that everything fits together on this host, and with --nodes on all",
		UsageText: "sigmatrace doctor [--nodes] [--nodelist NODES] [--plugstack FILE] [--output DIR] [--json]",
		Description: "Looks at the recorder's libraries, the profiles, the libraries that are traced, the Slurm plugin with its configuration, and what\n" +
			"of the system matters. It changes nothing. The exit status is 1 where there is a problem; notes are none.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "nodes", Usage: "look at all nodes of the Slurm cluster too, by srun, and tell in what they differ"},
			&cli.StringFlag{Name: "nodelist", Usage: "as --nodes, but only at `NODES`, as Slurm writes them: n[1-4]"},
			&cli.DurationFlag{Name: "timeout", Value: 30 * time.Second, Usage: "wait for a node at most for `TIME`"},
			&cli.StringFlag{Name: "plugstack", Usage: "Slurm's plugstack.conf is `FILE`, and not where slurm.conf says"},
			&cli.StringFlag{Name: "output", Usage: "runs will be made in `DIR`"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"}},
		Action: runDoctor,
	}
}

func runDoctor(c *cli.Context) error {
	if c.NArg() != 0 {
		return &usageError{err: fmt.Errorf("%d arguments where none is taken", c.NArg()), hint: "sigmatrace doctor --help"}
	}
	if c.Duration("timeout") <= 0 {
		return &usageError{err: errors.New("--timeout is not more than nothing")}
	}
	ctx, stop := interruptible(c)
	defer stop()
	d, err := diagnose(ctx, c)
	if err != nil {
		return err
	}
	if c.Bool("nodes") || c.IsSet("nodelist") {
		if d.Nodes, err = diagnoseNodes(ctx, c, d); err != nil {
			return err
		}
	}
	if d.Problems > 0 || d.Nodes != nil && d.Nodes.Problems > 0 {
		setStatus(c, exitFailure)
	}
	if c.Bool("json") {
		return printJSON(c.App.Writer, d)
	}
	return d.print(c.App.Writer)
}

// diagnose looks at this host.
func diagnose(ctx context.Context, c *cli.Context) (*diagnosis, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("asking for this host's name: %w", err)
	}
	d := &diagnosis{Version: doctorVersion, Host: host, Facts: map[string]string{}, Findings: []finding{}}
	slurm := readSlurm(ctx, c.String("plugstack"))
	for _, area := range []struct {
		name  string
		check func()
	}{
		{"recorder", func() { d.recorder(ctx, slurm) }},
		{"profiles", func() { d.profiles(slurm) }},
		{"libraries", func() { d.traced(ctx) }},
		{"slurm", func() { d.slurm(slurm) }},
		{"system", func() { d.system(c.String("output"), slurm) }},
	} {
		d.area = area.name
		area.check()
	}
	return d, nil
}

func (d *diagnosis) print(w io.Writer) error {
	area := ""
	for _, f := range d.Findings {
		if f.Area != area {
			area = f.Area
			fmt.Fprintln(w, area)
		}
		fmt.Fprintf(w, "  %-8s %s\n", f.Verdict, f.What)
		if f.Hint != "" {
			fmt.Fprintf(w, "  %-8s %s\n", "", "hint: "+f.Hint)
		}
	}
	if d.Nodes == nil {
		_, err := fmt.Fprintf(w, "%s: %s\n", d.Host, counted(d.Problems, "problem"))
		return err
	}
	fmt.Fprintln(w, "nodes")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range d.Nodes.Differences {
		for i, v := range row.Values {
			fact := row.Fact
			if i > 0 {
				fact = ""
			}
			fmt.Fprintf(t, "  differ\t%s\t%s\t%s\n", fact, v.Value, v.Nodes)
		}
	}
	for _, f := range d.Nodes.Findings {
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", f.Verdict, f.Area, f.What, f.Nodes)
		if f.Hint != "" {
			fmt.Fprintf(t, "  \t\thint: %s\n", f.Hint)
		}
	}
	for _, u := range d.Nodes.Unreachable {
		fmt.Fprintf(t, "  unknown\t\t%s\t%s\n", u.Reason, u.Nodes)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%s: %s; %s looked at, %s\n", d.Host, counted(d.Problems, "problem"), counted(d.Nodes.Looked, "node"), counted(d.Nodes.Problems, "problem"))
	return err
}

// counted is "no problem", "1 problem", "2 problems".
func counted(n int, what string) string {
	switch n {
	case 0:
		return "no " + what
	case 1:
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, strings.TrimSuffix(what, "s"))
}
