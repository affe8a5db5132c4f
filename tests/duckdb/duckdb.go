// Package duckdb queries Parquet exports with DuckDB, which fetch.sh brings from npm into build/duckdb. It runs under Node.js.
package duckdb

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// library brings DuckDB here, once a process, and returns its folder.
var library = sync.OnceValues(func() (string, error) {
	var stderr bytes.Buffer
	cmd := exec.Command(filepath.Join(folder(), "fetch.sh"))
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("fetch DuckDB: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), nil
})

// folder is where this package's scripts are.
func folder() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(file)
}

// Need makes sure that DuckDB is there. Where it cannot be had, the test is skipped, and failed in CI.
func Need(t testing.TB) {
	t.Helper()
	_, err := library()
	if err == nil {
		_, err = exec.LookPath("node")
	}
	switch {
	case err == nil:
	case os.Getenv("CI") != "":
		t.Fatalf("DuckDB is needed: %v", err)
	default:
		t.Skipf("DuckDB is not to be had: %v", err)
	}
}

// Query returns the rows of one SQL statement as text, NULL as "[NULL]". Names of files in it are relative to dir.
func Query(dir, sql string) ([][]string, error) {
	lib, err := library()
	if err != nil {
		return nil, err
	}
	var stderr bytes.Buffer
	cmd := exec.Command("node", filepath.Join(folder(), "query.js"), sql)
	cmd.Dir, cmd.Stderr = dir, &stderr
	cmd.Env = append(os.Environ(), "DUCKDB="+lib)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("query %s: %w: %s", dir, err, strings.TrimSpace(stderr.String()))
	}
	rows, err := csv.NewReader(bytes.NewReader(out)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("query %s: read the rows: %w", dir, err)
	}
	return rows, nil
}
