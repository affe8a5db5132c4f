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

// Queue pairs of which nothing was seen are told once for each process and reason, and what to do about those that GPUs may ring.
func TestSummaryOfWhatWasNotSeen(t *testing.T) {
	const hint = "hint: what GPU kernels post to such queue pairs is recorded with `--set providers=cuda`"
	devx, rings := blindDevx+": requests", "its rings were asked for"
	var blind []Blind
	for _, name := range []string{"QP 0x1", "QP 0x2", "QP 0x3", "QP 0x4", "QP 0x5", "QP 0x6", "QP 0x7"} {
		blind = append(blind, Blind{nil, "n", 7, name, devx})
	}
	blind = append(blind, Blind{nil, "n", 7, "QP 0x8", rings}, Blind{nil, "n", 8, "QP 0x9", devx})
	for _, c := range []struct {
		info Info
		want string
	}{
		{Info{Blind: blind}, "not seen: pid 7 on n: QP 0x1, QP 0x2, QP 0x3, QP 0x4, QP 0x5 and 2 more: " + devx + "\nsigmatrace: not seen: pid 7 on n: QP 0x8: " + rings +
			"\nsigmatrace: not seen: pid 8 on n: QP 0x9: " + devx + "\nsigmatrace: " + hint + "\n"},
		{Info{Blind: blind, GPUs: &GPUs{}}, "not seen: pid 8 on n: QP 0x9: " + devx + "\n"},
		{Info{Blind: blind[7:8]}, "not seen: pid 7 on n: QP 0x8: " + rings + "\n"},
	} {
		var s strings.Builder
		c.info.Summary(&s)
		if !strings.Contains(s.String(), c.want) || strings.Contains(s.String(), hint) != strings.Contains(c.want, hint) {
			t.Errorf("want %q in\n%s", c.want, &s)
		}
	}
}

// Sums that are told side by side add up, or it is said why not.
func TestSummaryOfControl(t *testing.T) {
	doorbell := "doorbell"
	for _, c := range []struct {
		control uint64
		want    string
	}{{5, "; data 7 (70 B), control 5\n"}, {6, "; data 7 (70 B), control 6 (1 of them no-operations, waits and the like)\n"}} {
		var s strings.Builder
		i := Info{Layer: &doorbell, Operations: map[string]map[string]Count{"doorbell": {"write": {7, 70}, "atomic": {5, 40}}},
			Purposes: map[string]Purposes{"doorbell": {Data: Count{7, 70}, Control: Count{c.control, 40}}}}
		i.Summary(&s)
		if !strings.Contains(s.String(), c.want) {
			t.Errorf("want %q in\n%s", c.want, &s)
		}
	}
}

// A line of NCCL's operations says of what its numbers are.
func TestSummaryOfGroups(t *testing.T) {
	verbs, two := "verbs", int64(2)
	for want, g := range map[string]GroupInfo{
		"AllReduce on communicator world of 2 ranks: 20 calls over all ranks (80 B); posted for it at layer verbs: 40 requests (160 B)": {
			Name: "world", Ranks: &two, Function: "AllReduce", Count: 20, Bytes: 80, Traffic: map[string]Count{"verbs": {40, 160}}},
		"unknown operation on communicator unknown: posted for it at layer verbs: 1 requests (2 B)": {Traffic: map[string]Count{"verbs": {1, 2}}},
	} {
		if got := g.line(&verbs); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
