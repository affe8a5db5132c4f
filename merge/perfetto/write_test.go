package perfetto_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/perfetto"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline/timelinetest"
)

func write(t testing.TB, src ops.Source, o perfetto.Options) ([]byte, *perfetto.Stats) {
	t.Helper()
	var b bytes.Buffer
	s, err := perfetto.Write(context.Background(), &b, src, o)
	if err != nil {
		t.Fatal(err)
	}
	if int64(b.Len()) != s.Bytes {
		t.Fatalf("wrote %d bytes and says %d", b.Len(), s.Bytes)
	}
	return b.Bytes(), s
}

func TestBytesDoNotDependOnWorkers(t *testing.T) {
	src := timelinetest.New(timelinetest.Config{Seed: 2, Ranks: 6, Messages: 20000, Partitions: 23, Strays: true})
	for name, o := range map[string]perfetto.Options{"whole": {}, "limited": {MaxSlices: 9000}} {
		t.Run(name, func(t *testing.T) {
			o.Workers = 1
			want, _ := write(t, src, o)
			for _, workers := range []int{1, 2, 8} {
				o.Workers = workers
				if got, _ := write(t, src, o); !bytes.Equal(got, want) {
					t.Errorf("%d workers wrote other bytes than one", workers)
				}
			}
		})
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	src := timelinetest.New(timelinetest.Config{Seed: 1, Ranks: 2, Messages: 10, Partitions: 1})
	for name, o := range map[string]perfetto.Options{
		"unknown layer":    {Layers: []string{"ucp", "tcp"}},
		"empty time range": {From: 5, To: 5},
	} {
		var b bytes.Buffer
		if s, err := perfetto.Write(context.Background(), &b, src, o); err == nil || s != nil || b.Len() > 0 {
			t.Errorf("%s: wrote %d bytes, error %v", name, b.Len(), err)
		}
	}
}

type broken struct{ *timelinetest.Source }

var errBroken = errors.New("capture is gone")

func (b broken) Partition(ctx context.Context, i int, fn func([]ops.Op) error) error {
	if i == 3 {
		return errBroken
	}
	return b.Source.Partition(ctx, i, fn)
}

type full struct{ left int }

var errFull = errors.New("no space left")

func (f *full) Write(b []byte) (int, error) {
	if f.left -= len(b); f.left < 0 {
		return 0, errFull
	}
	return len(b), nil
}

// A failing source or output ends the export with its error, and nothing hangs.
func TestFailuresEndTheExport(t *testing.T) {
	src := timelinetest.New(timelinetest.Config{Seed: 1, Ranks: 4, Messages: 20000, Partitions: 9})
	for _, workers := range []int{1, 3} {
		for _, limit := range []int64{0, 5000} {
			o := perfetto.Options{Workers: workers, MaxSlices: limit}
			if _, err := perfetto.Write(context.Background(), &bytes.Buffer{}, broken{src}, o); !errors.Is(err, errBroken) {
				t.Errorf("source that fails: %v", err)
			}
			if _, err := perfetto.Write(context.Background(), &full{20000}, src, o); !errors.Is(err, errFull) {
				t.Errorf("output that fails: %v", err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if _, err := perfetto.Write(ctx, &bytes.Buffer{}, src, o); !errors.Is(err, context.Canceled) {
				t.Errorf("canceled: %v", err)
			}
		}
	}
}

func TestOperationOnALaneThatIsNot(t *testing.T) {
	src := timelinetest.New(timelinetest.Config{Seed: 1, Ranks: 2, Messages: 100, Partitions: 1})
	src.Parts[0][50].Lane = 999
	if _, err := perfetto.Write(context.Background(), &bytes.Buffer{}, src, perfetto.Options{}); err == nil {
		t.Error("written without an error")
	}
}
