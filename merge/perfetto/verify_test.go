package perfetto_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/perfetto"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline/timelinetest"
	"github.com/sigmatrace/sigmatrace/tests/tp"
)

func save(t testing.TB, trace []byte) string {
	t.Helper()
	f := filepath.Join(t.TempDir(), "trace.pftrace")
	if err := os.WriteFile(f, trace, 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

// what a trace processor counts, each against what the exporter says it wrote, or against zero. The importer says nothing of an
// event without its begin or its end, of a tail that is missing, or of slices that overlap on a lane.
var counts = []struct {
	what, sql string
	want      func(s *perfetto.Stats) int64
}{
	{"slices", "select count(*) from slice where name not in ('posted', 'completed', 'received')", func(s *perfetto.Stats) int64 { return s.Slices }},
	{"instants", "select count(*) from slice where name in ('posted', 'completed', 'received') and dur = 0", func(s *perfetto.Stats) int64 { return s.Instants }},
	{"operations", "select count(*) from slice where category glob 'ucp*' or category glob 'verbs*'", func(s *perfetto.Stats) int64 { return s.Written["ucp"] + s.Written["verbs"] }},
	{"failed operations", "select count(*) from slice where category glob '*,error'", func(s *perfetto.Stats) int64 { return s.Failed }},
	{"unfinished operations", "select count(*) from args where key = 'debug.unfinished' and int_value = 1", func(s *perfetto.Stats) int64 { return s.Unfinished }},
	{"counter samples", "select count(*) from counter", func(s *perfetto.Stats) int64 { return s.Counters }},
	{"ends of flows that begin", "select sum(int_value) from args join slice using (arg_set_id) where key = 'debug.flow_ends' and slice.category = 'sigmatrace'", func(s *perfetto.Stats) int64 { return s.FlowEnds }},
	{"slices said by the trace itself", "select sum(int_value) from args join slice using (arg_set_id) where key = 'debug.slices' and slice.category = 'sigmatrace'", func(s *perfetto.Stats) int64 { return s.Slices }},
	{"operations inside another", "select count(*) from slice where depth > 0 and name not in ('posted', 'completed', 'received')", zero},
	{"instants outside an operation", "select count(*) from slice where depth = 0 and name in ('posted', 'completed', 'received')", zero},
	{"slices without a name", "select count(*) from slice where name is null", zero},
	{"slices without an end", "select count(*) from slice where dur < 0", zero},
	{"slices of no process", "select count(*) from slice join track on track.id = track_id where category != 'sigmatrace' and type not glob 'process*'", zero},
	{"tracks without a layer", "select count(*) from track t left join track g on t.parent_id = g.id where (t.type glob 'process_counter*' or t.type glob 'process_merged*') and (g.name is null or g.name not in ('ucp', 'verbs'))", zero},
	{"wall clock", "select count(*) from clock_snapshot where clock_name = 'REALTIME' and clock_value = ts", func(*perfetto.Stats) int64 { return 1 }},
}

func zero(*perfetto.Stats) int64 { return 0 }

// verify imports a trace with trace_processor and compares it with what the exporter says of it. Arrows is the number of flows with
// both ends in the trace: all of them, where nothing was left out.
func verify(file string, s *perfetto.Stats, arrows int64) error {
	if err := tp.Check(file); err != nil {
		return err
	}
	var sql []string
	for _, c := range counts {
		sql = append(sql, "("+c.sql+")")
	}
	sql = append(sql, "(select count(*) from flow)")
	rows, err := tp.Query(file, "select "+strings.Join(sql, ", "))
	if err != nil {
		return err
	}
	var wrong []string
	for i, c := range counts {
		if want := strconv.FormatInt(c.want(s), 10); rows[0][i] != want {
			wrong = append(wrong, fmt.Sprintf("%s: %s, not %s", c.what, rows[0][i], want))
		}
	}
	if got := rows[0][len(counts)]; got != strconv.FormatInt(arrows, 10) {
		wrong = append(wrong, fmt.Sprintf("arrows: %s, not %d", got, arrows))
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%s: %s", file, strings.Join(wrong, "; "))
	}
	return nil
}

func TestTraceProcessorSeesWhatWasWritten(t *testing.T) {
	tp.Need(t)
	for name, c := range map[string]timelinetest.Config{
		"clean":         {Seed: 3, Ranks: 4, Messages: 4000, Partitions: 3},
		"strays":        {Seed: 4, Ranks: 5, Messages: 4000, Partitions: 7, Strays: true},
		"calls":         {Seed: 5, Ranks: 3, Messages: 2000, Partitions: 2, Simple: true},
		"one partition": {Seed: 6, Ranks: 1, Messages: 100, Partitions: 1},
		"nothing":       {Seed: 7, Ranks: 2, Messages: 0, Partitions: 1},
		"many cuts":     {Seed: 8, Ranks: 2, Messages: 500, Partitions: 200},
	} {
		t.Run(name, func(t *testing.T) {
			src := timelinetest.New(c)
			trace, s := write(t, src, perfetto.Options{Workers: 2})
			if s.Written["ucp"]+s.Written["verbs"] != src.Info.Operations {
				t.Fatalf("wrote %v of %d operations", s.Written, src.Info.Operations)
			}
			if got := int64(len(packets(t, trace))); got != s.Packets {
				t.Errorf("%d packets in the file, said to be %d", got, s.Packets)
			}
			if err := verify(save(t, trace), s, s.FlowBegins); err != nil {
				t.Error(err)
			}
		})
	}
}
