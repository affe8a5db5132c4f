package merge

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/topology"
)

// MatrixVersion is the major version of matrix.json; fields are only ever added to one.
const MatrixVersion = 1

// MatrixSchema is the JSON schema of matrix.json.
//
//go:embed matrix.schema.json
var MatrixSchema []byte

// Matrix is who sent how much to whom, for each layer on its own: the same bytes appear in several. It comes from the aggregate tables,
// so it is exact in every mode. The initiator counts; what receivers posted is listed apart, to cross-check.
type Matrix struct {
	Version int                     `json:"version"`
	Run     string                  `json:"run"`
	Exact   bool                    `json:"exact"`           // all calls are in it; else it is a lower bound
	Epoch   string                  `json:"epoch,omitempty"` // that layers are of alone; empty: the whole run
	Layers  map[string]*LayerMatrix `json:"layers"`
	Epochs  []EpochMatrix           `json:"epochs,omitempty"` // by epoch, where there are several: their sums are those of Layers

	rows []matrixRow
	in   *inventory
	gpus *owners
	cat  *catalogue.Catalogue
}

// EpochMatrix is the traffic of one epoch.
type EpochMatrix struct {
	Number  int                    `json:"number"`
	Name    string                 `json:"name"`
	Kind    string                 `json:"kind"`
	StartNS *int64                 `json:"start_ns"`
	Layers  map[string]*EpochLayer `json:"layers"`
}

// EpochLayer is one layer's traffic in an epoch.
type EpochLayer struct {
	Rank []PartyRow `json:"rank"`
	GPU  []PartyRow `json:"gpu,omitempty"`
	Node []PartyRow `json:"node"`
}

// matrixRow is a row with the layer and the epoch that it belongs to.
type matrixRow struct {
	EndpointRow
	layer    string
	epoch    int
	received bool
}

// LayerMatrix is one layer's traffic by endpoint or queue pair, by rank, by node, and, of what GPUs ring for, by GPU.
type LayerMatrix struct {
	Endpoint []EndpointRow `json:"endpoint"`
	Rank     []PartyRow    `json:"rank"`
	GPU      []PartyRow    `json:"gpu,omitempty"`
	Node     []PartyRow    `json:"node"`
	Received []EndpointRow `json:"received"`
}

// Party is a rank (a number), a rank of a run whose components have ranks of the same number ("component 1 rank 0"), a process without one
// ("host:pid"), a node ("host.boot") or a GPU ("host.boot GPU-UUID", "GPU 0 of rank 3 on host" where it was not recorded); null where it is not known.
type Party any

// End is an endpoint, queue pair, worker or shared receive queue.
type End struct {
	Rank *int64 `json:"rank"`
	Host string `json:"host"`
	Pid  uint32 `json:"pid"`
	Kind string `json:"kind"`
	ID   uint32 `json:"object"`
	Name string `json:"name"`

	process int
	gpu     uint32 // 1 + number in the run; 0 not known
}

// EndpointRow is the traffic between two ends. Destination is null where it is not known, and so is the source of what was received.
type EndpointRow struct {
	Source      *End   `json:"source"`
	Destination *End   `json:"destination"`
	Operation   string `json:"operation"`
	Control     bool   `json:"control,omitempty"` // it only synchronizes: apart from what moves data by the same operation
	Count       uint64 `json:"count"`
	Bytes       uint64 `json:"bytes"`

	order int
}

// PartyRow is the traffic between two ranks or nodes.
type PartyRow struct {
	Source      Party  `json:"source"`
	Destination Party  `json:"destination"`
	Operation   string `json:"operation"`
	Control     bool   `json:"control,omitempty"`
	Count       uint64 `json:"count"`
	Bytes       uint64 `json:"bytes"`
}

