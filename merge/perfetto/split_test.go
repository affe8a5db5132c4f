package perfetto_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/perfetto"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline/timelinetest"
	"github.com/sigmatrace/sigmatrace/tests/tp"
)

// split cuts a run into parts.
func split(t testing.TB, src ops.Source, o timeline.Options, pieces int, memory int64) []timeline.Part {
	t.Helper()
	p, err := timeline.NewPlan(src.Run(), o)
	if err != nil {
		t.Fatal(err)
	}
	parts, err := p.Split(context.Background(), src, pieces, memory)
	if err != nil {
		t.Fatal(err)
	}
	return parts
}

// piece writes one part.
func piece(t testing.TB, src ops.Source, o timeline.Options, part *timeline.Part) ([]byte, *perfetto.Stats) {
	t.Helper()
	o.Piece, o.MaxSlices = &part.Piece, -1
	var b bytes.Buffer
	s, err := perfetto.Write(context.Background(), &b, part.Source(src), o)
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), s
}

// everything is each operation of a trace with all that is said of it.
const everything = `select s.ts || ' +' || s.dur || ' ' || s.name || ' ' || s.category || ' [' || p.name || ' / ' || g.name || ' / ' || k.name || '] ' ||
	(select group_concat(substr(key, 7) || '=' || display_value, ';') from (select key, display_value from args where arg_set_id = s.arg_set_id order by key))
	from slice s join process_track k on s.track_id = k.id join process p using (upid) join track g on k.parent_id = g.id
	where s.name not in ('posted', 'completed', 'received')`

// A browser holds what a piece says it takes; together the pieces hold every operation, sample and end of a flow once, each as in the
// whole trace, and a message that is cut is counted at both ends and disturbs no import.
func TestF71PiecesHoldEverySliceOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	tp.Need(t)
	src := timelinetest.New(timelinetest.Config{Seed: 12, Ranks: 4, Messages: 1500, Partitions: 6, Strays: true})
	for _, o := range []timeline.Options{{Workers: 2}, {From: src.Info.First + 300_000, To: src.Info.Last - 300_000, Ranks: func(r int64) bool { return r != 1 }}} {
		unlimited := o
		unlimited.MaxSlices = -1
		trace, whole := write(t, src, unlimited)
		wholeFile := save(t, trace)
		wholeCut := cut(src, o, math.MinInt64, math.MaxInt64)
		if whole.FlowsCut != wholeCut {
			t.Errorf("%d flows cut in the whole, not %d", whole.FlowsCut, wholeCut)
		}
		parts := split(t, src, o, 3, 0)
		if len(parts) != 3 {
			t.Fatalf("%d parts, not 3", len(parts))
		}
		var rows []string
		var counters, begins, ends int64
		for i := range parts {
			trace, s := piece(t, src, o, &parts[i])
			file := save(t, trace)
			if want := cut(src, o, parts[i].From, parts[i].To); s.FlowsCut != want {
				t.Errorf("piece %d: %d flows cut, not %d", i, s.FlowsCut, want)
			}
			if err := verify(file, s, (s.FlowBegins+s.FlowEnds-s.FlowsCut)/2); err != nil {
				t.Errorf("piece %d: %v", i, err)
			}
			if n := s.Written["ucp"] + s.Written["verbs"]; n != parts[i].Operations || n < 200 {
				t.Errorf("piece %d: %d operations, announced %d", i, n, parts[i].Operations)
			}
			rows = append(rows, query(t, file, everything)...)
			counters, begins, ends = counters+s.Counters, begins+s.FlowBegins, ends+s.FlowEnds
		}
		compare(t, "operations", rows, query(t, wholeFile, everything))
		if counters != whole.Counters || begins != whole.FlowBegins || ends != whole.FlowEnds {
			t.Errorf("%d samples, %d and %d ends of flows; the whole has %d, %d and %d", counters, begins, ends, whole.Counters, whole.FlowBegins, whole.FlowEnds)
		}
	}
}

// cut is how many ends of messages in a piece have their other end elsewhere.
func cut(src *timelinetest.Source, o timeline.Options, from, to int64) (n int64) {
	if o.To == 0 {
		o.To = math.MaxInt64
	}
	inside := map[uint64]int{}
	src.Each(func(p *ops.Op) {
		two := p.Flow != 0 && (p.Role == ops.Initiator || p.Role == ops.Target)
		ranked := o.Ranks == nil || o.Ranks(src.Info.Processes[p.Process].Rank)
		if two && ranked && p.Post >= from && p.Post < to && p.Post < o.To && max(p.Post, p.Done) >= o.From {
			inside[p.Flow]++
		}
	})
	for _, ends := range inside {
		if ends == 1 {
			n++
		}
	}
	return n
}

