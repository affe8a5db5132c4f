// Package scale runs the recorder with far more of everything than programs mostly have: threads, queue pairs, memory regions, endpoints,
// completion queues. What it costs goes to the test's log; what is bounded is held to its bound.
package scale

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/tests/faults/rig"
	"github.com/sigmatrace/sigmatrace/tests/needs"
)

// cost is what a run of commands took: time, and memory of the process afterwards.
type cost struct {
	took time.Duration
	anon uint64 // KiB of memory that is the process's own
	all  uint64 // KiB, with what is mapped
}

// measure runs commands without and with us, logs what it costs, and returns the latter's run, still at work.
func measure(t *testing.T, s rig.Spec, commands ...string) (r *rig.Run, without, with cost) {
	t.Helper()
	one := func(r *rig.Run) cost {
		r.Do("post 1")
		began := time.Now()
		for _, c := range commands {
			r.Do("%s", c)
		}
		return cost{time.Since(began), r.Memory("RssAnon"), r.Memory("VmRSS")}
	}
	plain := rig.New(t, s, "").StartPlain()
	without = one(plain)
	plain.End()
	r = rig.New(t, s, "").Start()
	with = one(r)
	if r.Said() != strings.TrimSuffix(plain.Said(), lastLine(plain.Said())) {
		t.Errorf("output\n%s\nwithout us\n%s", r.Said(), plain.Said())
	}
	t.Logf("%s: %v without us, %v with; anonymous memory %d and %d KiB, resident %d and %d KiB", strings.Join(commands, ", "), without.took.Round(time.Millisecond),
		with.took.Round(time.Millisecond), without.anon, with.anon, without.all, with.all)
	return r, without, with
}

func lastLine(text string) string {
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	return lines[len(lines)-1] + "\n"
}

// finish ends a run and merges it.
func finish(t *testing.T, r *rig.Run, status int) *rig.Info {
	t.Helper()
	if got := r.End(); got != 0 {
		t.Fatalf("ended with %d: %s", got, r.Errors())
	}
	began := time.Now()
	r.MustMerge(status)
	i := r.Info()
	t.Logf("merged in %v: %d events, %d of capture", time.Since(began).Round(time.Millisecond), i.Events.Total, r.Size())
	return i
}

// 512 threads record at once, each with a queue pair of its own.
func TestF62Threads512(t *testing.T) {
	needs.Time(t)
	for backEnd, set := range rig.BackEnds {
		t.Run(backEnd, func(t *testing.T) {
			r, without, with := measure(t, rig.Spec{Layer: "verbs", Sets: []string{set}}, "threads 512 400")
			if per := (with.anon - min(without.anon, with.anon)) / 512; per > 256 {
				t.Errorf("%d KiB of memory for each thread", per)
			}
			i := finish(t, r, 0)
			r.Exact(i)
		})
	}
}

// Ten thousand threads come and go: their states are used again, and nothing grows with their number.
func TestF62ThreadChurn(t *testing.T) {
	needs.Time(t)
	r, _, half := measure(t, rig.Spec{Layer: "verbs"}, "churn 5000 4")
	r.Do("churn 5000 4")
	if grown := int64(r.Memory("RssAnon")) - int64(half.anon); grown > 1024 {
		t.Errorf("5,000 more threads took %d KiB more", grown)
	}
	i := finish(t, r, 0)
	r.Exact(i)
	if n := r.Live()[0].Threads; n > 9+8 {
		t.Errorf("%d thread states; at most nine threads were there at once", n)
	}
}

// Four thousand queue pairs, all with traffic.
func TestF62QueuePairs4000(t *testing.T) {
	needs.Time(t)
	for _, mode := range []string{"full", "aggregate"} {
		t.Run(mode, func(t *testing.T) {
			r, without, with := measure(t, rig.Spec{Layer: "verbs", Mode: mode}, "qps 4000 8")
			if per := (with.anon - min(without.anon, with.anon)) * 1024 / 4000; per > 8192 {
				t.Errorf("%d bytes of memory for each queue pair", per)
			}
			i := finish(t, r, 0)
			if mode == "full" {
				r.Exact(i)
			} else if writes, bytes, _, _ := r.Tally(); r.Writes(i) != (rig.Count{Count: writes, Bytes: bytes}) {
				t.Errorf("%+v of %d writes", r.Writes(i), writes)
			}
		})
	}
}

// Many completion queues, polled in turn.
func TestF62CompletionQueuesInTurn(t *testing.T) {
	needs.Time(t)
	r, _, _ := measure(t, rig.Spec{Layer: "verbs"}, "cqs 500 200")
	i := finish(t, r, 0)
	r.Exact(i)
	if n := r.Size(); n > 16<<20 {
		t.Errorf("%d bytes for 100,000 polls that found nothing", n)
	}
}

// A million memory regions, registered and deregistered: definitions stay within the budget, memory within its bound, and what found no
// room is counted.
func TestF64RegistrationsMillion(t *testing.T) {
	needs.Time(t)
	for backEnd, set := range rig.BackEnds {
		t.Run(backEnd, func(t *testing.T) {
			// The written back end makes a system call or two for each definition: fewer of them, in a smaller file.
			count, budget := 1_000_000, int64(16<<20)
			if backEnd == "written" {
				count, budget = 200_000, 8<<20
			}
			r, without, with := measure(t, rig.Spec{Layer: "verbs", Sets: []string{set, fmt.Sprint("record.budget=", budget)}}, fmt.Sprint("mrs ", count), "post 1000")
			if grown := with.anon - min(without.anon, with.anon); grown > 20<<10 { // 65,536 objects are 15 MiB of it
				t.Errorf("%d KiB of memory more", grown)
			}
			i := finish(t, r, 3)
			_, _, _, regions := r.Tally()
			if i.Lost.Definitions == 0 || i.Lost.Definitions > 2*regions {
				t.Errorf("%d definitions lost of %d", i.Lost.Definitions, 2*regions)
			}
			if n := r.Size(); n > budget+4096 {
				t.Errorf("a capture of %d bytes, the budget is %d", n, budget)
			}
			r.Exact(i)
		})
	}
}

// More regions and more endpoints at once than the recorder has places for: traffic is counted, and those without a place are counted too.
func TestF64MoreObjectsThanPlaces(t *testing.T) {
	needs.Time(t)
	t.Run("endpoints", func(t *testing.T) {
		const endpoints = 100_000
		r, _, _ := measure(t, rig.Spec{Layer: "ucp", Mode: "aggregate"}, "eps 100000")
		i := finish(t, r, 3)
		if n := i.Lost.Objects; n < (endpoints-65536)*9/10 || n > endpoints-65536+100 {
			t.Errorf("%d endpoints without a place", n)
		}
		if writes, bytes, _, _ := r.Tally(); r.Writes(i) != (rig.Count{Count: writes, Bytes: bytes}) || !i.Exact {
			t.Errorf("%+v of %d writes, exact %v", r.Writes(i), writes, i.Exact)
		}
	})
	t.Run("regions", func(t *testing.T) {
		r, _, _ := measure(t, rig.Spec{Layer: "verbs"}, "keep 65500", "qps 100 10")
		i := finish(t, r, 3)
		if i.Lost.Objects == 0 || i.Lost.Objects > 200 {
			t.Errorf("%d objects without a place", i.Lost.Objects)
		}
		r.Exact(i)
	})
}
