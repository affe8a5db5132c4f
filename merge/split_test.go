package merge_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	cat "github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/parquet"
)

// pieces splits a run and returns the folder with its index, which must be as its schema says.
func pieces(t testing.TB, m *merge.Merged, path string, s merge.Split, o merge.ExportOptions) *merge.PiecesIndex {
	t.Helper()
	plan, err := m.PlanSplit(context.Background(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.ExportPieces(context.Background(), plan, path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(path, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := check(t, "pieces", merge.PiecesSchema, text); err != nil {
		t.Errorf("index: %v\n%s", err, text)
	}
	index := &merge.PiecesIndex{}
	if err := json.Unmarshal(text, index); err != nil {
		t.Fatal(err)
	}
	if plan.Pieces() != len(index.Pieces) || plan.Operations != index.Operations || plan.Memory != index.Memory {
		t.Errorf("%d pieces of %d operations, %d bytes of memory were announced: %s", plan.Pieces(), plan.Operations, plan.Memory, text)
	}
	return index
}

// The index names each piece with its times and its size; earlier pieces are replaced; the bytes do not depend on the workers.
func TestPiecesOfARun(t *testing.T) {
	r := manyOperations(t, 150_000)
	m := r.open(merge.Options{Workers: 2})
	path := filepath.Join(r.dir.Path(), merge.PiecesName)
	whole := pieces(t, m, path, merge.Split{}, merge.ExportOptions{})
	if len(whole.Pieces) != 1 || whole.FlowsCut != 0 || whole.Operations != m.Run().Operations {
		t.Fatalf("%+v", whole)
	}
	x := pieces(t, m, path, merge.Split{Memory: whole.Memory/5 + 1}, merge.ExportOptions{})
	if len(x.Pieces) != 5 || x.Operations != m.Run().Operations || x.FlowsCut == 0 {
		t.Errorf("%+v", x)
	}
	end := m.Run().First
	for i, p := range x.Pieces {
		st, err := os.Stat(filepath.Join(path, p.File))
		if err != nil || st.Size() != p.Bytes || p.FromNS != end || p.ToNS <= p.FromNS {
			t.Errorf("piece %d: %+v, %v", i, p, err)
		}
		end = p.ToNS
	}
	if end != m.Run().Last+1 {
		t.Errorf("the pieces end at %d, the run at %d", end, m.Run().Last)
	}
	if n, err := os.ReadDir(path); err != nil || len(n) != 6 {
		t.Errorf("%v, %v", n, err)
	}
	other := filepath.Join(t.TempDir(), "x")
	pieces(t, r.open(merge.Options{Workers: 7, Memory: merge.MinMemory}), other, merge.Split{Memory: whole.Memory/5 + 1}, merge.ExportOptions{})
	if string(contents(t, other)) != string(contents(t, path)) {
		t.Error("the pieces depend on the number of workers")
	}
	last := m.Info().Exports[len(m.Info().Exports)-1]
	if last.Name != "perfetto" || last.File != "trace" || *last.Slices == 0 || last.FlowsCut != x.FlowsCut {
		t.Errorf("the account has %+v", last)
	}
	validate(t, m.Info(), m.Matrix())
}

// Times and ranks cut every export that shows operations, and no other.
func TestExportsAreNarrowed(t *testing.T) {
	r := manyOperations(t, 20_000)
	m := r.open(merge.Options{})
	run, operations := m.Run(), all(t, m)
	o := merge.ExportOptions{From: operations[len(operations)/4].Post, To: operations[len(operations)/2].Post, Ranks: func(r int64) bool { return r < 3 }}
	want := int64(0)
	for _, p := range operations {
		if p.Post < o.To && max(p.Done, p.Post) >= o.From && run.Processes[p.Process].Rank < 3 {
			want++
		}
	}
	for i := range merge.Exporters {
		e := &merge.Exporters[i]
		path := filepath.Join(t.TempDir(), e.File)
		err := m.Export(context.Background(), e, path, o)
		if e.Name == "matrix" {
			if !errors.Is(err, merge.ErrCannotNarrow) {
				t.Errorf("matrix: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		x := m.Info().Exports[len(m.Info().Exports)-1]
		switch e.Name {
		case "parquet":
			if *x.Rows != want {
				t.Errorf("parquet: %d rows, not %d", *x.Rows, want)
			}
		default:
			// Sends and receives have an instant, writes two of them where they ended; and there is the overview.
			if *x.Slices < want || *x.Slices > 3*want+1 || x.FlowsCut == 0 {
				t.Errorf("%s: %+v of %d operations", e.Name, x, want)
			}
		}
	}
	if x := pieces(t, m, filepath.Join(t.TempDir(), "x"), merge.Split{Pieces: 3}, o); x.Operations != want {
		t.Errorf("pieces: %d operations, not %d", x.Operations, want)
	}
}

// Folders of exports never replace what is no export, nor what the run is made of.
func TestFoldersReplaceOnlyExports(t *testing.T) {
	r := manyOperations(t, 1000)
	m := r.open(merge.Options{})
	e, err := merge.FindExporter("parquet")
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "index.json"), []byte(`{"format": "thesis"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{home, r.dir.Capture(), r.dir.ManifestPath(), filepath.Join(r.dir.Capture(), "x")} {
		before := string(contents(t, filepath.Dir(path)))
		if err := m.Export(context.Background(), e, path, merge.ExportOptions{}); err == nil {
			t.Errorf("%s was replaced", path)
		}
		if string(contents(t, filepath.Dir(path))) != before {
			t.Errorf("%s: something was written", path)
		}
	}
}

// Every export of an incomplete run says so: who reads one need not know the others.
func TestF72ExportsSayWhatIsMissing(t *testing.T) {
	r := newRig(t)
	for rank := range int64(2) {
		p := r.process("n1", uint32(100+rank), rank)
		p.pairs(hz)
		w := p.worker(50, "w")
		ep := p.endpoint(60, w, "w")
		for i := range uint64(10) {
			p.event(0, 10_000+100*i, cat.EventUcpPut, ucpRequest(ep, 8, 0, 0, 0, cat.UcpResultDone, 10)...)
		}
		if rank == 1 {
			p.Live.LostEvents = 7
		}
		if err := p.end(rank == 1); err != nil {
			t.Fatal(err)
		}
	}
	m := r.open(merge.Options{})
	dir := t.TempDir()
	for i := range merge.Exporters {
		if err := m.Export(context.Background(), &merge.Exporters[i], filepath.Join(dir, merge.Exporters[i].File), merge.ExportOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "events", parquet.IndexName))
	if err != nil {
		t.Fatal(err)
	}
	if err := check(t, "events", parquet.IndexSchema, text); err != nil {
		t.Errorf("index: %v\n%s", err, text)
	}
	var tables parquet.Index
	if err := json.Unmarshal(text, &tables); err != nil || tables.Account.Complete || tables.Account.EventsLost != 7 {
		t.Errorf("%v: %+v", err, tables.Account)
	}
	if text, err = os.ReadFile(filepath.Join(dir, "trace.json")); err != nil {
		t.Fatal(err)
	}
	for _, fact := range []string{`"complete":"no"`, `"ranks_complete":1`, `"events_lost":7`} {
		if !strings.Contains(string(text), fact) {
			t.Errorf("trace.json does not say %s", fact)
		}
	}
	if x := pieces(t, m, filepath.Join(dir, "trace"), merge.Split{}, merge.ExportOptions{}); x.Account.Complete || x.Account.RanksComplete != 1 || x.Account.EventsLost != 7 {
		t.Errorf("pieces: %+v", x.Account)
	}
}
