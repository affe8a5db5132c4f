// Package files holds the faults of files: disks that are full, go away or are taken away, names that are odd, captures that are torn,
// merges that are killed. The numbers are those of the list of known field failures that the tests are named after.
package files

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/tests/faults/rig"
	"github.com/sigmatrace/sigmatrace/tests/needs"
)

var layers = []string{"verbs", "ucp"}

// F63: no room for the file itself, or for its name. The process is not recorded, and the run says so.
func TestF63DiskFullAtCreation(t *testing.T) {
	needs.Time(t)
	for name, options := range map[string]string{"blocks": "size=256k", "inodes": "size=8m,nr_inodes=8"} {
		for backEnd, set := range rig.BackEnds {
			t.Run(name+"/"+backEnd, func(t *testing.T) {
				dir := rig.Tmpfs(t, options)
				r := rig.New(t, rig.Spec{Layer: "verbs", Sets: []string{set}}, dir)
				r.Both(rig.Fault(func(r *rig.Run) {
					r.Pid() // the run directory is there
					if name == "blocks" {
						rig.Fill(t, filepath.Join(dir, "filler"))
						return
					}
					var err error
					for i := 0; err == nil; i++ {
						err = os.WriteFile(filepath.Join(dir, fmt.Sprint("filler", i)), nil, 0o600)
					}
				}), rig.Do("post 1000"), rig.Do("threads 4 100"), rig.Do("keep 10"))
				if c := r.Captures(); len(c) != 0 {
					t.Errorf("a capture without room for it: %v", c)
				}
				i := r.Info()
				if len(i.Ranks.Incomplete) != 1 || i.Ranks.Incomplete[0].Reason != "no capture" {
					t.Errorf("incomplete: %+v", i.Ranks.Incomplete)
				}
			})
		}
	}
}

// F63: the disk becomes full while the program runs. Events stop, the tables of what is known go on, the losses are counted to the event.
func TestF63DiskFullAtReservation(t *testing.T) {
	needs.Time(t)
	for _, layer := range layers {
		for backEnd, set := range rig.BackEnds {
			t.Run(layer+"/"+backEnd, func(t *testing.T) {
				dir := rig.Tmpfs(t, "size=8m")
				r := rig.New(t, rig.Spec{Layer: layer, Sets: []string{set}}, dir)
				r.Both(rig.Do("post 1000"), rig.Fault(func(r *rig.Run) { rig.Fill(t, filepath.Join(dir, "filler")) }), rig.Do("post 300000"), rig.Do("post 1"),
					rig.Fault(func(r *rig.Run) {
						if err := os.Remove(filepath.Join(dir, "filler")); err != nil {
							t.Error(err)
						}
					}), rig.Do("post 1000"))
				rig.Grow(t, dir, "size=128m")
				if errs, status := r.Merge(); status != 3 || !strings.Contains(errs, "no space left") {
					t.Errorf("merge ended with %d: %s", status, errs)
				}
				i := r.Info()
				if i.Lost.Events < 1000 || i.Lost.Bytes == 0 || len(i.Damaged) != 0 {
					t.Errorf("lost %+v, damaged %+v", i.Lost, i.Damaged)
				}
				r.Exact(i)
			})
		}
	}
}

// F63: no room for what the program makes when the disk is full already: that its definitions are missing is counted apart from the events.
func TestF63DiskFullAtDefinitions(t *testing.T) {
	needs.Time(t)
	for backEnd, set := range rig.BackEnds {
		t.Run(backEnd, func(t *testing.T) {
			dir := rig.Tmpfs(t, "size=8m")
			r := rig.New(t, rig.Spec{Layer: "verbs", Sets: []string{set, "record.chunk=16KiB"}}, dir)
			r.Both(rig.Do("post 1000"), rig.Fault(func(r *rig.Run) { rig.Fill(t, filepath.Join(dir, "filler")) }), rig.Do("post 100000"), rig.Do("keep 2000"),
				rig.Do("post 1000"), rig.Do("qps 200 3"), rig.Fault(func(r *rig.Run) {
					if err := os.Remove(filepath.Join(dir, "filler")); err != nil {
						t.Error(err)
					}
				}))
			rig.Grow(t, dir, "size=128m")
			if errs, status := r.Merge(); status != 3 || !strings.Contains(errs, "no space left") {
				t.Errorf("merge ended with %d: %s", status, errs)
			}
			i := r.Info()
			if i.Lost.Definitions < 1500 {
				t.Errorf("%d definitions lost, the program registered 2000 regions that had no room", i.Lost.Definitions)
			}
			// 200 queue pairs need more table than there was room for: their writes are counted without them, and that is said.
			if !strings.Contains(i.Ranks.Incomplete[0].Reason, "tables full") {
				t.Errorf("incomplete: %+v", i.Ranks.Incomplete)
			}
			r.Exact(i)
		})
	}
}
