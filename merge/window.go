package merge

import (
	"fmt"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// Windowed tells for how much of their time the processes whose events were recorded in windows recorded them. What a window leaves out is
// not lost: counts and matrix go on.
type Windowed struct {
	Processes  int   `json:"processes"`   // that were outside a window at some time
	RecordedNS int64 `json:"recorded_ns"` // of these processes, summed up
	LivedNS    int64 `json:"lived_ns"`    // of these processes, from the first to the last time known, summed up
	MaxEvents  int   `json:"max_events"`  // processes whose window closed because they had recorded as many events as they may
}

// windowed tells whether events of the process were not recorded at some time.
func (p *process) windowed() bool {
	for _, w := range p.survey.Windows {
		if !w.Open {
			return true
		}
	}
	return false
}

// addWindows adds a process's windows up.
func (w *Windowed) add(p *process) {
	if !p.windowed() {
		return
	}
	w.Processes++
	w.LivedNS += max(p.last-p.first, 0)
	for i, x := range p.survey.Windows {
		if x.Cause == catalogue.WindowCauseMaxEvents {
			w.MaxEvents++
		}
		if !x.Open {
			continue
		}
		from, to := max(p.topology.Clock.NS(x.Ticks), p.first), p.last
		if i == 0 {
			from = p.first
		}
		if i+1 < len(p.survey.Windows) {
			to = min(to, p.topology.Clock.NS(p.survey.Windows[i+1].Ticks))
		}
		w.RecordedNS += max(to-from, 0)
	}
}

// String is the windows in words: of one process, on average.
func (w *Windowed) String() string {
	of := func(ns int64) time.Duration {
		return (time.Duration(ns) / time.Duration(w.Processes)).Round(time.Millisecond)
	}
	text := fmt.Sprintf("%v of %v recorded", of(w.RecordedNS), of(w.LivedNS))
	if w.Processes > 1 {
		text += fmt.Sprintf(", on average of %d processes", w.Processes)
	}
	if w.MaxEvents > 0 {
		text += fmt.Sprintf("; %d reached window.max_events", w.MaxEvents)
	}
	return text + " (counts and matrix: all of it)"
}
