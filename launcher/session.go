package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/profiles"
	"github.com/urfave/cli/v2"
)

// session is one launch.
type session struct {
	cmd         *command
	dialect     *dialect
	profile     *profiles.Resolved
	world       int // expected ranks, 0: not known
	inject      injection
	start       time.Time
	facts       *profiles.Facts
	explicit    string // -o
	dryRun      bool
	merge       bool
	strict      bool         // --require-complete
	workers     int          // of the merge, 0: all cores
	mergeMemory int64        // of the merge, 0: as the profile says
	again       string       // the command that does a merge again which failed; "": the plain one
	spread      merge.Spread // of the merge, nil: this process alone
}

func newSession(c *cli.Context, cmd *command, req profiles.Request) (*session, error) {
	s := &session{cmd: cmd, start: time.Now(), explicit: c.String("o"), dryRun: c.Bool("dry-run"), strict: c.Bool("require-complete")}
	var err error
	if s.profile, err = profiles.Resolve(req); err != nil {
		return nil, err
	}
	s.merge = s.profile.Bool("merge.at_job_end") && !c.Bool("no-merge")
	if s.strict && !s.merge {
		return nil, &usageError{err: errors.New("--require-complete needs the merge, which is switched off"),
			hint: "leave out --no-merge and set merge.at_job_end to true"}
	}
	if s.facts, err = profiles.CurrentFacts(os.Getenv, s.start); err != nil {
		return nil, err
	}
	s.dialect = chooseDialect(c.Context, cmd)
	s.world = s.dialect.ranks(cmd)
	if s.inject.libdir, err = libraryDirectory(os.Getenv); err != nil {
		return nil, err
	}
	if s.inject.libs, err = findLibraries(s.inject.libdir, s.profile.List("providers")); err != nil {
		return nil, err
	}
	return s, s.checkPrograms(c.App.ErrWriter)
}

// candidate is the run directory's path before it is made; making it may add a number to a generated name.
func (s *session) candidate() (base, name string, err error) {
	if s.explicit != "" {
		abs, err := filepath.Abs(s.explicit)
		if err != nil {
			return "", "", fmt.Errorf("run directory %s: %w", s.explicit, err)
		}
		if _, err := os.Lstat(abs); err == nil {
			return "", "", existing(abs)
		}
		return filepath.Dir(abs), filepath.Base(abs), nil
	}
	base, err = s.facts.Expand(s.profile.Text("output.directory"))
	if err == nil {
		base, err = filepath.Abs(base)
	}
	if err != nil {
		return "", "", fmt.Errorf("output.directory: %w", err)
	}
	return base, rundir.GeneratedName(os.Getenv, s.facts.Host, s.start, s.facts.PID), nil
}

func existing(path string) error {
	return failf("name a directory that does not exist; nothing is ever overwritten", "run directory %s exists", path)
}

// captureDirectory is where ranks write: in the run directory, or in a directory of the run's own on the scratch file system, which
// this host need not have where it is the nodes'.
func (s *session) captureDirectory(dir string, nodes bool) (string, error) {
	scratch, err := s.facts.Expand(s.profile.Text("record.scratch"))
	if err != nil || scratch == "" {
		return filepath.Join(dir, "capture"), err
	}
	scratch, err = filepath.Abs(scratch)
	if err == nil && !nodes && !isDirectory(scratch) {
		err = failf("create it, or set record.scratch to another or to nothing", "scratch directory %s does not exist", scratch)
	}
	name := filepath.Base(dir)
	if s.explicit != "" { // a name of the user's own need not be unique on the scratch file system
		name += fmt.Sprintf("-%s-%d", s.start.UTC().Format(profiles.TimeFormat), s.facts.PID)
	}
	return filepath.Join(scratch, name), err
}

// prepared is all that is decided before anything is created.
type prepared struct {
	flat *profiles.Flat // what the recorder reads
	plan *plan
	*placement
}

// prepare returns what will be executed when the run directory is dir. It has no side effects.
func (s *session) prepare(dir, config string) (*prepared, error) {
	where, err := s.place(dir)
	if err != nil {
		return nil, err
	}
	p := &prepared{placement: where, flat: &profiles.Flat{Profile: s.profile, Capture: where.directory, Memory: where.memory, Run: filepath.Base(dir), World: s.world,
		Start: s.start, Clock: profiles.CurrentClock(s.start), Control: filepath.Join(dir, rundir.ControlName)}}
	if _, err := p.flat.Bytes(); err != nil {
		return nil, err
	}
	in := s.inject
	in.config = config
	p.plan, err = s.dialect.inject(s.cmd, &in)
	return p, err
}

// create makes the run directory with the flat profile and the manifest in it.
func (s *session) create() (*rundir.Dir, *prepared, error) {
	base, name, err := s.candidate()
	if err != nil {
		return nil, nil, err
	}
	// What can fail without a directory fails before there is one.
	path := filepath.Join(base, name)
	if _, err = s.prepare(path, filepath.Join(path, "profile.resolved")); err != nil {
		return nil, nil, err
	}
	var dir *rundir.Dir
	if s.explicit != "" {
		dir, err = rundir.Create(path)
		if errors.Is(err, fs.ErrExist) {
			err = existing(path)
		}
	} else {
		dir, err = rundir.CreateNamed(base, name)
	}
	if err != nil {
		return nil, nil, err
	}
	p, err := s.prepare(dir.Path(), dir.ResolvedPath())
	if err == nil {
		err = s.fill(dir, p)
	}
	if err != nil {
		p.discard(dir)
		return nil, nil, err
	}
	return dir, p, nil
}

