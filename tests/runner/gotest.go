package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// goEvent is one line of `go test -json` (see `go doc test2json`).
type goEvent struct {
	Action      string
	Package     string
	ImportPath  string // of a build event
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string
}

// reportGoTest turns the events of `go test -json` into result lines, one for each test and subtest. A package that
// fails without a failed test (it does not build, or its process dies) is a failure of its own.
func reportGoTest(in io.Reader, out io.Writer) error {
	dec := json.NewDecoder(in)
	output := map[string]*strings.Builder{} // by package and test: shown when it fails, searched for a skip's reason
	failed := map[string]bool{}             // packages with a failed test
	for {
		var e goEvent
		if err := dec.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read the events of go test: %w", err)
		}
		key := e.Package + e.ImportPath + "\x00" + e.Test
		switch e.Action {
		case "output", "build-output":
			b := output[key]
			if b == nil {
				b = new(strings.Builder)
				output[key] = b
			}
			b.WriteString(e.Output)
			continue
		case "pass", "fail", "skip":
		default:
			continue
		}
		text := ""
		if b := output[key]; b != nil {
			text = b.String()
		}
		delete(output, key)
		name := e.Package
		if e.Test != "" {
			name += "." + strings.ReplaceAll(e.Test, " ", "_")
		}
		switch {
		case e.Action == "pass" && e.Test != "":
			fmt.Fprintf(out, "ok %s\n", name)
		case e.Action == "pass" && strings.Contains(text, "testing: warning: no tests to run"):
			fmt.Fprintf(out, "FAIL %s: no test has a name that was asked for\n", name)
		case e.Action == "skip" && e.Test != "":
			fmt.Fprintf(out, "SKIP %s: %s\n", name, skipReason(text))
		case e.Action == "fail" && e.Test != "":
			failed[e.Package] = true
			fmt.Fprintf(out, "%sFAIL %s: see the log\n", indent(text), name)
		case e.Action == "fail" && e.FailedBuild != "":
			if b := output[e.FailedBuild+"\x00"]; b != nil {
				text += b.String()
			}
			fmt.Fprintf(out, "%sFAIL %s: does not build\n", indent(text), name)
		case e.Action == "fail" && !failed[e.Package]:
			fmt.Fprintf(out, "%sFAIL %s: the package fails outside of its tests\n", indent(text), name)
		}
	}
}

// indent keeps a test's own output from being read as result lines.
func indent(text string) string {
	if text == "" {
		return ""
	}
	return "    " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ") + "\n"
}

// skipReason finds what t.Skip was told: the last line of the form "file_test.go:12: reason".
func skipReason(text string) string {
	reason := "no reason given"
	for line := range strings.Lines(text) {
		if _, after, ok := strings.Cut(strings.TrimSpace(line), ".go:"); ok {
			if _, why, ok := strings.Cut(after, ": "); ok {
				reason = why
			}
		}
	}
	return reason
}
