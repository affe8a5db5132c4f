package profiles

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The clock of a run goes back by as long as the run has gone on, and its name fits what the recorder keeps of it.
func TestCurrentClock(t *testing.T) {
	var before, after unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &before); err != nil {
		t.Fatal(err)
	}
	c := CurrentClock(time.Now().Add(-time.Minute))
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &after); err != nil {
		t.Fatal(err)
	}
	if c == nil || c.Start < time.Duration(before.Nano())-time.Minute || c.Start > time.Duration(after.Nano())-time.Minute {
		t.Fatalf("%+v, between %d and %d a minute ago", c, before.Nano(), after.Nano())
	}
	if boot, namespace, ok := strings.Cut(c.Name, "/"); !ok || len(boot) != 36 || namespace == "" || len(c.Name) > 63 {
		t.Errorf("name %q", c.Name)
	}
}
