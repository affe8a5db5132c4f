package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// printEstimate says how large the last merged run of the same command with the same profile was. Nothing is scaled: a run with other
// data or more steps differs from it as the command itself does.
func (s *session) printEstimate(w io.Writer, bases []string) {
	dir, m := s.lastRun(bases)
	if dir == nil {
		fmt.Fprintf(w, "# trace size: no merged run of this command with profile %s is in %s\n", s.profile.Name, strings.Join(bases, ", "))
		return
	}
	info, err := merge.ParseInfo(m.Result)
	if err != nil {
		return // of a newer version
	}
	ranks := max(info.Ranks.Active, info.Processes.Total, 1)
	fmt.Fprintf(w, "# trace size of the last run of this command, %s (%s), not scaled:\n", dir.Path(), m.Run.Start.Format(time.RFC3339))
	fmt.Fprintf(w, "#   %d events, captures %s in %d ranks, %s a rank", info.Events.Total, merge.Size(info.Bytes.Capture), ranks, merge.Size(info.Bytes.Capture/int64(ranks)))
	if st, err := os.Stat(dir.Trace()); err == nil {
		fmt.Fprintf(w, ", %s %s", filepath.Base(dir.Trace()), merge.Size(st.Size()))
	}
	fmt.Fprintln(w)
}

// bases are the directories where earlier runs may be: that of the present one, and output.directory as it was for other jobs and times.
func (s *session) bases(present string) []string {
	others := strings.NewReplacer("%%", "%%", "%j", "*", "%s", "*", "%t", "*", "%p", "*").Replace(s.profile.Text("output.directory"))
	list := []string{present}
	pattern, err := s.facts.Expand(others)
	if err == nil {
		pattern, err = filepath.Abs(pattern)
	}
	if err != nil {
		return list
	}
	matches, err := filepath.Glob(pattern)
	if err != nil {
		return list
	}
	for _, dir := range matches {
		if !slices.Contains(list, dir) {
			list = append(list, dir)
		}
	}
	return list
}

// lastRun finds the run directory of the same command and profile that was started last, among those in the directories.
func (s *session) lastRun(bases []string) (last *rundir.Dir, lastManifest *rundir.Manifest) {
	for _, base := range bases {
		entries, err := os.ReadDir(base)
		if err != nil {
			continue // not made yet, or not ours to read
		}
		for _, e := range entries {
			path := filepath.Join(base, e.Name())
			if !isFile(filepath.Join(path, "manifest.json")) {
				continue
			}
			dir, err := rundir.Open(path)
			if err != nil {
				continue
			}
			m, err := dir.ReadManifest()
			if err != nil || m.Result == nil || m.Profile.Name != s.profile.Name || !slices.Equal(m.Run.Command, s.cmd.argv) {
				continue
			}
			if lastManifest == nil || m.Run.Start.After(lastManifest.Run.Start) {
				last, lastManifest = dir, m
			}
		}
	}
	return last, lastManifest
}
