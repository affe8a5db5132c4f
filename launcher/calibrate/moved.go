package calibrate

import (
	"fmt"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

// stepLimit is how far wall clock and monotonic clock may be off from one reading to the next: both are slewed alike, only setting the wall clock
// moves it against the other. On a busy host milliseconds may pass between reading the one and the other.
const stepLimit = 2 * time.Millisecond

// readNoise is how unsure it may be when a hardware clock was read.
const readNoise = 2 * time.Millisecond

// moved tells what two readings of one boot, the earlier first, say of the clocks in between.
func moved(a, b calibration.Reading, when string) []calibration.Problem {
	var found []calibration.Problem
	say := func(name, clock, format string, args ...any) {
		found = append(found, calibration.Problem{Name: name, Clock: clock, Text: fmt.Sprintf(format, args...) + " " + when})
	}
	wall, monotonic := time.Duration(b.Realtime-a.Realtime), time.Duration(b.Monotonic-a.Monotonic)
	if step := wall - monotonic; step.Abs() > stepLimit {
		say(calibration.Steps, "system", "the system clock was set by %v", step)
	}
	switch {
	case b.Before < a.Before:
		say(calibration.Steps, "counter", "the counter went back by %d ticks", a.Before-b.Before)
	case b.Before == a.Before && monotonic > 0:
		say(calibration.StandsStill, "counter", "the counter stood still")
	case b.Before > a.Before && monotonic <= 0:
		say(calibration.StandsStill, "system", "the system clock stood still")
	}
	return found
}

// Compare adds to a record what it shows together with an earlier one of the same host.
func Compare(earlier, r *calibration.Record) {
	if earlier == nil || earlier.Boot != r.Boot {
		return
	}
	since := time.Duration(r.Reading.Monotonic - earlier.Reading.Monotonic).Round(time.Millisecond)
	r.Problems = append(r.Problems, moved(earlier.Reading, r.Reading, fmt.Sprintf("in the %v before", since))...)
	for i := range r.PHCs {
		for j := range earlier.PHCs {
			if earlier.PHCs[j].Device == r.PHCs[i].Device {
				r.Problems = append(r.Problems, ran(&earlier.PHCs[j], &r.PHCs[i], fmt.Sprintf("in the %v before", since))...)
			}
		}
	}
}

// ran tells what a hardware clock did between two readings, by CLOCK_MONOTONIC, which nobody sets.
func ran(a, b *calibration.PHC, when string) []calibration.Problem {
	const maxDrift = 0.01 // of the time: clocks are steered by less
	if a.TimeNS == nil || b.TimeNS == nil || a.Monotonic == nil || b.Monotonic == nil {
		return nil
	}
	hardware, passed := time.Duration(*b.TimeNS-*a.TimeNS), time.Duration(*b.Monotonic-*a.Monotonic)
	switch gained := hardware - passed; {
	case hardware >= 0 && hardware < passed/2 && passed > 2*readNoise:
		return []calibration.Problem{{Name: calibration.StandsStill, Clock: b.Device, Text: fmt.Sprintf("the hardware clock went on by %v of %v %s", hardware, passed, when)}}
	case gained.Abs() > readNoise+time.Duration(float64(passed)*maxDrift):
		return []calibration.Problem{{Name: calibration.Steps, Clock: b.Device, Text: fmt.Sprintf("the hardware clock was set by %v %s", gained, when)}}
	}
	return nil
}
