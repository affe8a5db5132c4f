package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/profiles"
)

// earlier makes a run directory as a merged run leaves it.
func earlier(t *testing.T, base, name, profile, command string, start time.Time, events, captures int64, ranks int) {
	t.Helper()
	dir, err := rundir.Create(filepath.Join(base, name))
	if err != nil {
		t.Fatal(err)
	}
	info := merge.Info{Version: merge.InfoVersion, Run: name, Ranks: merge.Ranks{Active: ranks}, Processes: merge.Processes{Total: ranks},
		Events: merge.Events{Total: events}, Bytes: merge.Bytes{Capture: captures}}
	result, err := info.JSON()
	if err != nil {
		t.Fatal(err)
	}
	m := &rundir.Manifest{Run: rundir.Run{Name: name, Command: strings.Fields(command), Start: start}, Profile: rundir.Profile{Name: profile}, Result: result}
	if err := dir.WriteManifest(m); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir.Trace(), make([]byte, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestDryRunTellsTheSizeOfTheLastRunOfTheCommand(t *testing.T) {
	base := t.TempDir()
	day := func(n int) time.Time { return time.Date(2026, 1, n, 0, 0, 0, 0, time.UTC) }
	earlier(t, base, "first", "full", "mpirun -np 4 app", day(1), 7, 70, 4)
	earlier(t, base, "last", "full", "mpirun -np 4 app", day(3), 1000, 4<<20, 4)
	earlier(t, base, "other-profile", "simple", "mpirun -np 4 app", day(4), 8, 80, 4)
	earlier(t, base, "other-command", "full", "mpirun -np 5 app", day(5), 9, 90, 5)
	if err := os.MkdirAll(filepath.Join(base, "broken"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(base, "broken", "manifest.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	said := func(profile, command string) string {
		var b strings.Builder
		s := &session{cmd: commandOf(command, nil), profile: &profiles.Resolved{Name: profile}}
		s.printEstimate(&b, []string{filepath.Join(base, "none"), base})
		return b.String()
	}
	want := "# trace size of the last run of this command, " + filepath.Join(base, "last") + " (2026-01-03T00:00:00Z), not scaled:\n" +
		"#   1000 events, captures 4096 KiB in 4 ranks, 1024 KiB a rank, trace.pftrace 3072 KiB\n"
	if got := said("full", "mpirun -np 4 app"); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := said("full", "mpirun -np 6 app"); !strings.HasPrefix(got, "# trace size: no merged run of this command") {
		t.Errorf("got %s", got)
	}
}
