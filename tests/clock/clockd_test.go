//go:build clock

package clock

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

// published waits for so many records after a time of the monotonic clock, and returns all that are there.
func published(t *testing.T, dir string, more int, after int64) []*calibration.Record {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		f, err := os.Open(filepath.Join(dir, "records"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		records, damaged, err := calibration.Read(f)
		f.Close()
		if err != nil || damaged > 0 {
			t.Fatalf("%d damaged, %v", damaged, err)
		}
		later := 0
		for _, r := range records {
			if r.Reading.Monotonic > after {
				later++
			}
		}
		if later >= more {
			return records
		}
	}
	t.Fatal("nothing is published")
	return nil
}

// The daemon keeps the last records, goes on where a killed one ended, suffers no second one, and ends when told to.
func TestClockd(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sigmatrace", "clock")
	daemon := func(interval string) *exec.Cmd {
		return exec.Command(built(t, "bin/sigmatrace-clockd"), "--directory", dir, "--limit", "50ms", "--interval", interval, "--keep", "4")
	}
	start := func(interval string) *exec.Cmd {
		cmd := daemon(interval)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		return cmd
	}
	first := start("50ms")
	records := published(t, dir, 4, 0)
	out, err := daemon("50ms").CombinedOutput()
	if want := "sigmatrace: error: clockd: another process publishes in " + dir + "\n"; err == nil || string(out) != want {
		t.Errorf("a second one: %v, %q", err, out)
	}
	first.Process.Kill()
	first.Wait()
	killed := published(t, dir, 4, 0)
	last := killed[len(killed)-1].Reading.Monotonic
	second := start("1h") // it makes one record at once; three of the first stay, however late we look
	kept := published(t, dir, 1, last)
	if len(kept) != 4 || len(records) != 4 || kept[0].Reading.Monotonic > last {
		t.Errorf("%d and %d records, want 4 with some of before", len(records), len(kept))
	}
	for i, r := range kept {
		if r.When != calibration.During || !strings.HasPrefix(r.Tool, "sigmatrace-clockd ") || i > 0 && r.Reading.Monotonic <= kept[i-1].Reading.Monotonic {
			t.Errorf("record %d: %s by %s at %d", i, r.When, r.Tool, r.Reading.Monotonic)
		}
	}
	second.Process.Signal(unix.SIGTERM)
	if err := second.Wait(); err != nil {
		t.Errorf("told to end: %v", err)
	}
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 2 { // records and lock
		t.Errorf("%v, %v", names, err)
	}
}

func TestClockdTrustsNoDirectoryOfOthers(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(built(t, "bin/sigmatrace-clockd"), "--directory", dir).CombinedOutput()
	if err == nil || !strings.HasPrefix(string(out), "sigmatrace: error: clockd: "+dir+" is not trusted: ") {
		t.Errorf("%v, %q", err, out)
	}
}

// Wrong options are refused, in words.
func TestWrongOptions(t *testing.T) {
	for _, c := range []struct {
		program string
		args    []string
		status  int
		says    string
	}{
		{"sigmatrace", []string{"calibrate", "--when", "never"}, 2, `--when: "never" is none of step-begin, step-end, during, by-hand`},
		{"sigmatrace", []string{"calibrate", "--limit", "0s"}, 2, "--limit has to be more than 0"},
		{"sigmatrace", []string{"calibrate", "--ptp-domain", "256"}, 2, "--ptp-domain has to be 0 to 255"},
		{"sigmatrace", []string{"calibrate", "now"}, 2, "calibrate takes no arguments"},
		{"sigmatrace-clockd", []string{"--interval", "1s"}, 1, "--interval has to be no less than --limit"},
		{"sigmatrace-clockd", []string{"--keep", "0"}, 1, "--keep has to be 1 to 10000"},
	} {
		out, err := exec.Command(built(t, "bin/"+c.program), c.args...).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != c.status || !strings.Contains(string(out), c.says) {
			t.Errorf("%s %q: %v\n%s", c.program, c.args, err, out)
		}
	}
}
