package files

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/tests/faults/rig"
	"github.com/sigmatrace/sigmatrace/tests/needs"
)

// span returns the first and the last time of a run's operations.
func span(t *testing.T, path string) (first, last int64) {
	t.Helper()
	dir, err := rundir.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := merge.Open(context.Background(), dir, merge.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	first = math.MaxInt64
	for i := range m.Run().Partitions {
		err := m.Partition(context.Background(), i, func(part []ops.Op) error {
			for k := range part {
				first, last = min(first, part[k].Post), max(last, part[k].Post)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return first, last
}

// F60: the wall clock is stepped while the program runs, forwards and backwards, by an hour and by a little. The run is as long as it
// was, and its times are those of the clock after the step.
func TestF60WallClockStepped(t *testing.T) {
	needs.Time(t)
	for _, step := range []time.Duration{time.Hour, -time.Hour, 50 * time.Millisecond, 0} {
		t.Run(step.String(), func(t *testing.T) {
			t.Parallel()
			clock, set := rig.WallClock(t)
			r := rig.New(t, rig.Spec{Layer: "ucp", Sets: []string{"record.chunk=16KiB"}, Env: []string{clock, "LD_PRELOAD=" + needs.Built(t, "tests/fault-shim.so")}}, "")
			wait := rig.Fault(func(*rig.Run) { time.Sleep(400 * time.Millisecond) }) // readings are some time apart
			began := time.Now()
			r.Both(rig.Do("post 5000"), wait, rig.Do("post 5000"), rig.Fault(func(*rig.Run) { set(step) }), rig.Do("post 10"), wait, rig.Do("post 5000"), wait, rig.Do("post 5000"))
			took := time.Since(began)
			i := r.Info()
			if want := map[bool]int{true: 1, false: 0}[step != 0]; i.Clock.Steps != want {
				t.Errorf("%d steps, want %d", i.Clock.Steps, want)
			}
			if d := time.Duration(i.Clock.StepNS) - step; d.Abs() > 10*time.Millisecond {
				t.Errorf("steps of %v, want %v", time.Duration(i.Clock.StepNS), step)
			}
			first, last := span(t, r.Path)
			if d := time.Duration(last - first); d < 1200*time.Millisecond || d > took {
				t.Errorf("the operations took %v, the program %v", d, took)
			}
			if at := time.Unix(0, first).Add(-step); at.Before(began.Add(-20*time.Millisecond)) || at.After(began.Add(took)) {
				t.Errorf("the first operation was at %v by the clock after the step, the run began at %v", time.Unix(0, first), began)
			}
			if e := i.Clock.Nodes[0].ErrorNS; e == nil || *e > 1_000_000 {
				t.Errorf("clock: %+v", i.Clock.Nodes)
			}
			errs, status := r.Merge()
			if said := strings.Contains(errs, "sigmatrace: clock: a system clock was stepped"); status != 0 || said != (step != 0) {
				t.Errorf("merge ended with %d after a step of %v: %s", status, step, errs)
			}
			r.Exact(i)
		})
	}
}

// F59: the kernel has given the processor's counter up, which CPUID calls invariant: no error is claimed for the times.
func TestF59KernelGaveTheCounterUp(t *testing.T) {
	needs.Time(t)
	const list = "/sys/devices/system/clocksource/clocksource0/available_clocksource"
	for text, trusted := range map[string]bool{"kvm-clock tsc \n": true, "tsc \n": true, "hpet acpi_pm \n": false, "hyperv_clocksource_tsc_page acpi_pm \n": false} {
		other := filepath.Join(t.TempDir(), "list")
		if err := os.WriteFile(other, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r := rig.New(t, rig.Spec{Layer: "ucp", Env: []string{"SHIM_OPEN=" + list + "=" + other, "LD_PRELOAD=" + needs.Built(t, "tests/fault-shim.so")}}, "")
		r.Both(rig.Do("post 100"))
		if n := r.Info().Clock.Nodes[0]; (n.ErrorNS != nil) != trusted || (n.Reason == "the counter does not promise a constant rate") == trusted {
			t.Errorf("%q: %+v", text, n)
		}
	}
}

// F63: 9p, of which statfs(2) tells the type of the file system behind it, is a network file system all the same: its captures are
// written, not mapped. The mount table is a made-up one that calls this tmpfs 9p.
func TestF63Network9pIsWritten(t *testing.T) {
	needs.Time(t)
	dir := rig.Tmpfs(t, "size=32m")
	number := rig.DeviceOf(t, dir)
	const line = "2345 1 %s / %s rw,relatime%s - %s none rw\n"
	long := fmt.Sprintf(line, "0:99999", "/", "", "overlay none rw,lowerdir=/"+strings.Repeat("x", 9000))
	for name, c := range map[string]struct {
		table   string
		written bool
	}{
		"9p":               {fmt.Sprintf(line, number, dir, " shared:3", "9p"), true},
		"tmpfs":            {fmt.Sprintf(line, number, dir, "", "tmpfs"), false},
		"another":          {fmt.Sprintf(line, "0:99998", "/elsewhere", "", "9p"), false},
		"behind long line": {long + fmt.Sprintf(line, number, dir, "", "9p"), true},
		"none":             {"", false},
	} {
		t.Run(name, func(t *testing.T) {
			other := filepath.Join(t.TempDir(), "mountinfo")
			if err := os.WriteFile(other, []byte(c.table), 0o600); err != nil {
				t.Fatal(err)
			}
			in := filepath.Join(dir, name)
			if err := os.Mkdir(in, 0o700); err != nil {
				t.Fatal(err)
			}
			r := rig.New(t, rig.Spec{Layer: "ucp", Env: []string{"SHIM_OPEN=/proc/self/mountinfo=" + other, "LD_PRELOAD=" + needs.Built(t, "tests/fault-shim.so")}}, in)
			r.Both(rig.Do("post 100"))
			if got := r.BackEnd(); (got == "written") != c.written {
				t.Errorf("captures are %s", got)
			}
			r.MustMerge(0)
			r.Exact(r.Info())
		})
	}
}
