package e2e

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/perfetto"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/tests/tp"
)

// written exports the run once more and returns the exporter's account of it. The bytes must be those in the run directory.
func (r *run) written() *perfetto.Stats {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	dir, err := rundir.Open(r.path)
	if err != nil {
		r.t.Fatal(err)
	}
	m, err := merge.Open(ctx, dir, merge.Options{Workers: 2, TempDir: r.dir})
	if err != nil {
		r.t.Fatal(err)
	}
	defer m.Close()
	var out bytes.Buffer
	stats, err := perfetto.Write(ctx, &out, m, m.TraceOptions(merge.ExportOptions{}))
	if err != nil {
		r.t.Fatal(err)
	}
	trace, err := os.ReadFile(filepath.Join(r.path, "trace.pftrace"))
	if err != nil {
		r.t.Fatal(err)
	}
	if !bytes.Equal(trace, out.Bytes()) {
		r.t.Errorf("exported again, the trace has other bytes: %d, then %d", len(trace), out.Len())
	}
	return stats
}

// counterOf names the counter track that sums the bytes of an operation: "one-sided" for those that it does not have, "" for none.
var counterOf = map[string]map[string]string{
	"ucp":   {"tag_send": "send", "tag_recv": "receive", "flush": ""},
	"verbs": {"send": "send", "write_imm": "send", "recv": "receive"},
}

// checkTrace holds trace.pftrace, as trace_processor reads it, against what the exporter says it wrote, the account, and what the
// counters saw: slices by operation, flows, and the last value of every sum of bytes.
func (r *run) checkTrace(i *info, saw map[string]totals) {
	r.t.Helper()
	tp.Need(r.t)
	trace := filepath.Join(r.path, "trace.pftrace")
	if err := tp.Check(trace); err != nil {
		r.t.Error(err)
	}
	stats := r.written()
	const instants = "('posted', 'completed', 'received')"
	rows, err := tp.Query(trace, `
		select 'slice ' || category || ' ' || name as k, count(*) as v from slice where category glob 'uc[pt]*' or category glob 'verbs*' group by 1
		union all select 'slices', count(*) from slice where name not in `+instants+`
		union all select 'instants', count(*) from slice where name in `+instants+`
		union all select 'arrows ' || i.name, count(*) from flow join slice i on i.id = flow.slice_in group by 1
		union all select 'samples', count(*) from counter
		union all select 'unfinished', count(*) from args where key = 'debug.unfinished'
		union all select 'sum ' || g.name || ' ' || substr(t.name, instr(t.name, ': ') + 2), sum(v) from
			(select track_id, max(value) as v from counter group by 1) join track t on t.id = track_id join track g on g.id = t.parent_id group by 1`)
	if err != nil {
		r.t.Fatal(err)
	}
	got := map[string]int64{}
	for _, row := range rows {
		v, err := strconv.ParseFloat(row[1], 64)
		if err != nil {
			r.t.Fatalf("%v", row)
		}
		got[row[0]] = int64(v)
	}
	want := map[string]int64{"slices": stats.Slices, "instants": stats.Instants, "samples": stats.Counters, "unfinished": stats.Unfinished,
		"arrows received": int64(i.Flows.Matched), "arrows completed": stats.FlowEnds - int64(i.Flows.Matched)}
	for layer, ops := range saw {
		for op, v := range ops {
			want["slice "+layer+" "+op] = int64(v.Count)
			if c, ok := counterOf[layer][op]; !ok {
				want["sum "+layer+" one-sided bytes posted"] += int64(v.Bytes)
			} else if c != "" {
				want["sum "+layer+" "+c+" bytes posted"] += int64(v.Bytes)
			}
		}
	}
	// Of these nobody counts but the account.
	for name, event := range map[string]string{"verbs empty polls": "verbs_empty_polls", "verbs notify": "verbs_notify", "uct flush": "uct_flush"} {
		want["slice "+name] = int64(i.Events.ByName[event])
	}
	if int64(i.Unfinished) != stats.Unfinished {
		r.t.Errorf("%d unfinished operations in the trace, the account has %d", stats.Unfinished, i.Unfinished)
	}
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if strings.HasSuffix(key, "outstanding requests") || strings.HasSuffix(key, "call bytes posted") {
			delete(got, key)
		}
	}
	if diff := differences(got, want); diff != "" {
		r.t.Errorf("%s\n%s", trace, diff)
	}
}

// differences lists where two maps differ; a key that is missing counts as 0.
func differences(got, want map[string]int64) string {
	var b strings.Builder
	all := maps.Clone(want)
	maps.Copy(all, got)
	for _, k := range slices.Sorted(maps.Keys(all)) {
		if got[k] != want[k] {
			fmt.Fprintf(&b, "%s: %d, want %d\n", k, got[k], want[k])
		}
	}
	return b.String()
}

// A trace of calls, in mode simple: one slice a call.
func TestTraceOfCalls(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	tp.Need(t)
	r := newRun(t, spec{mode: "simple", providers: "ucx", env: transports["tcp"]})
	r.launch(r.mpirun(3, built(t, "tests/mpi-app"), "-n", "2")...).succeed()
	i, saw := r.check("ucp")
	calls := map[string]totals{"ucp": {}}
	for op, v := range saw["ucp"] {
		calls["ucp"][op] = tally{Count: v.Count}
	}
	r.checkTrace(i, calls)
}
