package perfetto_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/perfetto"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline/timelinetest"
	"github.com/sigmatrace/sigmatrace/tests/tp"
)

// arrows counts the flows that have both ends in a trace.
func arrows(t *testing.T, trace []byte) (n int64) {
	seen := map[uint64]int{}
	for _, p := range packets(t, trace) {
		for _, f := range p.flows {
			if seen[f]++; seen[f] == 2 {
				n++
			}
		}
	}
	return n
}

func TestLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	src := timelinetest.New(timelinetest.Config{Seed: 21, Ranks: 4, Messages: 8000, Partitions: 9, Strays: true})
	whole, all := write(t, src, perfetto.Options{})
	var failed, unfinished, must int64
	src.Each(func(o *ops.Op) {
		if o.Flags&ops.Failed != 0 {
			failed++
		}
		if o.Flags&ops.Unfinished != 0 {
			unfinished++
		}
		if o.Flags&(ops.Failed|ops.Unfinished) != 0 {
			must++
		}
	})
	rows := all.Slices + all.Instants
	for _, limit := range []int64{rows, rows - 1, rows / 2, rows / 10, must / 2, 3, 1} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			trace, s := write(t, src, perfetto.Options{MaxSlices: limit, Workers: 2})
			n := s.Slices + s.Instants
			written, left := s.Written["ucp"]+s.Written["verbs"], s.LeftOut["ucp"]+s.LeftOut["verbs"]
			switch {
			case written+left != src.Info.Operations:
				t.Errorf("%d written and %d left out of %d", written, left, src.Info.Operations)
			case limit >= rows && (left > 0 || s.Rule != "" || s.Slices != all.Slices || s.CountersLeftOut > 0):
				t.Errorf("left out %d operations and %d samples of a run that fits: %s", left, s.CountersLeftOut, s.Rule)
			case limit < rows && (left == 0 || s.Rule == ""):
				t.Errorf("left out nothing, rule %q", s.Rule)
			case limit < 2: // the overview has no room, and is there all the same
			case n > limit:
				t.Errorf("%d slices and instants, more than %d", n, limit)
			case limit > 10 && n < limit*7/10:
				t.Errorf("only %d slices and instants of %d", n, limit)
			}
			if limit > must*3 && (s.Failed != failed || s.Unfinished != unfinished) {
				t.Errorf("%d of %d failed, %d of %d unfinished", s.Failed, failed, s.Unfinished, unfinished)
			}
			if t.Failed() || limit != rows-1 && limit != rows/10 {
				return // what trace_processor says of the others would be no news
			}
			tp.Need(t)
			file := save(t, trace)
			if err := verify(file, s, arrows(t, trace)); err != nil {
				t.Error(err)
			}
			facts := query(t, file, `select sum(int_value) from args join slice using (arg_set_id) where slice.name = '`+
				fmt.Sprintf("%d of %d operations left out", left, src.Info.Operations)+`' and key in ('debug.left_out_ucp', 'debug.left_out_verbs')`)
			if facts[0] != fmt.Sprint(left) {
				t.Errorf("the trace says %s operations left out, not %d", facts[0], left)
			}
		})
	}
	if n := arrows(t, whole); n != all.FlowBegins {
		t.Errorf("%d arrows for %d flows in the whole trace", n, all.FlowBegins)
	}
}

