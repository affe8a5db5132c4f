// Package rundir owns the run directory: its name, its layout, and its manifest. The launcher creates one, the recorder writes
// captures into it, the merger adds results.
package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

// Names inside a run directory.
const (
	captureName  = "capture"
	traceName    = "trace.pftrace"
	matrixName   = "matrix.json"
	manifestName = "manifest.json"
	resolvedName = "profile.resolved"
	ControlName  = "control"
)

// Dir is a run directory.
type Dir struct {
	path string // absolute
}

// Path is the directory's absolute path.
func (d *Dir) Path() string { return d.path }

// Name is the last part of the path: the run's name.
func (d *Dir) Name() string { return filepath.Base(d.path) }

// Capture is where the recorder writes, one directory a node below it.
func (d *Dir) Capture() string { return filepath.Join(d.path, captureName) }

// Trace is the merged Perfetto trace.
func (d *Dir) Trace() string { return filepath.Join(d.path, traceName) }

// Matrix is the merged communication matrices.
func (d *Dir) Matrix() string { return filepath.Join(d.path, matrixName) }

// ManifestPath is the manifest.
func (d *Dir) ManifestPath() string { return filepath.Join(d.path, manifestName) }

// ResolvedPath is the flat profile that the recorder read.
func (d *Dir) ResolvedPath() string { return filepath.Join(d.path, resolvedName) }

// ReadResolved reads it.
func (d *Dir) ReadResolved() ([]byte, error) {
	text, err := readRegular(d.ResolvedPath(), mostResolved)
	if err != nil {
		return nil, fmt.Errorf("reading the run's profile: %w", err)
	}
	return text, nil
}

// Create makes the run directory at path, and the capture directory in it, both of mode 0700. What exists is never touched: the
// error is then one that errors.Is says is fs.ErrExist. Missing parents are made with the usual mode.
func Create(path string) (*Dir, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("creating run directory %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(abs), 0o777); err != nil {
		return nil, fmt.Errorf("creating run directory %s: %w", abs, err)
	}
	d := &Dir{path: abs}
	for _, dir := range []string{abs, d.Capture()} {
		if err := MkdirPrivate(dir); err != nil {
			if dir != abs {
				os.Remove(abs) // ours, and empty
			}
			return nil, fmt.Errorf("creating run directory %s: %w", abs, err)
		}
	}
	return d, nil
}

// MkdirPrivate makes a directory of mode 0700, whatever the umask: the command to come may have asked for any.
func MkdirPrivate(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return os.Chmod(dir, 0o700)
}

// Owns says whether path leads to what the run is made of (captures, clock calibrations, the flat profile, the manifest, the control file), which no result may replace.
func (d *Dir) Owns(path string) bool {
	for _, own := range []string{d.ManifestPath(), d.ResolvedPath(), d.ControlPath()} {
		if samePlace(path, own) {
			return true
		}
	}
	for dir := filepath.Dir(resolved(path)); ; dir = filepath.Dir(dir) {
		if samePlace(dir, d.Capture()) || samePlace(dir, filepath.Join(d.path, calibration.DirName)) {
			return true
		}
		if dir == filepath.Dir(dir) {
			return false
		}
	}
}

// resolved is the absolute path behind path's links, as far as there are files.
func resolved(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		return filepath.Join(dir, filepath.Base(abs))
	}
	return abs
}

// samePlace tells whether two paths lead to one file, or would: hard links count.
func samePlace(a, b string) bool {
	x, err1 := os.Stat(a)
	y, err2 := os.Stat(b)
	if err1 == nil && err2 == nil {
		return os.SameFile(x, y)
	}
	return resolved(a) == resolved(b)
}

// CreateNamed makes a run directory called name in base. Where that exists (two launches in one job step, say), name-2, name-3
// and so on are tried; the first that this process created itself is returned.
func CreateNamed(base, name string) (*Dir, error) {
	for i := 1; ; i++ {
		try := name
		if i > 1 {
			try += "-" + strconv.Itoa(i)
		}
		d, err := Create(filepath.Join(base, try))
		if err == nil || !errors.Is(err, fs.ErrExist) || i == 10_000 {
			return d, err
		}
	}
}

// Open returns the existing run directory at path. It must hold a manifest that this version can read, or captures (a run whose
// launcher died before it wrote one).
func Open(path string) (*Dir, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("opening run directory %s: %w", path, err)
	}
	d := &Dir{path: abs}
	_, err = d.ReadManifest()
	if errors.Is(err, fs.ErrNotExist) {
		info, statErr := os.Stat(d.Capture())
		if statErr == nil && info.IsDir() {
			return d, nil
		}
		return nil, fmt.Errorf("%s is not a run directory: neither %s nor %s/ in it: %w", path, manifestName, captureName, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// GeneratedName returns the name of a run directory made at now by process pid on host. Under Slurm it is
// sigmatrace-<job>[_<array task>][.r<restart>].<step>, where a launch outside a step (in a batch script or an salloc shell) has
// "launch" for the step; else sigmatrace-<host>-<time in UTC>-<pid>.
func GeneratedName(getenv func(string) string, host string, now time.Time, pid int) string {
	job := getenv("SLURM_JOB_ID")
	if job == "" {
		return fmt.Sprintf("sigmatrace-%s-%s-%d", host, now.UTC().Format("20060102T150405Z"), pid)
	}
	if array, task := getenv("SLURM_ARRAY_JOB_ID"), getenv("SLURM_ARRAY_TASK_ID"); array != "" && task != "" {
		job = array + "_" + task
	}
	if n, err := strconv.Atoi(getenv("SLURM_RESTART_COUNT")); err == nil && n > 0 {
		job += ".r" + strconv.Itoa(n)
	}
	step := getenv("SLURM_STEP_ID")
	if step == "" {
		step = "launch"
	}
	return fmt.Sprintf("sigmatrace-%s.%s", job, step)
}
