package calibrate

import (
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

// counter reads the counter that the recorder stamps with: the TSC, or CNTVCT_EL0.
func counter() uint64

var counterName = map[string]string{"amd64": "tsc", "arm64": "cntvct"}[runtime.GOARCH]

const readings = 32

// read reads counter and clocks many times and returns the tightest: first by how long all of it took, since that is when nobody came between.
func read() (calibration.Reading, error) {
	runtime.LockOSThread() // counters of two processors may differ
	defer runtime.UnlockOSThread()
	var best calibration.Reading
	least := ^uint64(0)
	for range readings {
		var monotonic unix.Timespec
		before := counter()
		wall := time.Now() // by the vDSO; package unix makes a system call
		after := counter()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &monotonic); err != nil {
			return best, fmt.Errorf("reading CLOCK_MONOTONIC: %w", err)
		}
		if took := counter() - before; took < least {
			least = took
			best = calibration.Reading{Counter: counterName, Before: before, After: after, Realtime: wall.UnixNano(), Monotonic: monotonic.Nano()}
		}
	}
	return best, nil
}
