package main

import (
	"context"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sigmatrace/sigmatrace/profiles"
)

// command is the command line to be launched.
type command struct {
	argv    []string // as the user gave it
	path    string   // the executable that argv[0] means
	environ map[string]string
	version string // what it says to --version, once asked
}

// called tells whether the command, or the file that a link of its name leads to, has one of the names.
func (c *command) called(names ...string) bool {
	if slices.Contains(names, filepath.Base(c.argv[0])) {
		return true
	}
	real, err := filepath.EvalSymlinks(c.path)
	return err == nil && slices.Contains(names, filepath.Base(real))
}

// says tells whether the command's answer to --version holds one of the words. Launchers of different makers have the same names.
func (c *command) says(ctx context.Context, words ...string) bool {
	if c.version == "" {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, c.path, "--version")
		cmd.WaitDelay = 5 * time.Second // what it leaves behind may keep its output open
		out, _ := cmd.CombinedOutput()  // a failing --version says who it is as well
		c.version = "--version: " + string(out)
	}
	return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(c.version, word) })
}

// dialect knows how one kind of launcher hands environment variables to its ranks. A new one is a file dialect_NAME.go and a row in
// dialects.
type dialect struct {
	name string
	// matches says whether the command is of this dialect; it may run the command with --version.
	matches func(context.Context, *command) bool
	// ranks returns how many ranks the command line asks for, 0 where it does not say.
	ranks func(*command) int
	// nodes returns the most hosts that the ranks may be on, 0 where it cannot be told.
	nodes func(*command) int
	// elsewhere: even a single host need not be this one, the batch system chooses it.
	elsewhere bool
	// programs returns the programs that will run as ranks, as far as the command line shows them.
	programs func(*command) []string
	// inject returns the command line and environment that hand the injection to the ranks. It has no side effects.
	inject func(*command, *injection) (*plan, error)
}

// dialects in the order in which they are asked; plain takes whatever comes.
var dialects = []dialect{openMPI, intelMPI, hydra, pals, aprun, srun, jsrun, flux, torchrun, plain}

// plan is what will be executed.
type plan struct {
	argv    []string
	environ map[string]string
	preload string // LD_PRELOAD as the ranks will have it
}

func chooseDialect(ctx context.Context, c *command) *dialect {
	i := slices.IndexFunc(dialects, func(d dialect) bool { return d.matches(ctx, c) })
	return &dialects[i]
}

// environment returns a copy of the command's environment, without an off switch that was overruled.
func (in *injection) environment(c *command) map[string]string {
	e := maps.Clone(c.environ)
	if in.clear {
		delete(e, "SIGMATRACE")
	}
	return e
}

// newCommand gives argv the executable that it means.
func newCommand(argv []string, environ []string) (*command, error) {
	c := &command{argv: argv, environ: profiles.Environ(environ)}
	var err error
	c.path, err = lookUp(argv[0], c.environ["PATH"])
	return c, err
}
