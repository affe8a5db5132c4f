package merge_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge"
)

// processor is the time that processors have given to this process, or to its children that have ended.
func processor(b *testing.B, who int) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		b.Fatal(err)
	}
	return (time.Duration(u.Utime.Nano()) + time.Duration(u.Stime.Nano())).Seconds()
}

// BenchmarkSpread tells what workers take off a merge: processor time of the coordinator, of its two workers, and of a merge that is alone. What
// the coordinator keeps bounds how much faster more nodes can make it.
func BenchmarkSpread(b *testing.B) {
	r := manyOperations(b, 2_000_000)
	var alone, coordinator, workers float64
	for b.Loop() {
		at := processor(b, syscall.RUSAGE_SELF)
		if _, err := merge.Run(context.Background(), r.dir, merge.Options{Workers: 2}); err != nil {
			b.Fatal(err)
		}
		alone += processor(b, syscall.RUSAGE_SELF) - at
		c := &crew{t: b, run: r.dir.Path(), size: 2, cores: 1}
		at, children := processor(b, syscall.RUSAGE_SELF), processor(b, syscall.RUSAGE_CHILDREN)
		if _, err := merge.Run(context.Background(), r.dir, merge.Options{Workers: 2, Spread: c.spread, Helped: c.helped}); err != nil {
			b.Fatal(err)
		}
		coordinator += processor(b, syscall.RUSAGE_SELF) - at
		workers += processor(b, syscall.RUSAGE_CHILDREN) - children
		if c.units == 0 {
			b.Fatalf("the workers did nothing: %s", c.said.String())
		}
	}
	n := float64(b.N)
	b.ReportMetric(alone/n, "alone-cpu-s")
	b.ReportMetric(coordinator/n, "coordinator-cpu-s")
	b.ReportMetric(workers/n, "workers-cpu-s")
}
