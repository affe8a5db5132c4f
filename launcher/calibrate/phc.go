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
	tries    = 9 // as many as the kernel makes for EXTENDED
)

// hardwareClock is a clock's entry in the record, with what is read a second time.
type hardwareClock struct {
	index int // in the record
	first hardwareReading
}

// hardwareReading is one comparison of a hardware clock with the system clock.
type hardwareReading struct {
	method  string
	offset  int64 // hardware less system
	bracket int64
	system  int64 // ns since the epoch, when it was
}

// hung has the devices of which a reading did not return: a thread that waits in the kernel cannot be called back, and one a device is enough.
var hung sync.Map

// hardwareClocks reads the PTP hardware clocks.
func (t *taking) hardwareClocks(ctx context.Context) []*hardwareClock {
	devices, err := filepath.Glob(t.o.PHCs)
	if err != nil {
		t.unread(t.o.PHCs, err)
	}
	var clocks []*hardwareClock
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
		got, err := compareWithin(ctx, device)
		if err != nil {
			t.unread(device, err)
		} else {
			entry.Method, entry.OffsetNS, entry.BracketNS = got.method, &got.offset, &got.bracket
			clocks = append(clocks, &hardwareClock{index: len(t.record.PHCs), first: got})
		}
		t.record.PHCs = append(t.record.PHCs, entry)
	}
	return clocks
}

// runs reads the hardware clocks again and tells which stood still or stepped in between; the later readings are those of the record.
func (t *taking) runs(ctx context.Context, clocks []*hardwareClock) {
	for _, c := range clocks {
		if wait := phcPause - time.Duration(time.Now().UnixNano()-c.first.system); wait > 0 {
			time.Sleep(min(wait, phcPause))
		}
		entry := &t.record.PHCs[c.index]
		again, err := compareWithin(ctx, entry.Device)
		if err != nil {
			t.unread(entry.Device, err)
			continue
		}
		entry.Method, entry.OffsetNS, entry.BracketNS = again.method, &again.offset, &again.bracket
		t.record.Problems = append(t.record.Problems, drifted(entry.Device, c.first.offset, again.offset, c.first.system, again.system, "while it was read")...)
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

// compare takes the best way that the clock's driver has.
func compare(device string) (hardwareReading, error) {
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return hardwareReading{}, err
	}
	defer f.Close()
	dev := phc.FromFile(f)
	if precise, err := dev.ReadSysoffPrecise(); err == nil {
		return of("PRECISE", phc.SysRToffFromPrecise(precise)), nil
	}
	if extended, err := dev.ReadSysoffExtendedRealTimeClock(); err == nil {
		return of("EXTENDED", extended.BestSample()), nil
	}
	var best hardwareReading
	for i := range tries {
		before := time.Now()
		hardware, err := dev.Time()
		after := time.Now()
		if err != nil {
			return hardwareReading{}, fmt.Errorf("reading the clock: %w", err)
		}
		// Without their monotonic parts, since that of the hardware has none.
		one := of("basic", phc.SysoffEstimateBasic(before.Round(0), hardware, after.Round(0)))
		if i == 0 || one.bracket < best.bracket {
			best = one
		}
	}
	return best, nil
}

func of(method string, r phc.SysoffResult) hardwareReading {
	return hardwareReading{method: method, offset: -int64(r.Offset), bracket: max(int64(r.Delay), 0), system: r.SysTime.UnixNano()}
}
