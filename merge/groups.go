package merge

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/pairing"
	"github.com/sigmatrace/sigmatrace/merge/topology"
)

// GroupInfo sums up what NCCL said of one function on one communicator, over all its processes, and what was posted for it. It comes from recorded events: what a window or a loss
// leaves out is not in it.
type GroupInfo struct {
	Communicator string           `json:"communicator"` // its hash; empty: of requests of which it is not known
	Name         string           `json:"name"`         // given by the program; empty: none
	Ranks        *int64           `json:"ranks"`        // null where NCCL did not say
	Nodes        *int64           `json:"nodes"`
	Function     string           `json:"function"` // empty: of requests of which it is not known
	Count        uint64           `json:"count"`    // collectives, or sends and receives, of all its processes
	Bytes        uint64           `json:"bytes"`    // of their elements
	Unfinished   uint64           `json:"unfinished"`
	Proxies      uint64           `json:"proxy_operations"`
	ProxyBytes   *uint64          `json:"proxy_bytes"` // what NCCL said that its proxies sent; null where it did not say
	Traffic      map[string]Count `json:"traffic"`     // what was posted for them, by layer
	Ambiguous    map[string]Count `json:"ambiguous"`   // the part of traffic of which it is not known for which of them it was
}

// Plugin is how NCCL found the recorder, in all processes that it did so in.
type Plugin struct {
	Interface uint64 `json:"interface"` // version of its profiler interface
	Events    uint64 `json:"events"`    // mask of what it was asked for
	Chained   string `json:"chained"`   // the other profiler plugin that is called too; empty: none
	Refused   int64  `json:"refused"`   // what the init of that returned, where it was no success
	Processes int    `json:"processes"`
}

// NCCLInfo is what is known of NCCL: null where no process found the recorder as its profiler plugin.
type NCCLInfo struct {
	Plugins       []Plugin    `json:"plugins"`
	Communicators int         `json:"communicators"`
	Unrecorded    uint64      `json:"unrecorded"` // operations that there was no room for
	Unrelated     uint64      `json:"unrelated"`  // proxy operations of which it is not known what they were for
	Groups        []GroupInfo `json:"groups"`
}

type groupName struct {
	hash     uint64
	known    bool
	function string
}

func (in *inventory) nccl(cat *catalogue.Catalogue) *NCCLInfo {
	x := &NCCLInfo{Plugins: []Plugin{}, Groups: []GroupInfo{}}
	sums, hashes, plugins := map[groupName]*GroupInfo{}, map[uint64]bool{}, map[topology.Plugin]int{}
	for _, p := range in.processes {
		for _, plugin := range p.topology.Plugins {
			plugins[plugin]++
		}
		for _, o := range p.topology.Carry {
			if c := o.Communicator; c != nil {
				hashes[c.Hash] = true
				x.Unrecorded += c.Unrecorded
				x.Unrelated += c.Unrelated
			}
		}
		for key, g := range p.counts.Groups {
			p.addGroup(sums, key, g, cat)
		}
	}
	if len(plugins) == 0 && len(sums) == 0 {
		return nil
	}
	for plugin, n := range plugins {
		x.Plugins = append(x.Plugins, Plugin{plugin.Interface, plugin.Events, plugin.Chained, plugin.Refused, n})
	}
	slices.SortFunc(x.Plugins, func(a, b Plugin) int {
		return cmp.Or(cmp.Compare(a.Interface, b.Interface), cmp.Compare(a.Events, b.Events), cmp.Compare(a.Chained, b.Chained), cmp.Compare(a.Refused, b.Refused))
	})
	x.Communicators = len(hashes)
	for g := range maps.Values(sums) {
		x.Groups = append(x.Groups, *g)
	}
	slices.SortFunc(x.Groups, func(a, b GroupInfo) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Communicator, b.Communicator), cmp.Compare(a.Function, b.Function))
	})
	return x
}

func (p *process) addGroup(sums map[groupName]*GroupInfo, key pairing.GroupKey, g *pairing.Group, cat *catalogue.Catalogue) {
	name := groupName{function: p.survey.Names[key.Function].Name}
	o := p.topology.Objects[key.Object]
	if o != nil && o.Communicator != nil {
		name.hash, name.known = o.Communicator.Hash, true
	}
	s := sums[name]
	if s == nil {
		s = &GroupInfo{Function: name.function, Traffic: map[string]Count{}, Ambiguous: map[string]Count{}}
		if name.known {
			s.Communicator, s.Name = fmt.Sprintf("%#x", name.hash), o.Communicator.Name
		}
		sums[name] = s
	}
	if name.known && o.Communicator.Ranks > 0 {
		s.Ranks, s.Nodes = &o.Communicator.Ranks, &o.Communicator.Nodes
	}
	s.Count += g.Tasks
	s.Bytes += g.Bytes
	s.Unfinished += g.Unfinished
	s.Proxies += g.Proxies
	if g.ProxyBytes > 0 {
		n := g.ProxyBytes
		if s.ProxyBytes != nil {
			n += *s.ProxyBytes
		}
		s.ProxyBytes = &n
	}
	addCounts(s.Traffic, g.Traffic, cat)
	addCounts(s.Ambiguous, g.Ambiguous, cat)
}

func addCounts(to map[string]Count, from map[uint8]pairing.Count, cat *catalogue.Catalogue) {
	for layer, c := range from {
		t := to[cat.Layers[layer].Name]
		t.Count += c.Requests
		t.Bytes += c.Bytes
		to[cat.Layers[layer].Name] = t
	}
}

// line is what a summary says of it.
func (g *GroupInfo) line(layer *string) string {
	text := fmt.Sprintf("%s on communicator %s", cmp.Or(g.Function, "unknown operation"), cmp.Or(g.Name, g.Communicator, "unknown"))
	if g.Ranks != nil {
		text += fmt.Sprintf(" of %d ranks", *g.Ranks)
	}
	var parts []string
	if g.Count > 0 {
		parts = append(parts, fmt.Sprintf("%d calls over all ranks (%s)", g.Count, size(g.Bytes)))
	}
	if layer != nil {
		if c, ok := g.Traffic[*layer]; ok {
			parts = append(parts, fmt.Sprintf("posted for it at layer %s: %d requests (%s)", *layer, c.Count, size(c.Bytes)))
		}
	}
	if len(parts) == 0 {
		return text
	}
	return text + ": " + strings.Join(parts, "; ")
}
