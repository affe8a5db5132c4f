package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// runParts writes each part as NN-name.sh, runs them all and returns the counts and what was printed.
func runParts(t *testing.T, r *runner, jobs int, bodies map[string]string) (tally, string) {
	t.Helper()
	dir := t.TempDir()
	for name, body := range bodies {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	parts, err := findParts(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	r.build, r.out, r.started = t.TempDir(), &out, time.Now()
	total, err := r.runAll(context.Background(), parts, jobs)
	if err != nil {
		t.Fatal(err)
	}
	return total, out.String()
}

func TestResultLinesAreCounted(t *testing.T) {
	got, out := runParts(t, &runner{}, 2, map[string]string{
		"10-a.sh": "echo ok one; echo 'ok two'; echo noise; echo okay three; echo ' ok four'\n",
		"11-b.sh": "echo 'SKIP five: no device'; echo 'FAIL six: 3 is not 4'; exit 1\n",
	})
	if want := (tally{passed: 2, failed: 1, skipped: 1}); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
	for _, want := range []string{"FAIL b/six: 3 is not 4", "SKIP b/five: no device", "a: 2 ok, 0 failed, 0 skipped"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q was not printed in:\n%s", want, out)
		}
	}
}

func TestPartsThatFailAsAWhole(t *testing.T) {
	for name, c := range map[string]struct{ body, want string }{
		"silent":      {"true\n", "reported no test"},
		"dies":        {"echo ok one; exit 3\n", "exit status 3, with no test reported as failed"},
		"time limit":  {"# runner: limit=300ms\nsleep 60\n", "time limit of 300ms reached"},
		"by a signal": {"echo ok one; kill -9 $$\n", "signal: killed"},
	} {
		t.Run(name, func(t *testing.T) {
			got, out := runParts(t, &runner{}, 1, map[string]string{"10-a.sh": c.body})
			if got.failed != 1 || !strings.Contains(out, c.want) {
				t.Errorf("failed %d times, want once with %q:\n%s", got.failed, c.want, out)
			}
		})
	}
}

func TestSkipNotOnTheListFails(t *testing.T) {
	body := map[string]string{"10-a.sh": "echo 'SKIP net.x: why'; echo 'SKIP gpu: why'\n"}
	got, _ := runParts(t, &runner{strict: true, allowed: []string{"a/net.*"}}, 1, body)
	if want := (tally{failed: 1, skipped: 1}); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}

func TestAlonePartsRunLastAndAlone(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace")
	step := func(n string) string {
		return fmt.Sprintf("echo %s+ >>%s; sleep 0.2; echo %s- >>%s; echo ok x\n", n, trace, n, trace)
	}
	got, _ := runParts(t, &runner{}, 3, map[string]string{
		"10-a.sh": "# runner: alone\n" + step("a"),
		"11-b.sh": step("b"),
		"12-c.sh": step("c"),
	})
	data, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	if seq := strings.Fields(string(data)); got.passed != 3 || len(seq) != 6 || seq[4] != "a+" || seq[5] != "a-" || strings.HasSuffix(seq[1], "-") {
		t.Errorf("order %v, passed %d: want b and c side by side, then a", seq, got.passed)
	}
}

func TestLeftOverProcessesAreEnded(t *testing.T) {
	start := time.Now()
	got, _ := runParts(t, &runner{}, 1, map[string]string{"10-a.sh": "sleep 600 & echo ok one\n"})
	if got.passed != 1 || got.failed != 0 || time.Since(start) > time.Minute {
		t.Errorf("%+v after %v, want one passed at once", got, time.Since(start))
	}
}

func TestMisnamedOrMisdeclaredPartIsAnError(t *testing.T) {
	for name, body := range map[string]string{"a.sh": "", "10-a.sh": "# runner: fast\n", "11-A.sh": ""} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := findParts(dir); err == nil {
			t.Errorf("%s with %q was accepted", name, body)
		}
	}
}

func TestGoTestEvents(t *testing.T) {
	in := strings.Join([]string{
		`{"Action":"run","Package":"p","Test":"TestA"}`,
		`{"Action":"pass","Package":"p","Test":"TestA"}`,
		`{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:9: no node\n"}`,
		`{"Action":"skip","Package":"p","Test":"TestB"}`,
		`{"Action":"output","Package":"p","Test":"TestC","Output":"ok forged\n"}`,
		`{"Action":"fail","Package":"p","Test":"TestC"}`,
		`{"Action":"fail","Package":"p"}`,
		`{"Action":"output","Package":"q","Output":"panic: init\n"}`,
		`{"Action":"fail","Package":"q"}`,
		`{"ImportPath":"r","Action":"build-output","Output":"r.go:1: syntax error\n"}`,
		`{"ImportPath":"r","Action":"build-fail"}`,
		`{"Action":"fail","Package":"r","FailedBuild":"r"}`,
		`{"Action":"skip","Package":"s"}`,
		`{"Action":"pass","Package":"t"}`,
		`{"Action":"output","Package":"u","Output":"testing: warning: no tests to run\n"}`,
		`{"Action":"pass","Package":"u"}`,
	}, "\n")
	var out bytes.Buffer
	if err := reportGoTest(strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	want := "ok p.TestA\nSKIP p.TestB: no node\n    ok forged\nFAIL p.TestC: see the log\n" +
		"    panic: init\nFAIL q: the package fails outside of its tests\n" +
		"    r.go:1: syntax error\nFAIL r: does not build\n" +
		"FAIL u: no test has a name that was asked for\n"
	if out.String() != want {
		t.Errorf("got:\n%swant:\n%s", out.String(), want)
	}
}

func TestFailuresAreShownAgainAtTheEnd(t *testing.T) {
	r := &runner{}
	_, out := runParts(t, r, 1, map[string]string{
		"10-a.sh": "echo '    of one'; echo ok one; for i in 1 2 3 4 5 6 7; do echo \"    line $i\"; done; echo 'FAIL two: 3 is not 4'; exit 1\n",
		"11-b.sh": "exit 3\n",
		"12-c.sh": "for i in 1 2 3; do echo \"    before $i\"; done; echo '        c_test.go:7: 1 is not 2'; for i in 1 2 3 4 5 6 7 8 9; do echo \"    line $i\"; done; echo 'FAIL three: see the log'; exit 1\n",
	})
	if _, after, _ := strings.Cut(out, "FAIL a/two: 3 is not 4\n"); !strings.Contains(strings.SplitN(after, "\n", 2)[0], "line 1") {
		t.Errorf("a failure is not followed by what its test printed:\n%s", out)
	}
	var end bytes.Buffer
	r.out = &end
	r.showFailures()
	want := "FAIL a/two: 3 is not 4\n    line 1\n    line 2\n    line 3\n    line 4\n    line 5\n    line 6\n    line 7\n" +
		"FAIL b: exit status 3, with no test reported as failed\n" +
		"FAIL c/three: see the log\n        c_test.go:7: 1 is not 2\n    line 1\n    line 2\n    line 3\n    line 4\n    line 7\n    line 8\n    line 9\n"
	if end.String() != want {
		t.Errorf("at the end:\n%swant:\n%s", end.String(), want)
	}
}
