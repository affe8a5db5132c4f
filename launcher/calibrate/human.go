package calibrate

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

// Print writes a record for people.
func Print(w io.Writer, r *calibration.Record) {
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-13s%s\n", name, fmt.Sprintf(format, args...))
	}
	row("node", "%s, boot %s", r.Node, r.Boot)
	row("time", "%s by the system clock", time.Unix(0, r.Reading.Realtime).UTC().Format("2006-01-02 15:04:05.000000000Z"))
	row("clocksource", "%s of %s", r.Clocksource.Current, strings.Join(r.Clocksource.Available, ", "))
	if r.TSC != nil {
		var has []string
		for _, f := range []struct {
			name string
			is   bool
		}{{"constant", r.TSC.Constant}, {"nonstop", r.TSC.Nonstop}, {"known frequency", r.TSC.KnownFreq}, {"adjustable", r.TSC.Adjust}} {
			if f.is {
				has = append(has, f.name)
			}
		}
		row("tsc", "%s", or(strings.Join(has, ", "), "promises nothing"))
	}
	for _, p := range r.PHCs {
		if p.OffsetNS == nil {
			row("phc", "%s (%s) could not be read", p.Device, p.Clock)
			continue
		}
		row("phc", "%s (%s%s): %v from the system clock, read within %v (%s)", p.Device, p.Clock, or(" of "+strings.Join(p.NICs, ", "), ""),
			time.Duration(*p.OffsetNS), time.Duration(*p.BracketNS), p.Method)
	}
	row("source", "%s", r.Source)
	if s := r.PTP; s != nil {
		row("ptp", "grandmaster %s, %d steps away; port %s, servo %s, %s, %s time stamps; %v from the master, mean path delay %v", s.Grandmaster, s.StepsRemoved, s.PortState,
			s.Servo, or(s.DelayMechanism, "unknown delay mechanism"), or(s.Timestamping, "unknown"), time.Duration(s.OffsetFromMaster), time.Duration(s.MeanPathDelay))
	}
	if s := r.Tracking; s != nil {
		row("follows", "%s, stratum %d, leap %s; root delay %v, root dispersion %v, frequency %.3f ppm", s.Reference, s.Stratum, s.Leap,
			time.Duration(s.RootDelayNS), time.Duration(s.RootDispersion), s.FrequencyPPM)
	}
	if r.OffsetNS != nil {
		row("offset", "%v from the source", time.Duration(*r.OffsetNS))
		row("error", "%v: %s", time.Duration(*r.ErrorNS), r.How)
	} else {
		row("offset", "%s", r.How)
	}
	for _, p := range r.Problems {
		row("problem", "%s (%s): %s", p.Name, p.Clock, p.Text)
	}
	for _, u := range r.Unread {
		row("not read", "%s: %s", u.What, u.Why)
	}
}

func or(text, instead string) string {
	if text == "" {
		return instead
	}
	return text
}
