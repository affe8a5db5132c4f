// Package parquettest reads Parquet exports with Apache Arrow, which shares no code with what wrote them, for tests.
package parquettest

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

// Table is a file in columns. A value is an int64, uint64, float64, string or bool, or nil for null.
type Table struct {
	Rows    int
	Columns map[string][]any
	Groups  int // row groups
}

// Read reads one file.
func Read(t testing.TB, path string) *Table {
	t.Helper()
	f, err := file.OpenParquetFile(path, false)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	defer f.Close()
	r, err := pqarrow.NewFileReader(f, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	a, err := r.ReadTable(context.Background())
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	defer a.Release()
	table := &Table{Rows: int(a.NumRows()), Columns: map[string][]any{}, Groups: f.NumRowGroups()}
	for i := range int(a.NumCols()) {
		c := a.Column(i)
		if _, ok := table.Columns[c.Name()]; ok {
			t.Fatalf("%s: two columns %s", path, c.Name())
		}
		values := make([]any, 0, table.Rows)
		for _, chunk := range c.Data().Chunks() {
			for k := range chunk.Len() {
				values = append(values, value(t, path, c, chunk, k))
			}
		}
		if len(values) != table.Rows {
			t.Fatalf("%s: %d values in column %s of %d rows", path, len(values), c.Name(), table.Rows)
		}
		table.Columns[c.Name()] = values
	}
	return table
}

func value(t testing.TB, path string, c *arrow.Column, chunk arrow.Array, k int) any {
	if chunk.IsNull(k) {
		return nil
	}
	switch v := chunk.(type) {
	case *array.Int64:
		return v.Value(k)
	case *array.Int32:
		return int64(v.Value(k))
	case *array.Uint64:
		return v.Value(k)
	case *array.Uint32:
		return uint64(v.Value(k))
	case *array.Float64:
		return v.Value(k)
	case *array.String:
		return strings.Clone(v.Value(k))
	case *array.Boolean:
		return v.Value(k)
	}
	t.Fatalf("%s: column %s is of type %s", path, c.Name(), chunk.DataType())
	return nil
}

// Operations reads the files of each layer's operations in an export, in order of their names.
func Operations(t testing.TB, dir string) map[string][]*Table {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "operations", "layer=*", "*.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(paths)
	tables := map[string][]*Table{}
	for _, path := range paths {
		_, layer, _ := strings.Cut(filepath.Base(filepath.Dir(path)), "=")
		tables[layer] = append(tables[layer], Read(t, path))
	}
	return tables
}

// Metadata is a file's key-value metadata and its compression.
func Metadata(t testing.TB, path string) (map[string]string, []string) {
	t.Helper()
	f, err := file.OpenParquetFile(path, false)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	defer f.Close()
	values := map[string]string{}
	m := f.MetaData().KeyValueMetadata()
	for i, k := range m.Keys() {
		values[k] = m.Values()[i]
	}
	var codecs []string
	for g := range f.NumRowGroups() {
		for c := range f.MetaData().Schema.NumColumns() {
			chunk, err := f.MetaData().RowGroup(g).ColumnChunk(c)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if !slices.Contains(codecs, chunk.Compression().String()) {
				codecs = append(codecs, chunk.Compression().String())
			}
		}
	}
	return values, codecs
}
