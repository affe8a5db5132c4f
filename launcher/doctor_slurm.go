package main

import (
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// slurmState is what this host has of Slurm.
type slurmState struct {
	version   string // of srun, major.minor.micro; empty: not known
	without   error  // why it is not known
	plugstack string
	pluginDir string
	files     []string
	lines     []plugstackLine
	err       error // of reading the configuration
}

// line is the line for our plugin that Slurm loads; nil where there is none.
func (s *slurmState) line() *plugstackLine {
	if len(s.lines) == 0 {
		return nil
	}
	return &s.lines[0]
}

// site is what that line gives an argument, else what it is without.
func (s *slurmState) site(name, otherwise string) string {
	if l := s.line(); l != nil {
		if v := l.value(name); v != "" {
			return v
		}
	}
	return otherwise
}

func readSlurm(ctx context.Context, plugstack string) *slurmState {
	s := &slurmState{plugstack: plugstack}
	out, err := bounded(ctx, 10*time.Second, "srun", "--version")
	if s.without = err; err == nil {
		s.version = regexp.MustCompile(`[0-9]+\.[0-9]+(\.[0-9]+)?`).FindString(out)
	}
	conf := slurmConf()
	settings := map[string]string{}
	if conf != "" {
		readSettings(conf, settings, 0)
	}
	s.pluginDir = settings["plugindir"]
	if s.plugstack == "" {
		s.plugstack = settings["plugstackconfig"]
	}
	if s.plugstack == "" && conf != "" {
		s.plugstack = filepath.Join(filepath.Dir(conf), "plugstack.conf")
	}
	if s.plugstack == "" {
		s.plugstack = "/etc/slurm/plugstack.conf"
	}
	s.lines, s.files, s.err = readPlugstack(s.plugstack)
	return s
}

// slurmConf is Slurm's configuration, as its commands look for it; empty: none.
func slurmConf() string {
	for _, path := range []string{os.Getenv("SLURM_CONF"), "/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf"} {
		if path != "" && isFile(path) {
			return path
		}
	}
	return ""
}

// readSettings reads the single settings of a slurm.conf and of what it includes, their names in lower case.
func readSettings(path string, to map[string]string, depth int) {
	text, err := readConfiguration(path)
	if err != nil || depth > 8 {
		return
	}
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 2 && strings.EqualFold(words[0], "include") {
			name := words[1]
			if !filepath.IsAbs(name) {
				name = filepath.Join(filepath.Dir(path), name)
			}
			readSettings(name, to, depth+1)
			continue
		}
		if name, value, is := strings.Cut(strings.TrimSpace(line), "="); is && len(words) == 1 {
			to[strings.ToLower(name)] = strings.Trim(value, `"`)
		}
	}
}

// bounded runs a command that must not be traced, and returns what it printed on standard output.
func bounded(ctx context.Context, most time.Duration, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = untracedEnvironment()
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrWaitDelay) { // it ended well, and something that it has left behind keeps its output open
		err = nil
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		first, _, _ := strings.Cut(strings.TrimSpace(string(exit.Stderr)), "\n")
		err = fmt.Errorf("%w: %s", err, first)
	}
	return string(out), err
}

// untracedEnvironment is ours, without what would trace a command.
func untracedEnvironment() []string {
	kept := []string{"SIGMATRACE=off"}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if name != "LD_PRELOAD" && name != "SIGMATRACE" && name != "SIGMATRACE_CONFIG" && name != "SIGMATRACE_PROFILE" {
			kept = append(kept, kv)
		}
	}
	return kept
}

// slurm checks the plugin against the Slurm that is installed.
func (d *diagnosis) slurm(s *slurmState) {
	broken := s.err != nil && !errors.Is(s.err, fs.ErrNotExist) // srun itself may end of it, with another answer than that
	switch {
	case broken && s.version == "":
		d.problem("correct what follows: Slurm's commands may end of it", "srun --version: %v", s.without)
	case errors.Is(s.without, exec.ErrNotFound) && len(s.lines) == 0:
		d.note("", "no Slurm on this host: there is no srun")
		return
	case s.version == "" && len(s.lines) == 0:
		d.note("", "Slurm is not configured on this host: srun --version: %v", s.without)
		return
	case s.version == "":
		d.problem("put srun into PATH, and see to Slurm's own configuration", "the version of Slurm is not known: srun --version: %v", s.without)
	default:
		d.Facts["slurm"] = s.version
		d.ok("Slurm %s", s.version)
	}
	switch {
	case errors.Is(s.err, fs.ErrNotExist):
		d.note("to trace under Slurm, give its plugin a line there: sigmatrace-slurm(7)", "%s does not exist", s.plugstack)
		return
	case s.err != nil:
		d.problem("correct it: Slurm reads it for every job", "%v", s.err)
		return
	case s.line() == nil:
		d.note("to trace under Slurm, give its plugin a line there: sigmatrace-slurm(7)", "no line for %s in %s", pluginName, strings.Join(s.files, ", "))
		return
	}
	for _, f := range s.files {
		if err := trusted(f); err != nil {
			d.problem("root loads what it names: chown root and chmod go-w", "%v", err)
		}
	}
	if len(s.lines) > 1 {
		d.problem("keep one", "%d lines for the plugin: %s and %s", len(s.lines), s.lines[0].where, s.lines[1].where)
	}
	d.pluginLine(s, s.line())
}

