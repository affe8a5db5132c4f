//go:build vm

package check

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

func clockFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../../build/vm/out/clock", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func clockRecord(t *testing.T, name string) *calibration.Record {
	t.Helper()
	r, err := calibration.Parse([]byte(clockFile(t, name+".record")))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return r
}

// within checks that what a record says of the offset is possible, or nearly: the machines asked each other before and after.
func within(t *testing.T, name string, r *calibration.Record, nearly int64) (low, high int64) {
	t.Helper()
	var before, after [2]int64
	text := clockFile(t, name+".truth")
	if _, err := fmt.Sscan(text, &before[0], &before[1], &after[0], &after[1]); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	low, high = min(before[0], after[0]), max(before[1], after[1])
	if r.OffsetNS == nil || r.ErrorNS == nil {
		t.Errorf("%s: no bound: %s", name, r.How)
		return
	}
	t.Logf("%s: offset %d +- %d, true %d to %d: %s", name, *r.OffsetNS, *r.ErrorNS, low, high, r.How)
	if *r.OffsetNS-*r.ErrorNS > high+nearly || *r.OffsetNS+*r.ErrorNS < low-nearly {
		t.Errorf("%s: offset %d +- %d, and it is between %d and %d", name, *r.OffsetNS, *r.ErrorNS, low, high)
	}
	return low, high
}

// said returns what linuxptp's own program printed.
func said(t *testing.T, name, field string) string {
	t.Helper()
	found := regexp.MustCompile(field + ` +(\S+)`).FindStringSubmatch(clockFile(t, name+".pmc"))
	if found == nil {
		t.Fatalf("%s.pmc has no %s", name, field)
	}
	return found[1]
}

// What ptp4l and pmc say is what the record says, and the clock that was set off by seconds is off by that, within its own bound.
func TestClocksByPTP(t *testing.T) {
	master := clockRecord(t, "master")
	if master.Source != calibration.PTP || master.PTP == nil || master.PTP.Own != master.PTP.Grandmaster || master.OffsetNS == nil || *master.OffsetNS != 0 {
		t.Errorf("master %+v, %+v", master, master.PTP)
	}
	for name, servo := range map[string]string{"free": "not locked", "locked": "locked"} {
		r := clockRecord(t, name)
		if r.Source != calibration.PTP || r.PTP == nil {
			t.Fatalf("%s: source %s", name, r.Source)
		}
		p := r.PTP
		if p.PortState != said(t, name, "portState") || p.Grandmaster != said(t, name, "grandmasterIdentity") || p.Grandmaster != master.PTP.Own ||
			p.Servo != servo || p.StepsRemoved != 1 || p.Timestamping != "software" || p.DelayMechanism != "E2E" || p.MeanPathDelay <= 0 {
			t.Errorf("%s: %+v", name, p)
		}
		if free := r.Has(calibration.FreeRunning); free != (name == "free") {
			t.Errorf("%s: problems %v", name, r.Problems)
		}
		nearly := int64(0)
		if name == "locked" { // a servo that has one late message may be off by what none of its numbers shows, and here some are late by milliseconds
			nearly = 5e6
		}
		low, high := within(t, name, r, nearly)
		if name == "free" && (low < 1e9 || high > 8e9) { // set to a's time, and 7 s; meanwhile that went on
			t.Errorf("the clock was set off by 7 s and is off by %d to %d ns", low, high)
		}
	}
}

// chronyd that steers a clock, with the clock behind it.
func TestClocksByChrony(t *testing.T) {
	r := clockRecord(t, "chrony")
	if r.Source != calibration.Chrony || r.Tracking == nil || r.Tracking.Reference != "10.9.0.1" || r.Tracking.Stratum != 2 || r.Tracking.Leap != "normal" {
		t.Fatalf("source %s, %+v", r.Source, r.Tracking)
	}
	if r.Kernel == nil || r.Kernel.MaxErrorNS >= 16e9 || r.Has(calibration.FreeRunning) {
		t.Errorf("kernel %+v, problems %v", r.Kernel, r.Problems)
	}
	within(t, "chrony", r, 0)
	if r.ErrorNS == nil || *r.ErrorNS > 1e9 {
		t.Errorf("the bound is of no use: %s", r.How)
	}
}

// A hardware clock that stands still is named so, in every record; nobody to ask is the plain system clock.
func TestClocksThatStandStill(t *testing.T) {
	for _, name := range []string{"none", "free", "locked", "chrony"} {
		r := clockRecord(t, name)
		if len(r.PHCs) != 1 || r.PHCs[0].Device != "/dev/ptp0" || r.PHCs[0].Method != "EXTENDED" || r.PHCs[0].OffsetNS == nil || len(r.PHCs[0].NICs) != 1 {
			t.Errorf("%s: hardware clocks %+v, unread %v", name, r.PHCs, r.Unread)
		}
		found := false
		for _, p := range r.Problems {
			found = found || p.Name == calibration.StandsStill && p.Clock == "/dev/ptp0"
		}
		if !found {
			t.Errorf("%s: problems %v", name, r.Problems)
		}
	}
	if r := clockRecord(t, "none"); r.Source != calibration.System || r.OffsetNS != nil || r.ErrorNS != nil {
		t.Errorf("without a daemon: %s, %v", r.Source, r.OffsetNS)
	}
}

// The daemon saw the steps: those of `date -s`, and those by ptp4l and chronyd back again. Two within one of its intervals are one to it, or none.
func TestClockdNamesSteps(t *testing.T) {
	records, damaged, err := calibration.Read(bytes.NewReader([]byte(clockFile(t, "published"))))
	if err != nil || damaged > 0 {
		t.Fatalf("%d damaged, %v", damaged, err)
	}
	var steps []string
	forward, back := false, false
	for _, r := range records {
		for _, p := range r.Problems {
			if p.Name == calibration.Steps && p.Clock == "system" {
				steps = append(steps, p.Text)
				back = back || strings.Contains(p.Text, "set by -")
				forward = forward || !strings.Contains(p.Text, "set by -")
			}
		}
	}
	if !forward || !back {
		t.Errorf("steps %q", steps)
	}
	if warnings := clockFile(t, "clockd.warnings"); !strings.Contains(warnings, "sigmatrace: warning: clock system: steps: ") ||
		strings.Count(warnings, "stands-still") != 1 {
		t.Errorf("warnings:\n%s", warnings)
	}
}
