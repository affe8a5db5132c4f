package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/profiles"
	"github.com/urfave/cli/v2"
)

// session is one launch.
type session struct {
	cmd      *command
	dialect  *dialect
	profile  *profiles.Resolved
	world    int // expected ranks, 0: not known
	inject   injection
	start    time.Time
	facts    *profiles.Facts
	explicit string // -o
	dryRun   bool
	merge    bool
	strict   bool // --require-complete
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

// captureDirectory is where ranks write: in the run directory, or in a directory of the run's own on the scratch file system.
func (s *session) captureDirectory(dir string) (string, error) {
	scratch, err := s.facts.Expand(s.profile.Text("record.scratch"))
	if err != nil || scratch == "" {
		return filepath.Join(dir, "capture"), err
	}
	scratch, err = filepath.Abs(scratch)
	if err == nil && !isDirectory(scratch) {
		err = failf("create it, or set record.scratch to another or to nothing", "scratch directory %s does not exist", scratch)
	}
	name := filepath.Base(dir)
	if s.explicit != "" { // a name of the user's own need not be unique on the scratch file system
		name += fmt.Sprintf("-%s-%d", s.start.UTC().Format(profiles.TimeFormat), s.facts.PID)
	}
	return filepath.Join(scratch, name), err
}

// flat is the file that the recorder reads, for the run directory dir.
func (s *session) flat(dir string) (*profiles.Flat, error) {
	capture, err := s.captureDirectory(dir)
	if err != nil {
		return nil, err
	}
	return &profiles.Flat{Profile: s.profile, Capture: capture, Run: filepath.Base(dir), World: s.world}, nil
}

// prepare returns what will be executed when the run directory is dir. It has no side effects.
func (s *session) prepare(dir, config string) (*profiles.Flat, *plan, error) {
	flat, err := s.flat(dir)
	if err != nil {
		return nil, nil, err
	}
	if _, err := flat.Bytes(); err != nil {
		return nil, nil, err
	}
	in := s.inject
	in.config = config
	p, err := s.dialect.inject(s.cmd, &in)
	return flat, p, err
}

// create makes the run directory with the flat profile and the manifest in it.
func (s *session) create() (*rundir.Dir, *profiles.Flat, *plan, error) {
	base, name, err := s.candidate()
	if err != nil {
		return nil, nil, nil, err
	}
	// What can fail without a directory fails before there is one.
	path := filepath.Join(base, name)
	if _, _, err = s.prepare(path, filepath.Join(path, "profile.resolved")); err != nil {
		return nil, nil, nil, err
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
		return nil, nil, nil, err
	}
	flat, p, err := s.prepare(dir.Path(), dir.ResolvedPath())
	if err == nil {
		err = s.fill(dir, flat, p)
	}
	if err != nil {
		os.RemoveAll(dir.Path()) // ours alone, and nothing has run
		return nil, nil, nil, err
	}
	return dir, flat, p, nil
}

func (s *session) fill(dir *rundir.Dir, flat *profiles.Flat, p *plan) error {
	if flat.Capture != dir.Capture() {
		if err := rundir.MkdirPrivate(flat.Capture); err != nil {
			return fmt.Errorf("creating scratch directory of the run: %w", err)
		}
	}
	if err := flat.WriteFile(dir.ResolvedPath()); err != nil {
		return err
	}
	return dir.WriteManifest(s.manifest(dir, p))
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
	dir, flat, p, err := s.create()
	if err != nil {
		return 0, err
	}
	out, err := execute(s.cmd.path, p)
	if err != nil {
		os.RemoveAll(dir.Path()) // ours alone, and nothing has run
		if flat.Capture != dir.Capture() {
			os.Remove(flat.Capture) // empty
		}
		return 0, err
	}
	complete := s.finish(ctx, dir, flat, out)
	if s.strict && out.status == 0 && !complete {
		return exitIncomplete, nil
	}
	return out.status, nil
}

// finish closes the manifest, brings the captures home and merges. It returns whether the trace is known to be complete.
func (s *session) finish(ctx context.Context, dir *rundir.Dir, flat *profiles.Flat, out outcome) bool {
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
	if flat.Capture != dir.Capture() {
		if err := moveTree(flat.Capture, dir.Capture()); err != nil {
			warn(os.Stderr, "move what is in it to where it belongs below "+dir.Capture()+", then run: sigmatrace merge "+quote(dir.Path()),
				"captures stay in %s: %v", flat.Capture, err)
			return false
		}
	}
	if !s.merge {
		note(os.Stderr, "captures: %s", dir.Capture())
		note(os.Stderr, "merge with: sigmatrace merge %s", quote(dir.Path()))
		return false
	}
	return s.mergeRun(ctx, dir)
}