// What a limited trace keeps is the longest operations, and short ones from all of the time range with both ends of their flows.
func TestLimitKeepsLongestAndSample(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	tp.Need(t)
	src := timelinetest.New(timelinetest.Config{Seed: 22, Ranks: 4, Messages: 8000, Partitions: 9})
	trace, s := write(t, src, perfetto.Options{MaxSlices: 5000})
	t.Log(s.Rule)
	file := save(t, trace)
	kept := map[string]bool{}
	for _, r := range query(t, file, "select ts || ' ' || dur from slice where category in ('ucp', 'verbs')") {
		kept[r] = true
	}
	type length struct {
		dur  int64
		kept bool
	}
	var lengths []length
	var tenths [10]int
	span := src.Info.Last - src.Info.First + 1
	src.Each(func(o *ops.Op) {
		k := kept[fmt.Sprintf("%d %d", o.Post, o.Done-o.Post)]
		lengths = append(lengths, length{o.Done - o.Post, k})
		if k {
			tenths[(o.Post-src.Info.First)*10/span]++
		}
	})
	slices.SortFunc(lengths, func(a, b length) int { return int(b.dur - a.dur) })
	longest := 0
	for longest < len(lengths) && lengths[longest].kept {
		longest++
	}
	if longest < 900 {
		t.Errorf("only the %d longest operations are there without a gap", longest)
	}
	for i, n := range tenths {
		if n < 40 {
			t.Errorf("only %d operations in tenth %d of the time", n, i)
		}
	}
	var shortest int
	for _, l := range lengths[len(lengths)/2:] {
		if l.kept {
			shortest++
		}
	}
	if shortest < 40 {
		t.Errorf("only %d of the shorter half", shortest)
	}
}

// A thinned counter still has its extremes and its end, and no value that it never had.
func TestLimitKeepsCountersTrue(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	tp.Need(t)
	src := timelinetest.New(timelinetest.Config{Seed: 23, Ranks: 3, Messages: 8000, Partitions: 5})
	whole, _ := write(t, src, perfetto.Options{})
	limited, s := write(t, src, perfetto.Options{MaxSlices: 2000})
	if s.CountersLeftOut == 0 {
		t.Fatal("no counter was thinned")
	}
	const extremes = `select p.name || ' / ' || k.name || ': ' || min(c.value) || ' to ' || max(c.value) || ', first at ' || min(c.ts) || ', last ' ||
		(select value from counter d where d.track_id = c.track_id order by ts desc, id desc limit 1) || ' at ' || max(c.ts)
		from counter c join process_counter_track k on c.track_id = k.id join process p using (upid) group by c.track_id`
	const samples = `select p.name || ' / ' || k.name || ' @' || c.ts || ' ' || c.value
		from counter c join process_counter_track k on c.track_id = k.id join process p using (upid)`
	a, b := save(t, whole), save(t, limited)
	compare(t, "extremes", query(t, b, extremes), query(t, a, extremes))
	true_ := map[string]bool{}
	for _, r := range query(t, a, samples) {
		true_[r] = true
	}
	for _, r := range query(t, b, samples) {
		if !true_[r] {
			t.Fatalf("%s was never so", r)
		}
	}
}

func TestFilters(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	tp.Need(t)
	src := timelinetest.New(timelinetest.Config{Seed: 24, Ranks: 3, Messages: 3000, Partitions: 5})
	from, to := src.Info.First+1_000_000, src.Info.First+1_500_000
	for name, c := range map[string]struct {
		o    perfetto.Options
		want func(o *ops.Op) bool
	}{
		"layer": {perfetto.Options{Layers: []string{"verbs"}}, func(o *ops.Op) bool { return src.Info.Endpoints[o.Endpoint].Layer == "verbs" }},
		"time":  {perfetto.Options{From: from, To: to}, func(o *ops.Op) bool { return o.Post < to && o.Done >= from }},
	} {
		t.Run(name, func(t *testing.T) {
			trace, s := write(t, src, c.o)
			file := save(t, trace)
			if err := verify(file, s, arrows(t, trace)); err != nil {
				t.Fatal(err)
			}
			var want []string
			src.Each(func(o *ops.Op) {
				if c.want(o) {
					want = append(want, fmt.Sprintf("%d %d", o.Post, o.Done-o.Post))
				}
			})
			compare(t, "operations", query(t, file, "select ts || ' ' || dur from slice where category in ('ucp', 'verbs')"), want)
			if n := int64(len(want)); s.Filtered != src.Info.Operations-n || n == 0 {
				t.Errorf("%d filtered of %d, %d wanted", s.Filtered, src.Info.Operations, n)
			}
			if got := query(t, file, fmt.Sprintf("select count(*) from counter where ts < %d or ts >= %d", max(c.o.From, 0), max(c.o.To, src.Info.Last+1))); name == "time" && got[0] != "0" {
				t.Errorf("%s counter samples outside of the time", got[0])
			}
		})
	}
}
