package merge

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
	"github.com/sigmatrace/sigmatrace/merge/clock"
)

// calibrations is what a node's records say, and what became of them.
type calibrations struct {
	reason       string   // why none can be used; "" where there was none
	how          string   // how the last one's bound came about
	problems     []string // each once
	contradicted int64    // ns, by which messages contradict them: they are not used then; 0: they do not
}

// maxReadings bounds the calibrations of a node that are used.
const maxReadings = 4096

// readCalibrations gives each node its records: those of its host and boot, of any file.
func (c *clocks) readCalibrations(run string) error {
	files, err := calibration.ReadRun(run)
	if err != nil {
		return err
	}
	by := map[string]*clockNode{}
	for i := range c.nodes {
		h := &c.in.processes[c.nodes[i].first].header
		by[h.Hostname+" "+hex.EncodeToString(h.BootID[:])] = &c.nodes[i]
	}
	for _, f := range files {
		if f.Err != nil {
			c.in.damaged = append(c.in.damaged, damageOf(f.Node, f.Err))
		}
		if f.Damaged > 0 {
			c.in.damaged = append(c.in.damaged, Damage{File: calibration.DirName + "/" + f.Node, Reason: fmt.Sprintf("%d clock calibrations cannot be read", f.Damaged)})
		}
		for _, r := range f.Records {
			if n := by[r.Node+" "+strings.ReplaceAll(r.Boot, "-", "")]; n != nil {
				n.take(r)
			}
		}
	}
	for i := range c.nodes {
		n := &c.nodes[i]
		slices.Sort(n.state.problems)
		n.state.problems = slices.Compact(n.state.problems)
		for step := (len(n.readings) + maxReadings - 1) / maxReadings; step > 1; step = 0 {
			kept := n.readings[:0]
			for k, r := range n.readings {
				if k%step == 0 || k == len(n.readings)-1 {
					kept = append(kept, r)
				}
			}
			n.readings = kept
		}
	}
	return nil
}

// take keeps a record if it tells where the clock was.
func (n *clockNode) take(r *calibration.Record) {
	for _, p := range r.Problems {
		n.state.problems = append(n.state.problems, fmt.Sprintf("%s: %s: %s", p.Clock, p.Name, p.Text))
	}
	if r.OffsetNS == nil || r.ErrorNS == nil { // whatever is wrong with the clock: a bound that is told holds
		n.state.reason = cmp.Or(strings.TrimPrefix(r.How, "not known: "), "the calibration tells no bound")
		return
	}
	n.readings, n.state.how = append(n.readings, r), r.How
}

// sourceOf names whose time a record tells: a PTP grandmaster has one of its own, NTP servers all tell UTC.
func sourceOf(r *calibration.Record) string {
	if r.Source == calibration.PTP && r.PTP != nil {
		return "ptp " + r.PTP.Grandmaster
	}
	return "utc"
}

// readingsOf adds the nodes' calibrations to a problem and returns the sources' names.
func (c *clocks) readingsOf(p *clock.Problem, byPTP, byOthers bool) []string {
	var names []string
	for i := range c.nodes {
		n := &c.nodes[i]
		for _, r := range n.readings {
			if ptp := r.Source == calibration.PTP; (ptp && !byPTP) || (!ptp && !byOthers) || r.Source == calibration.System {
				continue
			}
			name := sourceOf(r)
			at := slices.Index(names, name)
			if at < 0 {
				at, names = len(names), append(names, name)
			}
			mid := r.Reading.Before + (r.Reading.After-r.Reading.Before)/2
			bracket := n.clock.Duration(r.Reading.Before, r.Reading.After-r.Reading.Before)
			own := n.free.NS(n.clock.NS(mid))
			p.Readings = append(p.Readings, clock.Reading{Node: i, Source: at, At: own,
				Offset: own - (r.Reading.Realtime - *r.OffsetNS), Error: *r.ErrorNS + bracket/2 + 1})
		}
	}
	p.Sources = len(names)
	return names
}
