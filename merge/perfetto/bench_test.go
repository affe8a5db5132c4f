package perfetto_test

import (
	"context"
	"io"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/perfetto"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline/timelinetest"
)

// Rates are per operation of the run; bytes per slice or instant of the trace.
func BenchmarkWrite(b *testing.B) {
	src := timelinetest.New(timelinetest.Config{Seed: 1, Ranks: 8, Messages: 400_000, Partitions: 8})
	for _, c := range []struct {
		name string
		perfetto.Options
	}{{"j1", perfetto.Options{Workers: 1}}, {"j2", perfetto.Options{Workers: 2}}, {"j1/limit100k", perfetto.Options{Workers: 1, MaxSlices: 100_000}}} {
		b.Run(c.name, func(b *testing.B) {
			var s *perfetto.Stats
			before := timelinetest.CPU()
			for b.Loop() {
				var err error
				if s, err = perfetto.Write(context.Background(), io.Discard, src, c.Options); err != nil {
					b.Fatal(err)
				}
			}
			done := float64(src.Info.Operations) * float64(b.N) / 1e6
			b.ReportMetric(done/b.Elapsed().Seconds(), "Mop/s")
			b.ReportMetric(done/(timelinetest.CPU()-before), "Mop/cpu-s")
			b.ReportMetric(float64(s.Bytes)/float64(s.Slices+s.Instants), "B/slice")
		})
	}
}
