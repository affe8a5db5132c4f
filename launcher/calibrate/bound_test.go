package calibrate

import (
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

// What bounds are made of, where the daemons that would show it are not at hand: hardware time stamps, clocks on the way, old measurements.
func TestBoundsOfPTP(t *testing.T) {
	clock := int64(37*time.Second) - 400 // counts TAI, and the system clock is 400 ns ahead of it
	bracket := int64(60)
	hardware := func(s *calibration.PTPState, servo string) {
		utc, yes := 37, true
		s.Timestamping, s.Interface, s.UTCOffset, s.PHC2SYS, s.Servo = "hardware", "eth9", &utc, &yes, servo
	}
	for name, c := range map[string]struct {
		age    time.Duration
		change func(*calibration.PTPState)
		offset int64
		bound  int64 // 0: not known
		how    string
	}{
		"locked":        {100 * time.Millisecond, func(*calibration.PTPState) {}, -50, 1000 + 100, "asymmetry"},
		"two intervals": {1500 * time.Millisecond, func(*calibration.PTPState) {}, -50, 1000 + 200, "twice the last offset"},
		"three clocks":  {100 * time.Millisecond, func(s *calibration.PTPState) { s.StepsRemoved = 3 }, -50, 3 * 1100, "times 3"},
		"hardware":      {100 * time.Millisecond, func(s *calibration.PTPState) { hardware(s, "locked") }, 400 - 50, 1100 + 30, "/dev/ptp9 beside the system clock"},
		"no clock": {100 * time.Millisecond, func(s *calibration.PTPState) { hardware(s, "locked"); s.Interface = "eth8" }, 0, 0,
			"the clock of eth8, which ptp4l keeps, could not be read"},
		"not told":      {100 * time.Millisecond, func(s *calibration.PTPState) { s.Timestamping = "" }, 0, 0, "does not tell which clock"},
		"no delay":      {100 * time.Millisecond, func(s *calibration.PTPState) { s.MeanPathDelay = 0 }, 0, 0, "no path delay"},
		"old":           {time.Minute, func(*calibration.PTPState) {}, 0, 0, "is old"},
		"set back":      {-time.Second, func(*calibration.PTPState) {}, 0, 0, "set back"},
		"one, unlocked": {100 * time.Millisecond, func(s *calibration.PTPState) { s.Servo = "not locked" }, 0, 0, "one measurement does not tell"},
		"some, unlocked": {100 * time.Millisecond, func(s *calibration.PTPState) { s.Servo, s.Samples, s.SpreadNS = "not locked", 4, 300 }, -50, 1000 + 300 + 10_000,
			"spread of 4 measurements"},
	} {
		age := int64(c.age)
		s := &calibration.PTPState{OffsetFromMaster: -50, MeanPathDelay: 1000, StepsRemoved: 1, PortState: "SLAVE", Servo: "locked", DelayMechanism: "E2E", Timestamping: "software",
			SyncIntervalNS: int64(time.Second), AgeNS: &age, Samples: 1}
		c.change(s)
		tk := &taking{record: &calibration.Record{PTP: s, PHCs: []calibration.PHC{{Device: "/dev/ptp9", NICs: []string{"eth9"}, Method: "PRECISE", OffsetNS: &clock, BracketNS: &bracket}}}}
		tk.settle(s, 1)
		r := tk.record
		if (c.bound == 0) != (r.ErrorNS == nil) || !strings.Contains(r.How, c.how) {
			t.Errorf("%s: bound %v, %s", name, r.ErrorNS, r.How)
			continue
		}
		if c.bound != 0 && (*r.ErrorNS != c.bound || *r.OffsetNS != c.offset) {
			t.Errorf("%s: %d +- %d, want %d +- %d: %s", name, *r.OffsetNS, *r.ErrorNS, c.offset, c.bound, r.How)
		}
		if stale := r.Has(calibration.Stale); stale != (name == "old") {
			t.Errorf("%s: %v", name, r.Problems)
		}
	}
}
