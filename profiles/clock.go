package profiles

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Clock is when a run began by CLOCK_MONOTONIC, which nobody sets.
type Clock struct {
	// Name says whose: it is of one boot of a host and of one time namespace (time_namespaces(7)), `<boot id>/<inode>`; the inode is 0
	// where the kernel has no such namespaces.
	Name  string
	Start time.Duration
}

// CurrentClock returns the clock of this process, for a run that began at start, a time with a monotonic reading. nil: it cannot be told
// whose clock it is.
func CurrentClock(start time.Time) *Clock {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil
	}
	var now unix.Timespec
	since := time.Since(start) // before the other clock: the start is then between start and now, whatever comes between
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return nil
	}
	var namespace uint64
	var stat syscall.Stat_t
	if syscall.Stat("/proc/self/ns/time", &stat) == nil {
		namespace = stat.Ino
	}
	return &Clock{Name: fmt.Sprintf("%s/%d", strings.TrimSpace(string(boot)), namespace), Start: time.Duration(now.Nano()) - since}
}
