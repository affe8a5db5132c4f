package chromejson_test

import (
	"context"
	"io"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/chromejson"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline/timelinetest"
)

func BenchmarkWrite(b *testing.B) {
	src := timelinetest.New(timelinetest.Config{Seed: 1, Ranks: 8, Messages: 400_000, Partitions: 8})
	before := timelinetest.CPU()
	for b.Loop() {
		if _, err := chromejson.Write(context.Background(), io.Discard, src, chromejson.Options{Workers: 1}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(src.Info.Operations)*float64(b.N)/1e6/(timelinetest.CPU()-before), "Mop/cpu-s")
}
