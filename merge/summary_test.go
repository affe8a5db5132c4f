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