func newMatrix(name string, in *inventory, top *topology.Map, cat *catalogue.Catalogue, e *epochs) *Matrix {
	m := &Matrix{Version: MatrixVersion, Run: name, Exact: len(in.damaged) == 0 && in.reached(), in: in, gpus: in.owners(), cat: cat}
	m.collect(top, e)
	m.Layers = m.layers(func(int) bool { return true })
	for _, x := range e.told() {
		layers := map[string]*EpochLayer{}
		for name, l := range m.layers(func(epoch int) bool { return epoch == x.Number }) {
			layers[name] = &EpochLayer{l.Rank, l.GPU, l.Node}
		}
		m.Epochs = append(m.Epochs, EpochMatrix{x.Number, x.Name, x.Kind, x.StartNS, layers})
	}
	return m
}

// collect makes the rows of all processes' tables.
func (m *Matrix) collect(top *topology.Map, es *epochs) {
	in, cat := m.in, m.cat
	ends := map[topology.Ref]*End{}
	end := func(r topology.Ref, o *topology.Object) *End {
		if o == nil {
			return nil
		}
		e := ends[r]
		if e == nil {
			p := in.processes[r.Process]
			e = &End{p.rank(), p.header.Hostname, p.header.Pid, o.Kind.String(), o.ID, o.Name(), int(r.Process), m.gpus.of(r.Process, p.topology, o, true)}
			if r.Object != 0 {
				ends[r] = e
			}
		}
		return e
	}
	for i, p := range in.processes {
		m.Exact = m.Exact && p.exact()
		for _, t := range p.totals {
			e := cat.Event(t.event)
			if e == nil || e.Operation == "" || t.count == 0 {
				continue
			}
			own := topology.Ref{Process: uint32(i), Object: t.object}
			o := top.Object(own)
			if o == nil || o.Layer != e.Layer || !o.Carries() {
				own.Object, o = 0, &topology.Object{ID: t.object} // its definition is missing
			}
			peer := top.OnlyPeer(o)
			if t.peer != 0 {
				peer = top.Datagram(uint32(i), uint32(t.peer>>24), uint32(t.peer&0xffffff), p.topology.Clock.NS(t.first))
			}
			number, target := operationOf(cat, e)
			row := EndpointRow{Source: end(own, o), Destination: end(peer, top.Object(peer)), Operation: e.Operation, Control: e.Control, Count: t.count, Bytes: t.bytes, order: number}
			if target {
				row.Source, row.Destination = row.Destination, row.Source
			}
			m.rows = append(m.rows, matrixRow{row, e.Layer, es.of[i][t.epoch], target})
		}
	}
}

// layers adds the rows of some epochs up.
func (m *Matrix) layers(in func(epoch int) bool) map[string]*LayerMatrix {
	layers := map[string]*LayerMatrix{}
	for _, r := range m.rows {
		if !in(r.epoch) {
			continue
		}
		layer := layers[r.layer]
		if layer == nil {
			layer = &LayerMatrix{Endpoint: []EndpointRow{}, Rank: []PartyRow{}, Node: []PartyRow{}, Received: []EndpointRow{}}
			layers[r.layer] = layer
		}
		if r.received {
			layer.Received = append(layer.Received, r.EndpointRow)
		} else {
			layer.Endpoint = append(layer.Endpoint, r.EndpointRow)
		}
	}
	components := m.in.components()
	for name, l := range layers {
		l.Endpoint, l.Received = gather(l.Endpoint), gather(l.Received)
		l.Rank = byParty(l.Endpoint, func(e *End) Party {
			if e.Rank != nil && components != nil {
				return fmt.Sprintf("component %d rank %d", components[e.process], *e.Rank)
			}
			if e.Rank != nil {
				return *e.Rank
			}
			return fmt.Sprintf("%s:%d", e.Host, e.Pid)
		})
		l.Node = byParty(l.Endpoint, func(e *End) Party { return m.in.processes[e.process].node })
		if name == bell && len(m.gpus.all) > 0 {
			l.GPU = byParty(l.Endpoint, m.gpus.party)
		}
	}
	return layers
}

// operationOf returns the number of an event's operation in its layer, and whether the receiving side counts it.
func operationOf(cat *catalogue.Catalogue, e *catalogue.Event) (number int, target bool) {
	for _, l := range cat.Layers {
		if l.Name == e.Layer {
			return slices.Index(l.Operations, e.Operation), slices.Contains(l.Targets, e.Operation)
		}
	}
	return 0, false
}