func (d *diagnosis) pluginLine(s *slurmState, l *plugstackLine) {
	if l.required {
		d.problem("write optional: with required a fault of the plugin is one of every job, and drains nodes", "%s: the plugin is required", l.where)
	}
	wrong := false
	for _, a := range l.arguments {
		if err := checkArgument(a); err != nil {
			wrong = true
			d.problem("a wrong argument switches all tracing off: sigmatrace-slurm(7) has them", "%s: argument %q: %v", l.where, a, err)
		}
	}
	if !wrong {
		d.ok("%s: %s %s", l.where, l.plugin, strings.Join(l.arguments, " "))
	}
	d.plugin(s, l.plugin)
	for _, name := range []string{"command", "profile_dir", "resolved"} {
		if path := l.value(name); path != "" {
			d.sitePath(l.where, name, path)
		}
	}
	if l.value("resolved") != "" && l.value("default_profile") == "" {
		d.problem("name the default_profile that it was resolved from", "%s: resolved= does nothing without a default_profile", l.where)
	}
	if path := l.value("kill_switch"); path != "" {
		d.killSwitch(l.where, path)
	}
}

func (d *diagnosis) sitePath(where, name, path string) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		d.problem("install it there, on all nodes", "%s: %s: %v", where, name, err)
		return
	case name == "command" && (info.IsDir() || info.Mode().Perm()&0o111 == 0):
		d.problem("", "%s: %s=%s is not a program", where, name, path)
		return
	case name == "profile_dir" && info.Mode().Perm()&0o005 != 0o005:
		d.problem("chmod o+rx: profiles are read as the user", "%s: %s=%s cannot be read by all", where, name, path)
		return
	}
	if err := trusted(path); err != nil {
		d.problem("chown root and chmod go-w", "%s: %s=%s: %v", where, name, path, err)
	}
}

func (d *diagnosis) killSwitch(where, path string) {
	if _, err := os.Stat(path); err == nil {
		d.note("remove it when tracing is wanted", "%s: kill_switch=%s exists: nothing is traced on this host", where, path)
	}
	if err := trusted(filepath.Dir(path)); err != nil {
		d.problem("take a directory that only root can write to: who can make the file switches all tracing off", "%s: kill_switch=%s: %v", where, path, err)
	}
}

// plugin checks the plugin's file.
func (d *diagnosis) plugin(s *slurmState, path string) {
	if !filepath.IsAbs(path) {
		path = s.inPluginDir(path)
	}
	built, err := pluginVersion(path)
	if err != nil {
		d.problem("install the plugin there, on all hosts; where it is missing, jobs run and --sigmatrace is unknown", "plugin %s: %v", path, err)
		return
	}
	d.Facts["plugin"] = built + " build " + buildID(path)
	if err := trusted(path); err != nil {
		d.problem("root loads it: chown root and chmod go-w", "plugin %s: %v", path, err)
	}
	switch {
	case s.version == "":
		d.note("", "plugin %s is built for Slurm %s", path, built)
	case series(built) != series(s.version):
		d.problem(fitting(path, s.version), "plugin %s is built for Slurm %s, and Slurm here is %s: it is not loaded", path, series(built), s.version)
	default:
		d.ok("plugin %s is built for Slurm %s", path, built)
	}
}

// fitting says what to do about a plugin of another Slurm's: another beside it may be for this one.
func fitting(path, slurm string) string {
	beside, _ := filepath.Glob(filepath.Join(escape(filepath.Dir(path)), pluginName+"*.so"))
	for _, other := range beside {
		if v, err := pluginVersion(other); err == nil && series(v) == series(slurm) {
			return "name " + other + " in plugstack.conf, which is built for it"
		}
	}
	return "build it with the headers of Slurm " + series(slurm) + ": make SLURM_INCLUDE=..."
}

// inPluginDir is where Slurm looks for a plugin that has no absolute path.
func (s *slurmState) inPluginDir(name string) string {
	dirs := []string{s.pluginDir}
	if s.pluginDir == "" {
		dirs, _ = filepath.Glob("/usr/lib*/*/slurm-wlm")
		dirs = append(dirs, "/usr/lib64/slurm", "/usr/lib/slurm", "/usr/local/lib/slurm")
	}
	for _, dir := range dirs {
		if path := filepath.Join(dir, name); isFile(path) {
			return path
		}
	}
	return filepath.Join(dirs[0], name)
}

// series is the major and minor version.
func series(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// pluginVersion is the version of Slurm that a plugin was built for: its symbol plugin_version, which Slurm compares.
func pluginVersion(path string) (string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return "", fmt.Errorf("reading its symbols: %w", err)
	}
	for _, sym := range symbols {
		if sym.Name != "plugin_version" || int(sym.Section) >= len(f.Sections) {
			continue
		}
		section := f.Sections[sym.Section]
		var word [4]byte
		if _, err := section.ReadAt(word[:], int64(sym.Value-section.Addr)); err != nil { //nolint:gosec // an offset that is none gives an error
			return "", fmt.Errorf("reading plugin_version: %w", err)
		}
		v := binary.LittleEndian.Uint32(word[:])
		if f.ByteOrder == binary.BigEndian {
			v = binary.BigEndian.Uint32(word[:])
		}
		return fmt.Sprintf("%d.%02d.%d", v>>16&0xff, v>>8&0xff, v&0xff), nil
	}
	return "", errors.New("it has no symbol plugin_version: no plugin of Slurm's")
}

func ownerOf(info fs.FileInfo) (uid uint32, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return st.Uid, true
}
