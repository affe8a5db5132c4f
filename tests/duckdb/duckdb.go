// Package duckdb queries Parquet exports with DuckDB, which fetch.sh brings from npm into build/duckdb. It runs under Node.js.
package duckdb

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"testing"

	"github.com/sigmatrace/sigmatrace/tests/npm"
)

var program = npm.New("DuckDB", "query.js", "DUCKDB")

// Need makes sure that DuckDB is there. Where it cannot be had, the test is skipped, and failed in CI.
func Need(t testing.TB) {
	t.Helper()
	program.Need(t)
}

// Query returns the rows of one SQL statement as text, NULL as "[NULL]". Names of files in it are relative to dir.
func Query(dir, sql string) ([][]string, error) {
	out, err := program.Run(dir, sql)
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", dir, err)
	}
	rows, err := csv.NewReader(bytes.NewReader(out)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("query %s: read the rows: %w", dir, err)
	}
	return rows, nil
}
