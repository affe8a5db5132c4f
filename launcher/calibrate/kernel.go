package calibrate

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

const (
	clocksources = "/sys/devices/system/clocksource/clocksource0/"
	adjustMSR    = 0x3b // IA32_TSC_ADJUST
	maxMSRs      = 4096 // processors of which it is read
)

// kernel reads what the kernel tells of its clocks.
func (t *taking) kernel() {
	r := t.record
	r.Clocksource.Current = strings.TrimSpace(t.text(clocksources + "current_clocksource"))
	r.Clocksource.Available = strings.Fields(t.text(clocksources + "available_clocksource"))
	if counterName == "tsc" {
		r.TSC = t.tsc()
	}
	var tx unix.Timex // no mode: it is only read
	state, err := unix.Adjtimex(&tx)
	if err != nil {
		t.unread("adjtimex(2)", err)
		return
	}
	unit := int64(1000)
	r.Kernel = &calibration.Kernel{Synchronised: state != unix.TIME_ERROR && tx.Status&unix.STA_UNSYNC == 0, FreqPPM: float64(tx.Freq) / (1 << 16),
		MaxErrorNS: int64(tx.Maxerror) * unit, EstErrorNS: int64(tx.Esterror) * unit, TAIOffset: int(tx.Tai)}
}

// unsteered tells that nobody steers the system clock. Daemons that do tell the kernel how exact it is; when they cease, the kernel's maximum error
// grows to its limit, 16 s. Whether the clock is marked as synchronised depends on whether they are to set the real time clock as well.
func (t *taking) unsteered() bool {
	k := t.record.Kernel
	return k != nil && !k.Synchronised && k.MaxErrorNS >= int64(16*time.Second)
}

func (t *taking) text(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		t.unread(path, err)
	}
	return string(text)
}

func (t *taking) tsc() *calibration.TSC {
	flags := t.processorFlags()
	has := func(name string) bool { return slices.Contains(flags, name) }
	tsc := &calibration.TSC{Constant: has("constant_tsc"), Nonstop: has("nonstop_tsc"), KnownFreq: has("tsc_known_freq"), Adjust: has("tsc_adjust")}
	available := t.record.Clocksource.Available
	tsc.GivenUp = len(available) > 0 && !slices.Contains(available, "tsc")
	switch {
	case tsc.GivenUp:
		t.problem(calibration.UnstableCounter, "counter", "the kernel found the TSC not to be usable as a clock")
	case len(flags) > 0 && !(tsc.Constant && tsc.Nonstop):
		t.problem(calibration.UnstableCounter, "counter", "the processor does not promise that its TSC keeps its rate and runs on in sleep")
	}
	if tsc.Adjust {
		t.adjustments(tsc)
	}
	return tsc
}

func (t *taking) processorFlags() []string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		t.unread("/proc/cpuinfo", err)
		return nil
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if key, value, is := strings.Cut(lines.Text(), ":"); is && strings.TrimSpace(key) == "flags" {
			return strings.Fields(value)
		}
	}
	return nil
}

// adjustments reads by how much firmware or software moved each processor's TSC: the kernel evens differences out, where it may.
func (t *taking) adjustments(tsc *calibration.TSC) {
	devices, _ := filepath.Glob("/dev/cpu/[0-9]*/msr") // the pattern is right
	for _, device := range devices[:min(len(devices), maxMSRs)] {
		value, err := readMSR(device, adjustMSR)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				t.unread("the TSC's adjustments", err)
			}
			tsc.Least, tsc.Most = nil, nil
			return
		}
		if tsc.Least == nil || value < *tsc.Least {
			tsc.Least = &value
		}
		if tsc.Most == nil || value > *tsc.Most {
			tsc.Most = &value
		}
	}
	if tsc.Least != nil && *tsc.Least != *tsc.Most {
		t.problem(calibration.UnstableCounter, "counter", fmt.Sprintf("the processors' TSCs are adjusted by between %d and %d ticks", *tsc.Least, *tsc.Most))
	}
}

func readMSR(device string, register int64) (int64, error) {
	f, err := os.Open(device)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var value [8]byte
	if _, err := f.ReadAt(value[:], register); err != nil {
		return 0, err
	}
	return int64(binary.LittleEndian.Uint64(value[:])), nil
}
