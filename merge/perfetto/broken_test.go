package perfetto_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/perfetto"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline/timelinetest"
	"github.com/sigmatrace/sigmatrace/tests/tp"
)

// What would show a run wrongly must not pass for a good trace.
func TestBrokenTracesAreFoundOut(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	tp.Need(t)
	src := timelinetest.New(timelinetest.Config{Seed: 9, Ranks: 3, Messages: 300, Partitions: 3, Strays: true})
	trace, stats := write(t, src, perfetto.Options{})
	all := packets(t, trace)
	if err := verify(save(t, join(all)), stats, stats.FlowBegins); err != nil {
		t.Fatalf("the trace as written: %v", err)
	}
	// find is the first packet from there on for which ok holds.
	find := func(from int, ok func(p packet) bool) int {
		for i := from; i < len(all); i++ {
			if ok(all[i]) {
				return i
			}
		}
		t.Fatal("no such packet")
		return -1
	}
	middle := len(all) / 2
	kind := func(k uint64) int { return find(middle, func(p packet) bool { return p.event == k }) }
	cleared := find(middle, func(p packet) bool { return p.flags == 1 })
	drop := func(i int) []byte { return join(slices.Delete(slices.Clone(all), i, i+1)) }
	move := func(from, to int) []byte {
		p := slices.Delete(slices.Clone(all), from, from+1)
		return join(slices.Insert(p, to, all[from]))
	}
	event := find(cleared, func(p packet) bool { return p.event == 1 })
	// A track is described in every partition that uses it.
	described := find(event, func(p packet) bool { return p.track })
	undescribed := slices.DeleteFunc(slices.Clone(all), func(p packet) bool { return bytes.Equal(p.raw, all[described].raw) })
	broken := map[string][]byte{
		"track not described":            join(undescribed),
		"begin dropped":                  drop(kind(1)),
		"end dropped":                    drop(kind(2)),
		"instant dropped":                drop(kind(3)),
		"first packet of a sequence":     drop(cleared),
		"first event of a sequence":      drop(event),
		"process dropped":                drop(find(0, func(p packet) bool { return p.track }) + 1),
		"clocks dropped":                 drop(find(0, func(p packet) bool { return p.snapshot })),
		"last packet dropped":            drop(len(all) - 1),
		"overview dropped":               drop(len(all) - 2),
		"moved before the cleared state": move(event, cleared),
		"cleared state moved to the end": move(cleared, len(all)-1),
		"cut in the middle of a packet":  join(all[:middle])[:len(join(all[:middle]))-3],
		"cut between packets":            join(all[:middle]),
		"cut before the overview":        join(all[:len(all)-3]),
		"compressed, cut in the middle":  trace[:len(trace)/2],
		"compressed, trailer cut away":   trace[:len(trace)-8],
		"compressed, overview cut away":  trace[:len(trace)-8-300],
		"a packet twice":                 join(slices.Insert(slices.Clone(all), middle, all[kind(1)])),
	}
	quick := []string{"begin dropped", "end dropped", "instant dropped", "moved before the cleared state", "compressed, cut in the middle"}
	for name, b := range broken {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && !slices.Contains(quick, name) {
				t.Skip("left to the whole run")
			}
			err := verify(save(t, b), stats, stats.FlowBegins)
			if err == nil {
				t.Error("passed for a good trace")
			}
			t.Log(err)
		})
	}
	t.Run("overlap on a lane", func(t *testing.T) {
		trace, stats := write(t, overlapping(t, src), perfetto.Options{})
		if err := verify(save(t, trace), stats, stats.FlowBegins); err == nil {
			t.Error("passed for a good trace")
		} else {
			t.Log(err)
		}
	})
}

// overlapping is a copy of src in which one operation reaches into the next of its lane.
func overlapping(t *testing.T, src *timelinetest.Source) *timelinetest.Source {
	c := &timelinetest.Source{Info: src.Info}
	for _, p := range src.Parts {
		c.Parts = append(c.Parts, slices.Clone(p))
	}
	type lane struct{ endpoint, lane uint32 }
	last := map[lane]*ops.Op{}
	for _, p := range c.Parts {
		for i := range p {
			k := lane{p[i].Endpoint, uint32(p[i].Lane)}
			if before := last[k]; before != nil && p[i].Done > p[i].Post+2 {
				before.Done = p[i].Post + 1
				return c
			}
			last[k] = &p[i]
		}
	}
	t.Fatal("no lane with two operations")
	return nil
}
