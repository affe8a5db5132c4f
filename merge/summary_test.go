package merge

import (
	"strings"
	"testing"
)

// Where there are no captures it is said why: a recorder that was nowhere loaded is not a library that nobody called.
func TestSummaryOfARunWithoutCaptures(t *testing.T) {
	two, calls, started := 2, "hint: no process called a library", "hint: no rank started with the recorder"
	for _, c := range []struct {
		ranks Ranks
		want  string
	}{
		{Ranks{Expected: &two}, started},
		{Ranks{Expected: &two, Injected: 2, Idle: 2}, calls},
		{Ranks{}, calls},
	} {
		var s strings.Builder
		(&Info{Ranks: c.ranks}).Summary(&s)
		if strings.Contains(s.String(), calls) != (c.want == calls) || strings.Contains(s.String(), started) != (c.want == started) {
			t.Errorf("%+v: want %s\n%s", c.ranks, c.want, &s)
		}
	}
}

// What GPUs rang for is never called the traffic of another layer again.
func TestSummaryOfLayersApart(t *testing.T) {
	verbsLayer, doorbell := "verbs", "doorbell"
	operations := map[string]map[string]Count{"verbs": {"send": {5, 50}}, "uct": {"put": {5, 50}}, "doorbell": {"write": {7, 70}}}
	for _, c := range []struct {
		layer *string
		want  []string
	}{
		{&verbsLayer, []string{"the same traffic was also seen at layer uct\n", "rung for by GPUs, and in no other layer: layer doorbell: 7 write (70 B)"}},
		{&doorbell, []string{"posted by the host, and not in that: layer uct: 5 put (50 B)", "posted by the host, and not in that: layer verbs: 5 send (50 B)"}},
	} {
		var s strings.Builder
		(&Info{Layer: c.layer, Operations: operations}).Summary(&s)
		for _, want := range c.want {
			if !strings.Contains(s.String(), want) {
				t.Errorf("layer %s: want %q in\n%s", *c.layer, want, &s)
			}
		}
		if *c.layer == doorbell && strings.Contains(s.String(), "same traffic") {
			t.Errorf("layer %s:\n%s", *c.layer, &s)
		}
	}
}
