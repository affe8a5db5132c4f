package merge_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	cat "github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// manyOperations fills a run with several partitions' worth of operations: pairs of processes that write and send to each other, receives
// that end long after they were posted, all times interleaved.
func manyOperations(t testing.TB, operations int) *rig {
	r := newRig(t)
	const processes = 8
	type end struct {
		*proc
		qp, cq uint64
		now    uint64
	}
	var ends []*end
	var devices []uint64
	var gids [][]byte
	for i := range processes {
		p := r.process(fmt.Sprintf("n%d", i/4), uint32(100+i), int64(i))
		p.pairs(hz)
		d, g := p.device(50, byte(1+i/4))
		devices, gids = append(devices, d), append(gids, g)
		ends = append(ends, &end{proc: p, now: 10_000 + uint64(i)*37})
	}
	for i, e := range ends {
		e.cq = e.define(60, cat.DefVerbsCq, devices[i], uint64(1))
		e.qp = e.queuePair(70, devices[i], uint64(10+i), rc, e.cq, 0)
		e.modify(80, e.qp, cat.VerbsQpStateRtr, uint64(10+i^1), gids[i^1])
	}
	var n uint64
	for ; operations > 0; n++ {
		for i, e := range ends {
			if n%64 == 0 { // 64 receives at once, filled one by one
				for k := range uint64(64) {
					e.now += 20
					e.event(0, e.now, cat.EventVerbsRecv, e.qp, n+k, 4096, 1, n+k, 5, 0)
					operations--
				}
			}
			e.now += 20 + uint64(i)*3
			e.event(0, e.now, cat.EventVerbsWrite, verbsFields(e.qp, n, 8192, cat.VerbsOpcodeRdmaWrite, 0, n)...)
			e.now += 20
			e.event(0, e.now, cat.EventVerbsSend, verbsFields(e.qp, n, 64, cat.VerbsOpcodeSend, cat.VerbsSendFlagsSignaled, n)...)
			e.now += 100
			e.event(0, e.now, cat.EventVerbsCompletion, e.qp, n, e.cq, 0, 0, 64, 0, 0, 0)
			e.event(0, e.now+10, cat.EventVerbsCompletion, e.qp, n, e.cq, 0, 128, 64, 0, 0, 0)
			e.now += 10
			operations -= 2
		}
	}
	r.close()
	return r
}

// The number of workers and the memory change nothing: not the operations, not the account, not one byte of an export.
func TestOutputDoesNotDependOnWorkersOrMemory(t *testing.T) {
	r := manyOperations(t, 300_000)
	type result struct {
		run     *ops.Run
		all     []ops.Op
		info    []byte
		exports map[string][]byte
	}
	var first *result
	for _, o := range []merge.Options{
		{Workers: 1}, {Workers: 2}, {Workers: 8}, {Workers: 8, Memory: merge.MinMemory}, {Workers: 1, Memory: merge.MinMemory},
	} {
		m := r.open(o)
		text, err := m.Info().JSON()
		if err != nil {
			t.Fatal(err)
		}
		x := &result{m.Run(), all(t, m), text, map[string][]byte{}}
		for i := range merge.Exporters {
			e := &merge.Exporters[i]
			path := filepath.Join(t.TempDir(), e.File)
			if err := m.Export(context.Background(), e, path, merge.ExportOptions{}); err != nil {
				t.Fatal(err)
			}
			x.exports[e.Name] = contents(t, path)
		}
		if first == nil {
			first = x
			if x.run.Partitions < 4 {
				t.Fatalf("%d partitions: too few to tell", x.run.Partitions)
			}
			continue
		}
		if !reflect.DeepEqual(x.run, first.run) {
			t.Errorf("%+v: the run differs", o)
		}
		for i := range x.all {
			if x.all[i] != first.all[i] {
				t.Fatalf("%+v: operation %d differs:\n%+v\n%+v", o, i, x.all[i], first.all[i])
			}
		}
		if !bytes.Equal(x.info, first.info) {
			t.Errorf("%+v: the account differs", o)
		}
		for name := range x.exports {
			if !bytes.Equal(x.exports[name], first.exports[name]) {
				t.Errorf("%+v: the export %s differs", o, name)
			}
		}
	}
}

// contents is a file's, or what a folder holds: names and contents.
func contents(t testing.TB, path string) []byte {
	var b []byte
	err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(p)
		name, _ := filepath.Rel(path, p)
		b = append(append(append(b, name...), '\n'), text...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Partitions hold about the same number of operations, whatever their processes did.
func TestPartitionsAreEven(t *testing.T) {
	r := manyOperations(t, 400_000)
	m := r.open(merge.Options{})
	for i := range m.Run().Partitions {
		n := 0
		if err := m.Partition(context.Background(), i, func(part []ops.Op) error { n += len(part); return nil }); err != nil {
			t.Fatal(err)
		}
		if n > 100_000 || (n < 30_000 && i+1 < m.Run().Partitions) {
			t.Errorf("partition %d of %d has %d operations", i, m.Run().Partitions, n)
		}
	}
}

// A cancelled merge ends with the context's error and leaves no file.
func TestCancelled(t *testing.T) {
	r := manyOperations(t, 50_000)
	ctx, cancel := context.WithCancel(context.Background())
	_, err := merge.Run(ctx, r.dir, merge.Options{Progress: func(stage string, _, _ int64) {
		if stage == merge.StagePairing {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("the merge ended with %v", err)
	}
	m := r.open(merge.Options{})
	boom := fmt.Errorf("boom")
	e := merge.Exporter{Name: "failing", File: "x", Write: func(_ context.Context, _ *merge.Merged, w io.Writer, _ merge.ExportOptions) (*merge.Exported, error) {
		w.Write([]byte("half"))
		return nil, boom
	}}
	if err := m.Export(context.Background(), &e, filepath.Join(r.dir.Path(), "x"), merge.ExportOptions{}); !errors.Is(err, boom) {
		t.Errorf("a failing export ended with %v", err)
	}
	entries, err := os.ReadDir(r.dir.Path())
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}
