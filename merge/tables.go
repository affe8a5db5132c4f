package merge

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/sigmatrace/sigmatrace/merge/parquet"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline"
)

// facts say in a trace how complete and exact the run is.
func (i *Info) facts() []timeline.Fact {
	complete := "no"
	if i.Complete() {
		complete = "yes"
	}
	facts := []timeline.Fact{{Name: "complete", Text: complete, IsText: true}, {Name: "ranks_complete", Number: int64(i.Ranks.Complete)}}
	if i.Ranks.Expected != nil {
		facts = append(facts, timeline.Fact{Name: "ranks_expected", Number: int64(*i.Ranks.Expected)})
	}
	facts = append(facts, timeline.Fact{Name: "events_lost", Number: int64(i.Lost.Events)}, timeline.Fact{Name: "not_seen", Number: int64(len(i.Blind))})
	for n, b := range i.Blind[:min(len(i.Blind), summaryIncomplete)] {
		facts = append(facts, timeline.Fact{Name: fmt.Sprintf("not_seen_%d", n+1), Text: b.String(), IsText: true})
	}
	return facts
}

// account is what exports say of how complete the run is.
func (m *Merged) account() parquet.Account {
	i := m.info
	return parquet.Account{Exact: i.Exact,
		Summary: parquet.Summary{Complete: i.Complete(), RanksExpected: i.Ranks.Expected, RanksComplete: i.Ranks.Complete, EventsLost: i.Lost.Events}}
}

func writeParquet(ctx context.Context, m *Merged, dir string, o ExportOptions) (*Exported, error) {
	options := m.TraceOptions(o)
	options.Workers = max(1, min(options.Workers, int(max(m.opts.Memory, MinMemory)/2/parquet.WorkerBytes)))
	account := m.account()
	account.Traffic = m.traffic(o.Layers)
	index, err := parquet.Write(ctx, dir, m, account, options)
	if err != nil {
		return nil, err
	}
	return &Exported{Rows: &index.Rows, Bytes: index.Bytes()}, nil
}

// traffic is the matrix of some layers, nil for all, as a table.
func (m *Merged) traffic(layers []string) (rows []parquet.Traffic) {
	endpoints := map[[2]uint32]uint32{}
	for i := range m.run.Endpoints {
		e := &m.run.Endpoints[i]
		endpoints[[2]uint32{e.Process, e.Object}] = uint32(i)
	}
	end := func(e *End) (process, endpoint *uint32, rank *int64) {
		if e == nil {
			return nil, nil, nil
		}
		p := uint32(e.process)
		if i, ok := endpoints[[2]uint32{p, e.ID}]; ok {
			endpoint = &i
		}
		return &p, endpoint, e.Rank
	}
	for _, name := range slices.Sorted(maps.Keys(m.matrix.Layers)) {
		if layers != nil && !slices.Contains(layers, name) {
			continue
		}
		for _, side := range []struct {
			name string
			rows []EndpointRow
		}{{"initiator", m.matrix.Layers[name].Endpoint}, {"target", m.matrix.Layers[name].Received}} {
			for _, r := range side.rows {
				t := parquet.Traffic{Layer: name, Operation: r.Operation, Side: side.name, Count: r.Count, Bytes: r.Bytes}
				t.SourceProcess, t.SourceEndpoint, t.SourceRank = end(r.Source)
				t.DestinationProcess, t.DestinationEndpoint, t.DestinationRank = end(r.Destination)
				rows = append(rows, t)
			}
		}
	}
	return rows
}
