package merge

import (
	"cmp"
	"slices"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/topology"
)

// PhaseInfo sums up the application's phases of one name, over all processes. It comes from recorded events: what a window or a loss leaves
// out is not in it.
type PhaseInfo struct {
	Name    string           `json:"name"`
	Domain  string           `json:"domain"` // of NVTX; empty: none
	Count   int64            `json:"count"`
	TimeNS  int64            `json:"time_ns"` // from begin to end, summed up
	Traffic map[string]Count `json:"traffic"` // what was posted in them, by layer
}

// names returns the names of a process's phases as they are shown.
func (p *process) names() map[uint32]string {
	names := map[uint32]string{}
	for n, name := range p.survey.Names {
		names[n] = name.String()
	}
	return names
}

func (in *inventory) phases(cat *catalogue.Catalogue) []PhaseInfo {
	sums := map[topology.Name]*PhaseInfo{}
	for _, p := range in.processes {
		for number, x := range p.counts.Phases {
			name, ok := p.survey.Names[number]
			if !ok {
				name.Name = "(name not recorded)"
			}
			s := sums[name]
			if s == nil {
				s = &PhaseInfo{Name: name.Name, Domain: name.Domain, Traffic: map[string]Count{}}
				sums[name] = s
			}
			s.Count += x.Count
			s.TimeNS += x.NS
			for layer, c := range x.Traffic {
				t := s.Traffic[cat.Layers[layer].Name]
				t.Count += c.Requests
				t.Bytes += c.Bytes
				s.Traffic[cat.Layers[layer].Name] = t
			}
		}
	}
	all := []PhaseInfo{}
	for _, s := range sums {
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b PhaseInfo) int {
		return cmp.Or(cmp.Compare(b.TimeNS, a.TimeNS), cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Name, b.Name))
	})
	return all
}