// discard takes away what was made for a command that has not run.
func (p *prepared) discard(dir *rundir.Dir) {
	os.RemoveAll(dir.Path())
	if p == nil {
		return
	}
	if p.directory != dir.Capture() {
		os.Remove(p.directory) // empty
	}
	if p.memory != "" {
		os.RemoveAll(p.memory)
	}
}

func (s *session) fill(dir *rundir.Dir, p *prepared) error {
	if p.directory != dir.Capture() && !p.collect { // else the recorder makes it on each node
		if err := rundir.MkdirPrivate(p.directory); err != nil {
			return fmt.Errorf("creating scratch directory of the run: %w", err)
		}
	}
	if err := p.makeMemory(s.profile.Text("record.place")); err != nil {
		return err
	}
	if err := p.flat.WriteFile(dir.ResolvedPath()); err != nil {
		return err
	}
	return dir.WriteManifest(s.manifest(dir, p.plan))
}

func (s *session) manifest(dir *rundir.Dir, p *plan) *rundir.Manifest {
	m := &rundir.Manifest{
		Tool: version,
		Run: rundir.Run{
			Name: dir.Name(), Command: s.cmd.argv, Host: s.facts.Host, User: s.facts.User, Start: s.start.UTC(),
			Dialect: s.dialect.name, Preload: p.preload, Environment: rundir.AllowedEnvironment(s.cmd.environ),
		},
		Profile: rundir.Profile{Name: s.profile.Name, Values: map[string]rundir.ProfileValue{}},
	}
	if s.world > 0 {
		m.Run.ExpectedRanks = &s.world
	}
	for _, f := range s.profile.Chain {
		m.Profile.Files = append(m.Profile.Files, f.Place())
	}
	for _, v := range s.profile.Values() {
		if !v.Key.FileOnly {
			m.Profile.Values[v.Key.Name] = rundir.ProfileValue{Value: v.Text, Source: v.Source}
		}
	}
	return m
}

// run executes the command and returns its status, or exitIncomplete. Whatever goes wrong after the command has ended is said on
// standard error and changes no status, but that --require-complete is not met then.
func (s *session) run(ctx context.Context) (int, error) {
	dir, p, err := s.create()
	if err != nil {
		return 0, err
	}
	defer dir.Use()()
	if tool := s.cmd.environ["NVTX_INJECTION64_PATH"]; tool != "" && !ownName(filepath.Base(tool)) && s.profile.Bool("record.nvtx") {
		note(os.Stderr, "NVTX ranges go to %s, which NVTX_INJECTION64_PATH names, and not into the trace", tool)
	}
	if line := p.line(s.profile.Text("record.back_end")); line != "" {
		note(os.Stderr, "%s", line)
	}
	if p.memory == "" && !p.remote && s.profile.Text("record.place") == "auto" && p.withoutMemory != memoryAlready {
		note(os.Stderr, "%s", p.place())
	}
	if p.directory == dir.Capture() {
		p.warnOfLocal(os.Stderr, dir.Path())
	}
	endMoving := p.moving()
	out, err := execute(s.cmd.path, p.plan)
	left, failed := endMoving()
	if err != nil {
		p.discard(dir)
		return 0, err
	}
	p.tellLeft(dir, left, failed)
	complete := s.finish(ctx, dir, p.placement, out) && left == 0 && failed == nil
	if s.strict && out.status == 0 && !complete {
		return exitIncomplete, nil
	}
	return out.status, nil
}

// finish closes the manifest, brings the captures home and merges. It returns whether the trace is known to be complete.
func (s *session) finish(ctx context.Context, dir *rundir.Dir, p *placement, out outcome) bool {
	end := time.Now().UTC()
	err := dir.Update(func(m *rundir.Manifest) {
		m.Run.End, m.Run.Status = &end, &out.status
		if out.signal != "" {
			m.Run.Signal = &out.signal
		}
	})
	if err != nil {
		warn(os.Stderr, "", "the manifest does not say how the command ended: %v", err)
	}
	home := s.bringHome(ctx, dir, p)
	if !home && !p.collect {
		return false
	}
	if !s.merge {
		note(os.Stderr, "captures: %s", dir.Capture())
		note(os.Stderr, "merge with: sigmatrace merge %s", quote(dir.Path()))
		return false
	}
	return s.mergeRun(ctx, dir, home)
}

// bringHome moves captures from where they were written to the run directory, and says whether all are there.
func (s *session) bringHome(ctx context.Context, dir *rundir.Dir, p *placement) bool {
	if p.directory == dir.Capture() {
		return true
	}
	if p.collect {
		if err := s.collectFromNodes(ctx, dir); err != nil {
			run := quote(dir.Path())
			warn(os.Stderr, fmt.Sprintf("on each node run: sigmatrace collect %s; then: sigmatrace merge %s", run, run),
				"captures may still be in %s on the nodes: %v", p.directory, err)
			return false
		}
		return true
	}
	if err := moveTree(p.directory, dir.Capture()); err != nil {
		warn(os.Stderr, "move what is in it to where it belongs below "+dir.Capture()+", then run: sigmatrace merge "+quote(dir.Path()),
			"captures stay in %s: %v", p.directory, err)
		return false
	}
	return true
}