func compareEnds(a, b *End) int {
	if a == nil || b == nil {
		return cmp.Compare(btoi(a == nil), btoi(b == nil)) // unknown ends come last
	}
	return cmp.Or(cmp.Compare(a.process, b.process), cmp.Compare(a.ID, b.ID))
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// gather sorts rows and adds up those of the same ends and operation.
func gather(rows []EndpointRow) []EndpointRow {
	compare := func(a, b EndpointRow) int {
		return cmp.Or(compareEnds(a.Source, b.Source), compareEnds(a.Destination, b.Destination), cmp.Compare(a.order, b.order), cmp.Compare(btoi(a.Control), btoi(b.Control)))
	}
	slices.SortStableFunc(rows, compare)
	out := rows[:0]
	for _, r := range rows {
		if n := len(out); n > 0 && compare(out[n-1], r) == 0 {
			out[n-1].Count += r.Count
			out[n-1].Bytes += r.Bytes
			continue
		}
		out = append(out, r)
	}
	return out
}

// byParty adds rows up by what their ends belong to.
func byParty(rows []EndpointRow, of func(*End) Party) []PartyRow {
	type key struct {
		source, destination Party
		operation           string
		control             bool
	}
	at := map[key]int{}
	out := []PartyRow{}
	order := map[string]int{}
	party := func(e *End) Party {
		if e == nil {
			return nil
		}
		return of(e)
	}
	for _, r := range rows {
		order[r.Operation] = r.order
		k := key{party(r.Source), party(r.Destination), r.Operation, r.Control}
		i, ok := at[k]
		if !ok {
			i = len(out)
			at[k] = i
			out = append(out, PartyRow{Source: k.source, Destination: k.destination, Operation: k.operation, Control: k.control})
		}
		out[i].Count += r.Count
		out[i].Bytes += r.Bytes
	}
	slices.SortStableFunc(out, func(a, b PartyRow) int {
		return cmp.Or(compareParties(a.Source, b.Source), compareParties(a.Destination, b.Destination), cmp.Compare(order[a.Operation], order[b.Operation]), cmp.Compare(btoi(a.Control), btoi(b.Control)))
	})
	return out
}

// compareParties puts ranks first, then names, then what is not known.
func compareParties(a, b Party) int {
	kind := func(p Party) (int, int64, string) {
		switch v := p.(type) {
		case int64:
			return 0, v, ""
		case string:
			return 1, 0, v
		}
		return 2, 0, ""
	}
	k1, n1, s1 := kind(a)
	k2, n2, s2 := kind(b)
	return cmp.Or(cmp.Compare(k1, k2), cmp.Compare(n1, n2), cmp.Compare(s1, s2))
}

// OfEpoch returns the matrices of the epochs that a name or number means.
func (m *Matrix) OfEpoch(name string, es *epochs) (*Matrix, error) {
	numbers, err := es.find(name)
	if err != nil {
		return nil, err
	}
	return &Matrix{Version: m.Version, Run: m.Run, Exact: m.Exact, Epoch: name, Layers: m.layers(func(epoch int) bool { return numbers[epoch] })}, nil
}

// JSON encodes the matrices of some layers, nil for all.
func (m *Matrix) JSON(layers []string) ([]byte, error) {
	some := *m
	if layers != nil {
		left := func(name string) bool { return !slices.Contains(layers, name) }
		some.Layers = maps.Clone(m.Layers)
		maps.DeleteFunc(some.Layers, func(name string, _ *LayerMatrix) bool { return left(name) })
		some.Epochs = slices.Clone(m.Epochs)
		for i := range some.Epochs {
			some.Epochs[i].Layers = maps.Clone(some.Epochs[i].Layers)
			maps.DeleteFunc(some.Epochs[i].Layers, func(name string, _ *EpochLayer) bool { return left(name) })
		}
	}
	b, err := json.MarshalIndent(&some, "", " ")
	if err != nil {
		return nil, fmt.Errorf("encoding the matrix: %w", err)
	}
	return append(b, '\n'), nil
}
