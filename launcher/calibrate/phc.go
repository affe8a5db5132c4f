package calibrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/facebook/time/phc"
	"golang.org/x/sys/unix"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

const (
	phcLimit = 300 * time.Millisecond // for one reading of one clock: a NIC that is being reset answers late or never
	phcPause = 5 * time.Millisecond   // between two readings, at least: by them a clock that stands still is seen
	maxPHCs  = 64
	tries    = 9 // as many as the kernel is told to make for EXTENDED
)

// hardwareReading is one comparison of a hardware clock with the system clock.
type hardwareReading struct {
	method    string
	offset    int64 // hardware less system
	bracket   int64
	time      int64 // of the hardware, ns since its epoch
	monotonic int64 // when it was read, in the middle of
	took      int64 // so many ns
}

// hung has the devices of which a reading did not return: a thread that waits in the kernel cannot be called back, and one a device is enough.
var hung sync.Map

// hardwareClocks enters the PTP hardware clocks, as they were first read.
func (t *taking) hardwareClocks(ctx context.Context) {
	devices, err := filepath.Glob(t.o.PHCs)
	if err != nil {
		t.unread(t.o.PHCs, err)
	}
	for _, device := range devices[:min(len(devices), maxPHCs)] {
		entry := calibration.PHC{Device: device}
		sys := "/sys/class/ptp/" + filepath.Base(device)
		if name, err := os.ReadFile(sys + "/clock_name"); err == nil {
			entry.Clock = strings.TrimSpace(string(name))
		}
		if nics, err := os.ReadDir(sys + "/device/net"); err == nil {
			for _, nic := range nics {
				entry.NICs = append(entry.NICs, nic.Name())
			}
		}
		t.record.PHCs = append(t.record.PHCs, entry)
		t.again(ctx, &t.record.PHCs[len(t.record.PHCs)-1])
	}
}

// again reads a clock, and tells what it did since it was read before.
func (t *taking) again(ctx context.Context, entry *calibration.PHC) {
	got, err := compareWithin(ctx, entry.Device)
	if err != nil {
		t.unread(entry.Device, err)
		return
	}
	before := *entry
	entry.Method, entry.OffsetNS, entry.BracketNS, entry.TimeNS, entry.Monotonic = got.method, &got.offset, &got.bracket, &got.time, &got.monotonic
	if got.took > int64(readNoise) {
		entry.Monotonic = nil // who knows when in between
	}
	for _, p := range ran(&before, entry, "while it was read") {
		t.problem(p.Name, p.Clock, p.Text)
	}
}

// run reads those clocks that can be read a second time: by this, one that stands still is seen.
func (t *taking) run(ctx context.Context) {
	for i := range t.record.PHCs {
		if entry := &t.record.PHCs[i]; entry.OffsetNS != nil {
			time.Sleep(phcPause)
			t.again(ctx, entry)
		}
	}
}

// compareWithin bounds the time that reading a clock takes.
func compareWithin(ctx context.Context, device string) (hardwareReading, error) {
	type answer struct {
		got hardwareReading
		err error
	}
	if _, is := hung.LoadOrStore(device, true); is {
		return hardwareReading{}, errors.New("an earlier reading still hangs")
	}
	ctx, cancel := context.WithDeadline(ctx, left(ctx, phcLimit))
	defer cancel()
	done := make(chan answer, 1)
	go func() {
		got, err := compare(device)
		hung.Delete(device)
		done <- answer{got, err}
	}()
	select {
	case a := <-done:
		return a.got, a.err
	case <-ctx.Done():
		return hardwareReading{}, ctx.Err()
	}
}

// compare compares a clock with the system clock by the best way that its driver has. Where somebody came between, it does so again.
func compare(device string) (best hardwareReading, err error) {
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return best, err
	}
	defer f.Close()
	for i := range tries {
		var before, after unix.Timespec
		unix.ClockGettime(unix.CLOCK_MONOTONIC, &before) // which does not fail
		one, err := compareOnce(phc.FromFile(f))
		unix.ClockGettime(unix.CLOCK_MONOTONIC, &after)
		if err != nil {
			return best, err
		}
		one.took = after.Nano() - before.Nano()
		one.monotonic = before.Nano() + one.took/2
		if i == 0 || one.took < best.took {
			best = one
		}
		if one.method != "basic" && one.took < int64(time.Millisecond) {
			break
		}
	}
	return best, nil
}

func compareOnce(dev *phc.Device) (hardwareReading, error) {
	if precise, err := dev.ReadSysoffPrecise(); err == nil {
		return of("PRECISE", phc.SysRToffFromPrecise(precise)), nil
	}
	if extended, err := dev.ReadSysoffExtendedRealTimeClock(); err == nil {
		return of("EXTENDED", extended.BestSample()), nil
	}
	before := time.Now()
	hardware, err := dev.Time()
	after := time.Now()
	if err != nil {
		return hardwareReading{}, fmt.Errorf("reading the clock: %w", err)
	}
	// Without their monotonic parts, since that of the hardware has none.
	return of("basic", phc.SysoffEstimateBasic(before.Round(0), hardware, after.Round(0))), nil
}

func of(method string, r phc.SysoffResult) hardwareReading {
	return hardwareReading{method: method, offset: -int64(r.Offset), bracket: max(int64(r.Delay), 0), time: r.PHCTime.UnixNano()}
}
