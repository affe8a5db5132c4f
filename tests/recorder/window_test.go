package recorder

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/profiles"
	"github.com/sigmatrace/sigmatrace/tests/faults/rig"
	"github.com/sigmatrace/sigmatrace/tests/needs"
)

func monotonic(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// monotonicOf returns what CLOCK_MONOTONIC was at ticks of the recording clock, by a line through the first and last pair of readings.
func monotonicOf(t *testing.T, f *capture.File) func(ticks uint64) time.Duration {
	t.Helper()
	var ticks, ns []float64
	definitions(t, f, catalogue.DefClockPair, func(d *capture.Definition) {
		ticks = append(ticks, float64(d.Uint(catalogue.DefClockPairAfter)))
		ns = append(ns, float64(d.Uint(catalogue.DefClockPairMonotonicNs)))
	})
	if len(ns) < 2 {
		t.Fatalf("%d readings of the clocks", len(ns))
	}
	last := len(ns) - 1
	rate := (ns[last] - ns[0]) / (ticks[last] - ticks[0])
	return func(at uint64) time.Duration { return time.Duration(ns[0] + (float64(at)-ticks[0])*rate) }
}

// A reading of the monotonic clock that comes late, since the thread lost its processor, is in no pair: the wall clock would seem to have been stepped.
func TestClockPairsAreReadTogether(t *testing.T) {
	client := build(t)
	env, _ := steppable(t)
	own, captures := configure(t, t.TempDir(), settings{})
	const late = 20 * time.Millisecond
	cmd := exec.Command(client, "paced", "200", "50")
	cmd.Env = append(append(own, env...), fmt.Sprintf("SHIM_LATE=%d", late))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	pairs, apart, took := 0, time.Duration(0), time.Hour
	for range 100 {
		before, now := monotonic(t), time.Now()
		if after := monotonic(t); after-before < took {
			apart, took = time.Duration(now.UnixNano())-after, after-before
		}
	}
	definitions(t, files(t, captures)[0], catalogue.DefClockPair, func(d *capture.Definition) {
		pairs++
		got := time.Duration(d.Uint(catalogue.DefClockPairRealtimeNs) - d.Uint(catalogue.DefClockPairMonotonicNs))
		if off := (got - apart).Abs(); off > late/2 {
			t.Errorf("pair %d: the clocks are %v apart, %v of it too much", pairs, got, off)
		}
	})
	if pairs < 2 {
		t.Errorf("%d pairs", pairs)
	}
}

// definitions calls do for those of a kind.
func definitions(t *testing.T, f *capture.File, id uint16, do func(*capture.Definition)) {
	t.Helper()
	if err := f.Definitions(catalogue.Default, func(d *capture.Definition) error {
		if d.ID == id {
			do(d)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// steppable returns variables that make a program read a wall clock which the function sets ahead by so much.
func steppable(t *testing.T) (env []string, set func(time.Duration)) {
	t.Helper()
	shim, err := filepath.Abs(filepath.Join(root, "build/tests/fault-shim.so"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(shim); err != nil {
		t.Fatalf("not built (run `make tests`): %v", err)
	}
	variable, set := rig.WallClock(t)
	return []string{"LD_PRELOAD=" + shim, variable}, set
}

// F60: steps of the wall clock, by an hour in either direction, before a window of the profile opens and while it is open, move neither
// its begin nor its end; nor do they in a child that is forked after them, nor, where the launcher's clock is that of the process, one
// before the process is loaded.
func TestF60WindowsStayWhenTheWallClockIsStepped(t *testing.T) {
	needs.Time(t)
	client := build(t)
	const delay, duration, lives = 600 * time.Millisecond, 1500 * time.Millisecond, 3500 * time.Millisecond
	type step struct{ at, ahead time.Duration }
	const hour = time.Hour
	for name, c := range map[string]struct {
		elsewhere bool // the launcher's clock is not this host's
		child     bool
		steps     []step
		want      []bool
	}{
		"none":                            {want: []bool{false, true, false}},
		"before it opens, forwards":       {steps: []step{{200 * time.Millisecond, hour}}, want: []bool{false, true, false}},
		"before it opens, backwards":      {steps: []step{{200 * time.Millisecond, -hour}}, want: []bool{false, true, false}},
		"while open, forwards":            {steps: []step{{900 * time.Millisecond, hour}}, want: []bool{false, true, false}},
		"while open, backwards":           {steps: []step{{900 * time.Millisecond, -hour}}, want: []bool{false, true, false}},
		"before all, forwards":            {steps: []step{{0, hour}}, want: []bool{false, true, false}},
		"before all, backwards":           {steps: []step{{0, -hour}}, want: []bool{false, true, false}},
		"forth and back":                  {steps: []step{{200 * time.Millisecond, hour}, {900 * time.Millisecond, 0}}, want: []bool{false, true, false}},
		"another host":                    {elsewhere: true, want: []bool{false, true, false}},
		"another host, forwards":          {elsewhere: true, steps: []step{{200 * time.Millisecond, hour}}, want: []bool{false, true, false}},
		"another host, backwards":         {elsewhere: true, steps: []step{{900 * time.Millisecond, -hour}}, want: []bool{false, true, false}},
		"another host, behind":            {elsewhere: true, steps: []step{{0, -hour}}, want: []bool{false, true, false}},
		"another host, an hour ahead":     {elsewhere: true, steps: []step{{0, hour}}, want: []bool{false}},
		"another host, a child, forwards": {elsewhere: true, child: true, steps: []step{{200 * time.Millisecond, hour}}, want: []bool{true, false}},
		"a child, backwards":              {child: true, steps: []step{{200 * time.Millisecond, -hour}}, want: []bool{true, false}},
	} {
		run := func(t *testing.T) (late bool) {
			clock, set := steppable(t)
			steps := c.steps
			if len(steps) > 0 && steps[0].at == 0 {
				set(steps[0].ahead)
				steps = steps[1:]
			}
			start, began := time.Now(), monotonic(t)
			s := settings{"run.start": fmt.Sprint(start.UnixNano()), "window.delay": fmt.Sprintf("%dns", delay), "window.duration": fmt.Sprintf("%dns", duration)}
			if !c.elsewhere {
				of := profiles.CurrentClock(start)
				s["run.clock"], s["run.start_monotonic"] = of.Name, fmt.Sprint(of.Start.Nanoseconds())
			} else {
				s["run.clock"], s["run.start_monotonic"] = "ffffffff-ffff-ffff-ffff-ffffffffffff/1", "1"
			}
			env, captures := configure(t, t.TempDir(), s)
			args := []string{"paced", "200", fmt.Sprint(lives.Milliseconds())}
			if c.child {
				args = append(args, "900")
				args[0] = "paced_child"
			}
			cmd := exec.Command(client, args...)
			cmd.Env = append(append(env, clock...), "GAP=1")
			var out bytes.Buffer
			cmd.Stdout = &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			for _, x := range steps {
				time.Sleep(x.at - (monotonic(t) - began))
				set(x.ahead)
			}
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
			var gap time.Duration
			if _, err := fmt.Sscan(out.String(), &gap); err != nil {
				t.Fatalf("%v: %q", err, out.String())
			}
			late = gap > duration/2 // it stood still, and may not have noticed an edge
			last := delay
			if c.child { // made when the window is open already
				last += duration
			}
			f := files(t, captures)[0]
			// Nothing changes before its time, whatever the load; how much later that is noticed is up to the calls.
			of := monotonicOf(t, f)
			var got []bool
			definitions(t, f, catalogue.DefWindow, func(d *capture.Definition) {
				late = late || len(got) == 0 && of(d.Time)-began > last
				open, at, edge := d.Uint(catalogue.DefWindowOpen) != 0, of(d.Time)-began, delay
				if !open {
					edge += duration
				}
				if len(got) > 0 && at < edge-time.Millisecond {
					t.Errorf("open is %v after %v, should be after %v", open, at, edge)
				}
				got = append(got, open)
			})
			for _, ev := range events(t, f, 1) {
				if ev.ID == catalogue.EventUcpPut && of(ev.Time) < began+delay-time.Millisecond {
					t.Fatalf("an event %v after the run began", of(ev.Time)-began)
				}
			}
			if !late && !slices.Equal(got, c.want) {
				t.Fatalf("open: %v, want %v", got, c.want)
			}
			return late
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 10 {
				if !run(t) {
					return
				}
				t.Log("the program began too late or stood still: once more")
			}
			t.Error("the program always began too late or stood still")
		})
	}
}

// F60: intervals of the wall clock follow it when it is set back: what is counted then is in the intervals of the new time, and not in the
// last one before until its time comes again.
func TestF60IntervalsFollowTheWallClockBack(t *testing.T) {
	needs.Time(t)
	client := build(t)
	clock, set := steppable(t)
	env, captures := configure(t, t.TempDir(), settings{"mode": "aggregate", "epoch.interval": "100000000ns"})
	began := time.Now()
	cmd := exec.Command(client, "paced", "200", "100000") // until SIGTERM
	cmd.Env = append(env, clock...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	behind := began.Add(-time.Minute).UnixNano()
	// counted is how many requests are in intervals before the step and after it, by now.
	counted := func() (before, after uint64) {
		names, _ := filepath.Glob(filepath.Join(captures, "*", "*.capture"))
		for _, name := range names {
			f, err := capture.Open(name)
			if err != nil {
				continue // it is in the making
			}
			starts := map[uint32]int64{}
			definitions(t, f, catalogue.DefEpoch, func(d *capture.Definition) {
				starts[uint32(d.Uint(catalogue.DefEpochNumber))] = int64(d.Uint(catalogue.DefEpochRealtimeNs))
			})
			err = f.Aggregates(func(a *capture.Aggregate) error {
				switch start, known := starts[a.Epoch]; {
				case !known: // it has begun since
				case start < behind:
					after += a.Count
				default:
					before += a.Count
				}
				return nil
			})
			f.Close()
			if err != nil {
				t.Fatal(err)
			}
		}
		return before, after
	}
	await := func(done func(before, after uint64) bool) {
		for end := time.Now().Add(time.Minute); !done(counted()) && time.Now().Before(end); {
			time.Sleep(20 * time.Millisecond)
		}
	}
	await(func(before, _ uint64) bool { return before > 100 })
	set(-time.Hour)
	await(func(_, after uint64) bool { return after > 100 })
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if before, after := counted(); before == 0 || after == 0 {
		t.Errorf("%d counted in intervals before the step, %d after it", before, after)
	}
}

// numbers holds that every recorded request of client.c's paced() has its number, by the counters at the begin of each chunk and by the
// address that says it unless they are alike, and that no number is beyond what was counted. It returns how many requests were recorded
// and counted, and the numbers of the last of each object, added up.
func numbers(t *testing.T, f *capture.File, alike bool) (recorded, total, last uint64) {
	t.Helper()
	counted, at := map[uint64]uint64{}, map[uint64]uint64{} // by object
	if err := f.Aggregates(func(a *capture.Aggregate) error {
		counted[uint64(a.Object)] += a.Count
		total += a.Count
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, chunk := range f.Chunks() {
		var dec capture.Decoder
		dec.Reset(f, &chunk, catalogue.Default)
		known := map[uint64]bool{}
		for {
			var ev capture.Event
			ok, err := dec.Next(&ev)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			object := ev.Fields[0]
			switch {
			case ev.Form == capture.FormCounters:
				n := ev.Fields[capture.CountersPosted]
				if n < at[object] {
					t.Errorf("object %d: counters go back from %d to %d", object, at[object], n)
				}
				at[object], known[object] = n, true
			case ev.ID == catalogue.EventUcpPut:
				if !known[object] {
					t.Errorf("a chunk begins without the counters of object %d", object)
				}
				if n := ev.Fields[catalogue.UcpRequestRemoteAddress] / 8; n != at[object] && !alike {
					t.Fatalf("object %d: request %d comes as number %d", object, n, at[object])
				}
				at[object]++
				recorded++
			}
		}
	}
	for object, n := range at {
		last += n
		if n > counted[object] {
			t.Errorf("object %d: the last request is number %d of %d", object, n, counted[object])
		}
	}
	return recorded, total, last
}

// toggled starts a client whose window begins closed, opens and closes it by commands, so many, in turn, each when the one before has been
// noticed, and ends the client.
func toggled(t *testing.T, commands int, s settings, environ []string, argv ...string) (captures string) {
	t.Helper()
	d, err := rundir.Create(filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	s["window.start"], s["run.control"] = "closed", d.ControlPath()
	env, captures := configure(t, d.Path(), s)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(env, environ...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first := filepath.Join(captures, "*", fmt.Sprintf("%d.*.capture", cmd.Process.Pid))
	noticed := func() (n int) {
		names, _ := filepath.Glob(first)
		for _, name := range names {
			if f, err := capture.Open(name); err == nil { // it may be in the making
				definitions(t, f, catalogue.DefWindow, func(*capture.Definition) { n++ })
				f.Close()
			}
		}
		return n
	}
	for i := range commands + 1 {
		for noticed() <= i && ctx.Err() == nil {
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(200 * time.Millisecond)
		if i == commands {
			break
		}
		if _, changed, err := d.Command([]string{rundir.WindowStart, rundir.WindowStop}[i%2], time.Now()); err != nil || !changed {
			t.Fatal(changed, err)
		}
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %v\n%s", argv, err, out.String())
	}
	return captures
}

// Windows opened and closed while a thread records: the counters at the begin of each say how many requests there had been, so that every
// recorded request has its number, and the tables have all of them. Nor does a request that is just what its predecessor lets expect, for
// which there is a shorter way, go into the chunk that was open before.
func TestWindowsKeepNumbers(t *testing.T) {
	client := build(t)
	for _, c := range []struct{ backEnd, client string }{{"mapped", "paced"}, {"written", "paced"}, {"mapped", "paced_alike"}, {"written", "paced_alike"}} {
		t.Run(c.client+" "+c.backEnd, func(t *testing.T) {
			t.Parallel()
			f := files(t, toggled(t, 3, settings{"record.back_end": c.backEnd}, nil, client, c.client, "20", "100000"))[0]
			var opened []bool
			definitions(t, f, catalogue.DefWindow, func(d *capture.Definition) { opened = append(opened, d.Uint(catalogue.DefWindowOpen) != 0) })
			if !slices.Equal(opened, []bool{false, true, false, true}) {
				t.Errorf("windows: %v", opened)
			}
			// The last window is open to the end.
			if recorded, total, last := numbers(t, f, c.client == "paced_alike"); recorded == 0 || recorded >= total || last != total {
				t.Errorf("%d recorded of %d, the last is number %d", recorded, total, last)
			}
		})
	}
}
