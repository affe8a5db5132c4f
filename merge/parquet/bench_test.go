package parquet

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline/timelinetest"
)

func benchmarkRun() *timelinetest.Source {
	return timelinetest.New(timelinetest.Config{Seed: 1, Ranks: 8, Messages: 400_000, Partitions: 8})
}

func BenchmarkWrite(b *testing.B) {
	src := benchmarkRun()
	dir := filepath.Join(b.TempDir(), "x")
	var index *Index
	before := timelinetest.CPU()
	for b.Loop() {
		err := os.RemoveAll(dir)
		if err == nil {
			err = os.Mkdir(dir, 0o700)
		}
		if err == nil {
			index, err = Write(context.Background(), dir, src, Account{}, Options{Workers: 1})
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(index.Rows)*float64(b.N)/1e6/(timelinetest.CPU()-before), "Mrow/cpu-s")
	b.ReportMetric(float64(index.Bytes())/float64(index.Rows), "B/row")
}

// alone makes what writes the rows of a layer of a run, made beforehand, with nothing but the library.
func alone[T any, P interface {
	*T
	row
}](e *encoder, src *timelinetest.Source, layer string) func() (rows int, err error) {
	var operations []ops.Op
	src.Each(func(op *ops.Op) {
		if catalogue.Default.Event(op.Event).Layer == layer {
			operations = append(operations, *op)
		}
	})
	rows := make([]T, len(operations))
	for i := range operations {
		r := P(&rows[i])
		r.common().fill(e, &operations[i])
		r.fill(e, &operations[i])
	}
	return func() (int, error) {
		w := parquet.NewGenericWriter[T](io.Discard, rowOptions[T]("")...)
		for rest := rows; len(rest) > 0; rest = rest[min(2048, len(rest)):] {
			if _, err := w.Write(rest[:min(2048, len(rest))]); err != nil {
				return 0, err
			}
		}
		return len(rows), w.Close()
	}
}

// The library alone, on rows that are there: the most that Write could reach.
func BenchmarkWriterAlone(b *testing.B) {
	src := benchmarkRun()
	p, err := timeline.NewPlan(src.Run(), timeline.Options{})
	if err != nil {
		b.Fatal(err)
	}
	e := newEncoder(p)
	layers := []func() (int, error){alone[ucpRow](e, src, "ucp"), alone[verbsRow](e, src, "verbs")}
	rows := 0
	before := timelinetest.CPU()
	for b.Loop() {
		for _, write := range layers {
			n, err := write()
			if err != nil {
				b.Fatal(err)
			}
			rows += n
		}
	}
	b.ReportMetric(float64(rows)/1e6/(timelinetest.CPU()-before), "Mrow/cpu-s")
}
