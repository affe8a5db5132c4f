package rundir

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestCommandsAreNumberedAndNotRepeated(t *testing.T) {
	d, err := Create(filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_700_000_000, 5)
	for i, c := range []struct {
		window          string
		changed         bool
		number, windows int
	}{{WindowStart, true, 1, 1}, {WindowStart, false, 1, 1}, {WindowStop, true, 2, 1}, {WindowStop, false, 2, 1}, {WindowStart, true, 3, 2}} {
		got, changed, err := d.Command(c.window, at)
		if err != nil || changed != c.changed || got.Number != c.number || got.Windows != c.windows || got.Window != c.window {
			t.Errorf("command %d: %+v, %v, %v; want %+v", i, got, changed, err, c)
		}
	}
	text, err := os.ReadFile(d.ControlPath())
	if want := "sigmatrace.control=1\nwindow=start\ntime=1700000000000000005\nnumber=3\nwindows=2\n"; err != nil || string(text) != want {
		t.Errorf("%q, %v; want %q", text, err, want)
	}
	if !d.Owns(d.ControlPath()) {
		t.Error("an export may replace the control file")
	}
}

func TestForeignControlFilesAreRefused(t *testing.T) {
	for _, text := range []string{"", "window=start\n", "sigmatrace.control=2\nwindow=start\n", "sigmatrace.control=1\nwindow=start", "sigmatrace.control=1\nwindow=maybe\n",
		"sigmatrace.control=1\nnumber=x\n"} {
		if c, err := parseControl([]byte(text)); err == nil {
			t.Errorf("%q was taken: %+v", text, c)
		}
	}
}
