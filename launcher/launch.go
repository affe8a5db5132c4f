package main

import (
	"errors"
	"fmt"
	"maps"
	"os"

	"github.com/sigmatrace/sigmatrace/profiles"
	"github.com/urfave/cli/v2"
)

func launchCommand() *cli.Command {
	return &cli.Command{
		Name:      "launch",
		Usage:     "run a command with recording, then merge what it recorded",
		ArgsUsage: "-- COMMAND...",
		UsageText: "sigmatrace launch [-p PROFILE] [--providers LIST] [--set key=value]... [-o DIR]\n" +
			"                  [--dry-run] [--no-merge] [--require-complete] -- COMMAND...",
		Description: "COMMAND is an application, a script, or a launcher such as mpirun or srun with its arguments. It keeps its input,\n" +
			"output and error streams; its exit status is returned, 128+n when signal n ended it.",
		Flags: append(profileFlags(),
			&cli.StringFlag{Name: "o", Usage: "make the run directory `DIR`, which must not exist"},
			&cli.BoolFlag{Name: "dry-run", Usage: "print the exact command and environment, run and create nothing"},
			&cli.BoolFlag{Name: "no-merge", Usage: "leave the captures to a later sigmatrace merge"},
			&cli.BoolFlag{Name: "require-complete", Usage: "return 3 when the command succeeded and its trace is incomplete"},
		),
		Action: launch,
	}
}

// profileFlags are the options that choose a profile and change its values.
func profileFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "p", Aliases: []string{"profile"}, Usage: "record by `PROFILE`: a name that sigmatrace profile list shows, a file, or off"},
		&cli.StringFlag{Name: "providers", Usage: "record the calls of these libraries, comma separated `LIST`"},
		&cli.StringSliceFlag{Name: "set", Usage: "set one key of the profile, as `key=value`; may be given several times"},
	}
}

// request turns the flags and the environment into what profiles.Resolve takes.
func request(c *cli.Context) profiles.Request {
	return profiles.Request{
		Profile:   c.String("p"),
		Providers: c.String("providers"),
		Set:       c.StringSlice("set"),
		Environ:   profiles.Environ(os.Environ()),
		Search:    profiles.DefaultSearch(os.Getenv),
	}
}

func launch(c *cli.Context) error {
	if c.NArg() == 0 {
		return &usageError{err: errors.New("no command to launch"), hint: "sigmatrace launch [options] -- COMMAND..."}
	}
	if !c.Bool("dry-run") {
		outliveReaders()
	}
	cmd, err := newCommand(c.Args().Slice(), os.Environ())
	if err != nil {
		return err
	}
	req := request(c)
	off, overruled, err := switchedOff(&req)
	if err != nil {
		return err
	}
	if off {
		return launchUntraced(c, cmd)
	}
	s, err := newSession(c, cmd, req)
	if err != nil {
		return err
	}
	s.inject.clear = overruled
	if s.dryRun {
		return s.printDryRun(c.App.Writer)
	}
	status, err := s.run(c.Context)
	setStatus(c, status)
	return err
}

// switchedOff says whether tracing is off: by SIGMATRACE=off, which only a profile on the command line overrules, or by the
// profile called off.
func switchedOff(req *profiles.Request) (off, overruled bool, err error) {
	value := req.Environ["SIGMATRACE"]
	if value != "" && value != profiles.Off {
		return false, false, &profiles.Problem{Where: "SIGMATRACE", What: fmt.Sprintf("%q is not valid", value), Valid: []string{profiles.Off}}
	}
	name, _ := req.Named()
	if name == profiles.Off {
		return true, false, nil
	}
	overruled = value == profiles.Off && req.Profile != ""
	return value == profiles.Off && !overruled, overruled, nil
}

// launchUntraced runs the command as if it had been started without us.
func launchUntraced(c *cli.Context, cmd *command) error {
	p := &plan{argv: cmd.argv, environ: cmd.environ}
	if _, inside := cmd.environ["SIGMATRACE_CONFIG"]; inside { // an enclosing launch has set a preload: switch it off
		p.environ = maps.Clone(cmd.environ)
		p.environ["SIGMATRACE"] = profiles.Off
	}
	if c.Bool("dry-run") {
		return printCommand(c.App.Writer, cmd, p)
	}
	if c.Bool("require-complete") {
		return &usageError{err: errors.New("--require-complete cannot hold: tracing is off"), hint: "name a profile with -p"}
	}
	out, err := execute(cmd.path, p)
	setStatus(c, out.status)
	return err
}
