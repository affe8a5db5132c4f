package files

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/tests/faults/rig"
	"github.com/sigmatrace/sigmatrace/tests/needs"
)

// F63: the user's quota ends, on a file system that has one.
func TestF63Quota(t *testing.T) {
	needs.Time(t)
	for backEnd, set := range rig.BackEnds {
		t.Run(backEnd, func(t *testing.T) {
			volume := rig.Quota(t, "1500K")
			r := rig.New(t, rig.Spec{Layer: "verbs", Sets: []string{set}}, volume)
			r.Both(rig.Do("post 1000"), rig.Do("post 400000"), rig.Fault(func(*rig.Run) { rig.Unlimited(t, volume) }))
			if errs, status := r.Merge(); status != 3 || !strings.Contains(errs, "lost events: quota (disk quota exceeded)") {
				t.Errorf("merge ended with %d: %s", status, errs)
			}
			i := r.Info()
			if i.Lost.Events == 0 {
				t.Error("nothing was lost")
			}
			r.Exact(i)
		})
	}
}

// F63: a quota that ends before the first traced call, and one that lets the file be but gives it nothing more. The quota is a preload's,
// which returns EDQUOT where the recorder reserves space.
func TestF63QuotaAtCreation(t *testing.T) {
	needs.Time(t)
	for backEnd, set := range rig.BackEnds {
		for _, first := range []bool{true, false} {
			name := map[bool]string{true: "/nothing", false: "/a file"}[first]
			t.Run(backEnd+name, func(t *testing.T) {
				full := filepath.Join(t.TempDir(), "full")
				end := rig.Fault(func(*rig.Run) {
					if err := os.WriteFile(full, nil, 0o600); err != nil {
						t.Error(err)
					}
				})
				r := rig.New(t, rig.Spec{Layer: "ucp", Sets: []string{set, "record.chunk=16KiB"}, Env: []string{"SHIM_FALLOCATE=122 " + full, "LD_PRELOAD=" + needs.Built(t, "tests/fault-shim.so")}}, "")
				if first {
					r.Both(end, rig.Do("post 100"), rig.Do("post 300000"))
					if c := r.Captures(); len(c) > 0 {
						t.Errorf("a capture without room for it: %v", c)
					}
					return
				}
				r.Both(rig.Do("post 100"), end, rig.Do("post 300000"))
				i := r.Info()
				if i.Lost.Events == 0 || !strings.Contains(i.Ranks.Incomplete[0].Reason, "quota") {
					t.Errorf("lost %+v: %+v", i.Lost, i.Ranks.Incomplete)
				}
				if errs, status := r.Merge(); status != 3 {
					t.Errorf("merge ended with %d: %s", status, errs)
				}
				r.Exact(i)
			})
		}
	}
}

// F63: a quota that ends while the launcher copies captures out of memory. What it could not copy stays there, and is said; the next merge
// with room has everything.
func TestF63QuotaOfCapturesInMemory(t *testing.T) {
	needs.Time(t)
	volume := rig.Quota(t, "1500K")
	r := rig.New(t, inMemory("verbs"), volume)
	var folder string
	r.Both(rig.Do("post 1000"), rig.Fault(func(r *rig.Run) { folder = memoryOf(t, r) }), rig.Do("post 2000000"))
	if said := r.Errors(); !strings.Contains(said, "captures are still in memory, in "+folder) || !strings.Contains(said, "disk quota exceeded") {
		t.Errorf("the launcher said: %s", said)
	}
	rig.Unlimited(t, volume)
	r.MustMerge(0)
	i := r.Info()
	if i.Lost.Events != 0 {
		t.Errorf("%d events were lost", i.Lost.Events)
	}
	r.Exact(i)
	nothingLeft(t, folder)
}
