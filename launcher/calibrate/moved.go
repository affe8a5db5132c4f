package calibrate

import (
	"fmt"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

// stepLimit is how far wall clock and monotonic clock may be off from one reading to the next: both are slewed alike, only setting the wall clock
// moves it against the other.
const stepLimit = 100 * time.Microsecond

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
		now := &r.PHCs[i]
		for _, then := range earlier.PHCs {
			if then.Device == now.Device && then.OffsetNS != nil && now.OffsetNS != nil && since > 0 {
				r.Problems = append(r.Problems, drifted(now.Device, *then.OffsetNS, *now.OffsetNS,
					earlier.Reading.Realtime, r.Reading.Realtime, "in the "+since.String()+" before")...)
			}
		}
	}
}

// drifted tells what a hardware clock did between two readings of its offset to the system clock. One that runs keeps to within maxDrift of it.
func drifted(device string, offsetA, offsetB, wallA, wallB int64, when string) []calibration.Problem {
	const maxDrift = 0.01 // of the time: hardware clocks are steered by less
	const noise = float64(time.Millisecond)
	wall := float64(wallB - wallA)
	gained := float64(offsetB - offsetA)
	name, text := "", ""
	switch {
	case wall > noise && gained < -0.5*wall && gained > -1.5*wall:
		name, text = calibration.StandsStill, "the hardware clock stood still"
	case gained > wall*maxDrift+noise, gained < -wall*maxDrift-noise:
		name, text = calibration.Steps, fmt.Sprintf("the hardware clock and the system clock moved apart by %v", time.Duration(gained))
	default:
		return nil
	}
	return []calibration.Problem{{Name: name, Clock: device, Text: text + " " + when}}
}
