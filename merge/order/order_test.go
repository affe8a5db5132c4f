package order

import (
	"cmp"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Sort gives what a comparison sort gives, whatever the spread of the times.
func TestSort(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var s Sorter
	for _, n := range []int{0, 1, 2, 63, 64, 65, 1000, 20_000} {
		for _, spread := range []uint64{1, 5, 1 << 11, 1 << 12, 1 << 33, 1 << 62, math.MaxUint64} {
			refs := make([]Ref, n)
			for i := range refs {
				refs[i] = Ref{int64(r.Uint64N(spread)) - int64(spread/3), uint32(r.IntN(1 << 30))}
			}
			want := slices.Clone(refs)
			tie := func(a, b uint32) int { return cmp.Compare(b, a) } // the higher first
			slices.SortFunc(want, func(a, b Ref) int { return cmp.Or(cmp.Compare(a.Post, b.Post), tie(a.At, b.At)) })
			s.Sort(refs, tie)
			if !slices.Equal(refs, want) {
				t.Fatalf("n %d spread %d: wrong order", n, spread)
			}
		}
	}
}

type rec struct {
	time   int64
	stream int
	number int
}

type sliceStream struct {
	recs  []rec
	asked bool
	fail  error
}

func (s *sliceStream) Next(v *rec) (bool, error) {
	s.asked = true
	if len(s.recs) == 0 {
		return false, s.fail
	}
	*v, s.recs = s.recs[0], s.recs[1:]
	return true, nil
}

func merger() *Merger[rec] {
	return &Merger[rec]{
		Time: func(v *rec) int64 { return v.time },
		Tie:  func(a, b *rec) int { return cmp.Or(cmp.Compare(a.stream, b.stream), cmp.Compare(a.number, b.number)) },
	}
}

// Merge gives all records of all streams in order: dense and sparse streams, bursts, empty ones, all at one time.
func TestMerge(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 2))
	m := merger()
	for round := range 60 {
		var inputs []Input[rec]
		var want []rec
		for i := range 1 + r.IntN(70) {
			now := int64(r.Uint64N(1 << (round % 50)))
			from := now - int64(r.IntN(100))
			var s sliceStream
			for n := range r.IntN(600) {
				s.recs = append(s.recs, rec{now, i, n})
				if r.IntN(3) > 0 {
					now += int64(r.Uint64N(1 << (r.IntN(round+1) % 40)))
				}
			}
			want = append(want, s.recs...)
			inputs = append(inputs, Input[rec]{from, &s})
		}
		slices.SortFunc(want, func(a, b rec) int {
			return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.stream, b.stream), cmp.Compare(a.number, b.number))
		})
		var got []rec
		if err := m.Merge(inputs, func(v *rec) error { got = append(got, *v); return nil }); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("round %d: %d records of %d, or in another order", round, len(got), len(want))
		}
	}
}

// A stream is not asked before its time: what lies far ahead need not be opened.
func TestStreamsAreOpenedWhenTheirTimeComes(t *testing.T) {
	late := &sliceStream{recs: []rec{{1 << 40, 1, 0}}}
	early := &sliceStream{recs: []rec{{5, 0, 0}, {6, 0, 1}}}
	n := 0
	err := merger().Merge([]Input[rec]{{1 << 40, late}, {5, early}}, func(v *rec) error {
		if n++; v.stream == 0 && late.asked {
			t.Error("the late stream was asked already")
		}
		return nil
	})
	if err != nil || n != 3 {
		t.Errorf("%d records, %v", n, err)
	}
}

func TestErrorsEndTheMerge(t *testing.T) {
	boom := errors.New("boom")
	if err := merger().Merge([]Input[rec]{{0, &sliceStream{fail: boom}}}, func(*rec) error { return nil }); !errors.Is(err, boom) {
		t.Error(err)
	}
	if err := merger().Merge([]Input[rec]{{0, &sliceStream{recs: []rec{{}}}}}, func(*rec) error { return boom }); !errors.Is(err, boom) {
		t.Error(err)
	}
}
