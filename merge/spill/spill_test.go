package spill

import (
	"cmp"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

func tempFile(t *testing.T) *File {
	t.Helper()
	dir := t.TempDir()
	f, err := Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Fatalf("the temporary file has a name: %v %v", entries, err)
	}
	return f
}

// Operations come back as they went, in order within each run, whatever their values.
func TestOperationsComeBack(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	file := tempFile(t)
	w := NewWriter(file, catalogue.Default, 100)
	wide := func() uint64 { return r.Uint64() >> r.IntN(64) }
	want := map[Key]ops.Op{}
	for i := range 3*runOps + 77 {
		e := catalogue.Default.Events[r.IntN(len(catalogue.Default.Events))]
		op := ops.Op{
			Post: int64(i)*1000 + int64(r.IntN(100_000)), Endpoint: uint32(wide()), Thread: uint32(r.IntN(3)), Sequence: uint64(i), Event: e.ID,
			Role: ops.Role(r.IntN(4)), Flags: ops.Flag(r.IntN(1 << 7)), Lane: uint16(wide()), Requests: uint32(wide()), Status: int32(wide()),
			Ordinal: wide(), Bytes: wide(), Outstanding: uint32(wide()), After: uint32(wide()), Total: wide(),
		}
		if r.IntN(50) == 0 {
			op.Post = int64(r.IntN(i*1000 + 1)) // ends long after it began
		}
		op.Done = op.Post + int64(wide()>>2)
		for k := range e.Layout.Fields {
			op.Fields[k] = wide()
		}
		want[KeyOf(&op)] = op
		if err := w.Add(&op); err != nil {
			t.Fatal(err)
		}
	}
	blocks, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	rd := NewReader(catalogue.Default)
	n := 0
	for i := range blocks {
		b := &blocks[i]
		if err := rd.Open(b); err != nil {
			t.Fatal(err)
		}
		last := b.First
		for k := range b.Count {
			var op ops.Op
			if ok, err := rd.Next(&op); !ok || err != nil {
				t.Fatal(ok, err)
			}
			key := KeyOf(&op)
			if want[key] != op {
				t.Fatalf("wrote %+v\nread %+v", want[key], op)
			}
			if (k == 0 && key != b.First) || key.Compare(last) < 0 || (k == b.Count-1 && key != b.Last) {
				t.Fatalf("block %d: operation %d at %+v, the block is %+v", i, k, key, b)
			}
			last = key
			n++
		}
		if ok, _ := rd.Next(new(ops.Op)); ok {
			t.Fatal("a block goes on")
		}
	}
	if n != len(want) || w.Count != int64(n) {
		t.Errorf("%d operations of %d", n, len(want))
	}
	// What ends late must not make many blocks long: a partition would have to read them all.
	long := 0
	for _, b := range blocks {
		if b.Last.Post-b.First.Post > 3_000_000 {
			long++
		}
	}
	if long > len(blocks)/10 {
		t.Errorf("%d of %d blocks span long times", long, len(blocks))
	}
}

type pair struct{ a, b uint64 }

func (p *pair) Put(b []byte) {
	binary.LittleEndian.PutUint64(b, p.a)
	binary.LittleEndian.PutUint64(b[8:], p.b)
}
func (p *pair) Get(b []byte) {
	p.a, p.b = binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
}
func (p *pair) Compare(o *pair) int { return cmp.Or(cmp.Compare(p.a, o.a), cmp.Compare(p.b, o.b)) }

// The external sort gives all records in order: in memory, of a few runs, and of more runs than are merged at once.
func TestExternalSort(t *testing.T) {
	for _, n := range []int{0, 1, 500, 5000, 400_000} {
		r := rand.New(rand.NewPCG(uint64(n), 5))
		s := NewSorter[pair](tempFile(t), 16, 0) // at least 1024 records
		want := make([]pair, n)
		for i := range want {
			want[i] = pair{r.Uint64N(1000), uint64(i)}
		}
		var group sync.WaitGroup
		for part := range slices.Chunk(slices.Clone(want), max((n+3)/4, 1)) {
			group.Go(func() {
				for some := range slices.Chunk(part, 37) {
					if err := s.Add(some); err != nil {
						t.Error(err)
					}
				}
			})
		}
		group.Wait()
		sorted, err := s.Finish()
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(want, func(a, b pair) int { return a.Compare(&b) })
		if sorted.Len() != int64(n) {
			t.Fatalf("%d records of %d", sorted.Len(), n)
		}
		c := sorted.From(0)
		for i := range want {
			if ok, err := c.Next(); !ok || err != nil || c.Value != want[i] || c.Index() != int64(i) {
				t.Fatalf("n %d: record %d is %v, want %v (%v)", n, i, c.Value, want[i], err)
			}
		}
		if ok, _ := c.Next(); ok {
			t.Fatal("there is more")
		}
		for _, key := range []uint64{0, 1, 500, 999, 1000} {
			got, err := sorted.Search(func(p *pair) bool { return p.a >= key })
			if err != nil {
				t.Fatal(err)
			}
			w, _ := slices.BinarySearchFunc(want, key, func(p pair, k uint64) int { return cmp.Compare(p.a, k) })
			if got != int64(w) {
				t.Fatalf("n %d: search for %d found %d, want %d", n, key, got, w)
			}
		}
		if n > 0 {
			mid := sorted.From(int64(n / 2))
			if ok, err := mid.Next(); !ok || err != nil || mid.Value != want[n/2] {
				t.Fatalf("n %d: the cursor from the middle gives %v (%v)", n, mid.Value, err)
			}
		}
	}
}
