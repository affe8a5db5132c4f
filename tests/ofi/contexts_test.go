package ofi

import (
	"os/exec"
	"testing"
)

// What there is besides plain endpoints: scalable endpoints, shared contexts, aliases, accepted and rejected connections. All of it is
// counted as the program and the counting preload count it, and every message is matched. Sure is what order or source tell: not
// untagged messages of two transmit contexts to one receive context, nor of two connections to a shared one.
func TestContexts(t *testing.T) {
	for n, c := range []struct {
		kind              string
		messages, guessed uint64
		sends             []string // in the matrix, both ways
	}{
		{"scalable", 80, 40, []string{"send", "tagged_send"}},
		{"shared", 80, 0, []string{"send", "tagged_send"}},
		{"alias", 40, 0, []string{"send", "tagged_send"}},
		{"connections", 20, 10, []string{"send"}},
	} {
		for k, mode := range modes {
			if testing.Short() && k > 0 {
				continue
			}
			t.Run(c.kind+"/"+mode, func(t *testing.T) {
				place := behind
				if (n+k)%2 == 0 {
					place = ahead
				}
				r := start(t, mode, place, built(t, "tests/ofi-contexts"), c.kind)
				i, _ := r.check("sent")
				r.check("count.ofi")
				ranks := r.ranks()
				for _, op := range c.sends {
					if a, b := ranks[op+" 0 1"], ranks[op+" 1 0"]; a.Count == 0 || a != b {
						t.Errorf("matrix: %v", ranks)
					}
				}
				if len(ranks) != 2*len(c.sends) {
					t.Errorf("matrix: %v", ranks)
				}
				if mode != "full" {
					return
				}
				if i.Flows.Matched != c.messages || i.Flows.Ambiguous != c.guessed || len(i.Flows.Unmatched) != 0 || i.Unfinished != 0 || i.Surplus != 0 {
					t.Errorf("%d messages: %+v, unfinished %d, surplus %d", c.messages, i.Flows, i.Unfinished, i.Surplus)
				}
			})
		}
	}
}

// Calls that are not recorded return what they return without the recorder, on objects that it has taken.
func TestPassedThrough(t *testing.T) {
	exe := compile(t, "testdata/passes.c", "-lfabric")
	for _, provider := range []string{"tcp", "sockets"} {
		t.Run(provider, func(t *testing.T) {
			want, err := exec.Command(exe, provider).Output()
			if err != nil || len(want) == 0 {
				t.Fatalf("without the recorder: %v", err)
			}
			r := &run{t: t, dir: t.TempDir()}
			got, err := r.command("full", exe, provider).Output()
			if err != nil || string(got) != string(want) {
				t.Errorf("%v: printed\n%s\nand without the recorder\n%s", err, got, want)
			}
			if i := r.info(); i.Processes.Complete != 1 || i.Flows.Matched != 1 {
				t.Errorf("%+v", i)
			}
		})
	}
}