// Parts follow each other without a gap, are about equal, and are not more than there is to cut.
func TestPartsCoverTheRun(t *testing.T) {
	src := timelinetest.New(timelinetest.Config{Seed: 13, Ranks: 3, Messages: 3000, Partitions: 4})
	all := split(t, src, timeline.Options{}, 1, 0)
	if len(all) != 1 || all[0].Operations != src.Info.Operations {
		t.Fatalf("%+v", all)
	}
	for _, c := range []struct {
		pieces int
		memory int64
		want   int
	}{{pieces: 7, want: 7}, {pieces: 100_000, want: -1}, {memory: all[0].Memory/4 + 1, want: 4}, {memory: all[0].Memory, want: 1}, {memory: timeline.DefaultPieceMemory, want: 1}} {
		parts := split(t, src, timeline.Options{}, c.pieces, c.memory)
		if c.want >= 0 && len(parts) != c.want {
			t.Errorf("%+v: %d parts", c, len(parts))
		}
		var operations, memory int64
		for i, p := range parts {
			first, last := int64(math.MinInt64), int64(math.MaxInt64)
			if i > 0 {
				first = parts[i-1].To
			}
			if i+1 < len(parts) {
				last = p.To
			}
			if p.From != first || p.To != last || p.To <= p.From || p.Operations == 0 {
				t.Errorf("%+v: part %d is %+v", c, i, p)
			}
			if c.want > 1 && float64(p.Memory) > 1.1*float64(all[0].Memory)/float64(len(parts)) {
				t.Errorf("%+v: part %d takes %d of %d", c, i, p.Memory, all[0].Memory)
			}
			operations, memory = operations+p.Operations, memory+p.Memory
		}
		if operations != src.Info.Operations || memory != all[0].Memory {
			t.Errorf("%+v: %d operations, %d bytes in the parts; the whole has %d, %d", c, operations, memory, src.Info.Operations, all[0].Memory)
		}
	}
	// Operations posted at one time cannot be cut apart, wherever partitions end.
	for _, p := range src.Parts {
		for i := range p {
			p[i].Post = src.Info.First
		}
	}
	if parts := split(t, src, timeline.Options{}, 5, 0); len(parts) != 1 || parts[0].Operations != src.Info.Operations {
		t.Errorf("one time only: %+v", parts)
	}
	// Half of the time of the last operation of a partition is in the next one.
	for i, p := range src.Parts {
		for k := range p {
			p[k].Post = src.Info.First + int64((i+1)/2)
		}
	}
	parts := split(t, src, timeline.Options{}, 5, 0)
	if len(parts) != 3 {
		t.Fatalf("%d parts of three times", len(parts))
	}
	for i := range parts {
		if _, s := piece(t, src, timeline.Options{}, &parts[i]); s.Written["ucp"]+s.Written["verbs"] != parts[i].Operations {
			t.Errorf("part %d holds %v, announced %d", i, s.Written, parts[i].Operations)
		}
	}
}

// Operations that overlap lie on lanes of their own, in the whole and in pieces: no slice is inside another or reaches into the next.
func TestF69SlicesNestProperly(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	tp.Need(t)
	src := timelinetest.New(timelinetest.Config{Seed: 14, Ranks: 3, Messages: 2000, Partitions: 3, Strays: true})
	files := map[string]string{}
	trace, _ := write(t, src, perfetto.Options{})
	files["whole"] = save(t, trace)
	parts := split(t, src, timeline.Options{}, 2, 0)
	for i := range parts {
		trace, _ := piece(t, src, timeline.Options{}, &parts[i])
		files[fmt.Sprint("piece ", i)] = save(t, trace)
	}
	const overlaps = `select count(*) from (select ts, dur, lag(ts + dur) over (partition by track_id order by ts, ts + dur) as before
		from slice where depth = 0 and category != 'sigmatrace') where before > ts`
	const inside = `select count(*) from slice c join slice p on c.parent_id = p.id where c.name not in ('posted', 'completed', 'received') or c.ts < p.ts or c.ts + c.dur > p.ts + p.dur`
	for name, file := range files {
		for _, sql := range []string{overlaps, inside} {
			if got := query(t, file, sql); !slices.Equal(got, []string{"0"}) {
				t.Errorf("%s: %v of %s", name, got, sql)
			}
		}
	}
	trace, _ = write(t, overlapping(t, src), perfetto.Options{})
	if got := query(t, save(t, trace), overlaps+" union all "+inside); slices.Equal(got, []string{"0", "0"}) {
		t.Error("an overlap is not found out")
	}
}

// Arrows leave where a message was posted, not where its slice ends, and arrive where it was received.
func TestF70ArrowsLeaveAtThePost(t *testing.T) {
	tp.Need(t)
	src := timelinetest.New(timelinetest.Config{Seed: 15, Ranks: 3, Messages: 300, Partitions: 2})
	trace, _ := write(t, src, perfetto.Options{})
	got := query(t, save(t, trace), `select a.ts || ' -> ' || b.ts from flow join slice a on slice_out = a.id join slice b on slice_in = b.id
		where (a.name = 'posted' or a.ts = b.ts) and a.dur = 0 and b.dur = 0`)
	posts := map[uint64]int64{}
	var want []string
	src.Each(func(o *ops.Op) {
		if o.Flow != 0 && o.Role != ops.Target {
			posts[o.Flow] = o.Post
		}
	})
	src.Each(func(o *ops.Op) {
		if o.Flow != 0 && o.Role != ops.Initiator {
			want = append(want, fmt.Sprintf("%d -> %d", posts[o.Flow], o.Done))
		}
	})
	compare(t, "arrows", got, want)
}

// Processes of one id on two hosts, whose threads, queue pairs and sequences have the same numbers, stay apart: all ids of a trace are
// given out by the one who writes it.
func TestF68NodesDoNotCollide(t *testing.T) {
	tp.Need(t)
	src := timelinetest.New(timelinetest.Config{Seed: 16, Ranks: 4, Messages: 400, Partitions: 3})
	for i := range src.Info.Processes {
		src.Info.Processes[i].Pid = 100
	}
	trace, s := write(t, src, perfetto.Options{})
	file := save(t, trace)
	if err := verify(file, s, s.FlowBegins); err != nil {
		t.Error(err)
	}
	got := query(t, file, `select p.name || ': ' || count(*) from slice s join process_track k on s.track_id = k.id join process p using (upid) where s.depth = 0 group by p.upid`)
	count := map[uint32]int{}
	src.Each(func(o *ops.Op) { count[o.Process]++ })
	var want []string
	for i, n := range count {
		want = append(want, fmt.Sprintf("%s: %d", strings.ReplaceAll(processName(src, i), "pid 101", "pid 100"), n))
	}
	compare(t, "operations by process", got, want)
}
