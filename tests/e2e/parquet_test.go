package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/dump"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/parquet/parquettest"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/tests/duckdb"
)

// sums are counts and bytes by layer, operation, rank and peer's rank; a rank that is not known is "[NULL]".
type sums map[[4]string]tally

func (s sums) add(layer, operation string, rank, peer any, v tally) {
	text := func(r any) string {
		if r == nil {
			return "[NULL]"
		}
		return fmt.Sprint(r)
	}
	k := [4]string{layer, operation, text(rank), text(peer)}
	s[k] = tally{s[k].Count + v.Count, s[k].Bytes + v.Bytes}
}

func (s sums) equal(t *testing.T, what string, want sums) {
	t.Helper()
	if len(want) < 8 {
		t.Errorf("%s: only %d sums to compare", what, len(want))
	}
	for k, v := range want {
		if s[k] != v {
			t.Errorf("%s: %v: %v, not %v", what, k, s[k], v)
		}
	}
	for k, v := range s {
		if _, ok := want[k]; !ok {
			t.Errorf("%s: %v: %v, of which nobody else knows", what, k, v)
		}
	}
}

// checkLines holds lines of JSON against a schema.
func checkLines(t *testing.T, what string, schema []byte, lines string) {
	t.Helper()
	s, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", s); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(lines) {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(line))
		if err == nil {
			err = compiled.Validate(v)
		}
		if err != nil {
			t.Fatalf("%s: %s: %v", what, line, err)
		}
		n++
	}
	if n < 1000 {
		t.Errorf("%s: %d lines only", what, n)
	}
}

// The tables of a real program, UCX over verbs, read by Arrow and by DuckDB: every operation is there once, and the sums are those of the
// merged stream and, for what initiators count, of matrix.json. The README's query runs as it stands.
func TestParquetOfOpenMPI(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	duckdb.Need(t)
	r := newRun(t, spec{mode: "full", providers: "ucx,ibverbs", hca: true, noCount: true, env: []string{"UCX_TLS=rc_v,self"}})
	r.path = filepath.Join(r.dir, "run1")
	r.launch(r.mpirun(4, built(t, "tests/mpi-app"), "-n", "5")...).succeed()
	if out, errs, status := execute(t, sigmatrace(t, "export", "--format", "parquet", r.path)); status != 0 {
		t.Fatalf("export ended with %d\n%s%s", status, out, errs)
	}

	stream, initiated, total := sums{}, sums{}, int64(0)
	dir, err := rundir.Open(r.path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := merge.Open(context.Background(), dir, merge.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	run := m.Run()
	for i := range run.Partitions {
		if err := m.Partition(context.Background(), i, func(block []ops.Op) error {
			for k := range block {
				o := &block[k]
				total++
				var peer any
				if o.Peer != 0 {
					peer = run.Processes[run.Endpoints[o.Peer-1].Process].Rank
				}
				stream.add(run.Endpoints[o.Endpoint].Layer, catalogue.Default.Event(o.Event).Name, run.Processes[o.Process].Rank, peer, tally{1, o.Bytes})
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for layer, l := range m.Matrix().Layers {
		for _, row := range l.Rank {
			initiated.add(layer, row.Operation, row.Source, row.Destination, tally{row.Count, row.Bytes})
		}
	}

	arrow, arrowInitiated, rows := sums{}, sums{}, int64(0)
	for layer, tables := range parquettest.Operations(t, filepath.Join(r.path, "events")) {
		for _, x := range tables {
			for i := range x.Rows {
				c := func(name string) any { return x.Columns[name][i] }
				v := tally{1, c("bytes").(uint64)}
				arrow.add(layer, c("event").(string), c("rank"), c("peer_rank"), v)
				if c("role") == "initiator" || c("role") == "one_sided" {
					arrowInitiated.add(layer, c("operation").(string), c("rank"), c("peer_rank"), v)
				}
				rows++
			}
		}
	}
	if rows != total || total < 1000 {
		t.Errorf("%d rows of %d operations", rows, total)
	}
	arrow.equal(t, "Arrow and the stream", stream)
	arrowInitiated.equal(t, "Arrow and matrix.json", initiated)

	query := func(sql string) [][]string {
		t.Helper()
		got, err := duckdb.Query(r.dir, sql)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	fromSQL := func(rows [][]string) sums {
		s := sums{}
		for _, x := range rows {
			var v tally
			if _, err := fmt.Sscan(x[4]+" "+x[5], &v.Count, &v.Bytes); err != nil {
				t.Fatalf("%v: %v", x, err)
			}
			s.add(x[0], x[1], x[2], x[3], v)
		}
		return s
	}
	fromSQL(query(`SELECT layer, operation, rank, peer_rank, count(*), sum(bytes) FROM read_parquet('run1/events/operations/*/*.parquet', union_by_name = true)
		WHERE role IN ('initiator', 'one_sided') GROUP BY ALL`)).equal(t, "DuckDB and matrix.json", initiated)
	fromSQL(query(`SELECT layer, operation, source_rank, destination_rank, sum("count"), sum(bytes) FROM 'run1/events/traffic.parquet'
		WHERE side = 'initiator' GROUP BY ALL`)).equal(t, "traffic.parquet and matrix.json", initiated)
	once := query(`SELECT count(*), count(DISTINCT (process, thread, sequence)) FROM read_parquet('run1/events/operations/*/*.parquet', union_by_name = true)`)
	if want := fmt.Sprint(total); !slices.Equal(once[0], []string{want, want}) {
		t.Errorf("DuckDB: %v rows, of which so many differ; the run has %s", once, want)
	}
	joined := query(`SELECT count(*) FROM 'run1/events/operations/layer=ucp/*.parquet' o JOIN 'run1/events/processes.parquet' p USING (process)
		JOIN 'run1/events/endpoints.parquet' e USING (endpoint) JOIN 'run1/events/threads.parquet' t ON t.process = o.process AND t.thread = o.thread
		WHERE p.rank = o.rank AND p.pid = o.pid AND e.name = o.endpoint_name AND e.process = o.process`)
	ucp := query(`SELECT count(*) FROM 'run1/events/operations/layer=ucp/*.parquet'`)
	if joined[0][0] != ucp[0][0] {
		t.Errorf("%v of %v operations of layer ucp join the small tables", joined, ucp)
	}

	dumped, errs, status := execute(t, sigmatrace(t, "dump", "--json", r.path))
	if status != 0 {
		t.Errorf("dump ended with %d\n%s", status, errs)
	}
	checkLines(t, "dump --json", dump.LineSchema, dumped)

	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "```sql\n")
	sql, _, found := strings.Cut(after, "```")
	if !found {
		t.Fatal("no query in README.md")
	}
	got := query(sql)
	var sends uint64
	for _, x := range got {
		var n uint64
		if _, err := fmt.Sscan(x[2], &n); err != nil {
			t.Fatal(err)
		}
		sends += n
	}
	var want uint64
	for k, v := range initiated {
		if k[0] == "ucp" && k[1] == "tag_send" {
			want += v.Count
		}
	}
	if sends != want || want == 0 {
		t.Errorf("the README's query: %d sends of %d\n%v", sends, want, got)
	}
}
