// Command runner runs the test parts, tests/parts/NN-name.sh, side by side and counts what they report.
//
// A part is an executable that prints one line for each test on standard output: "ok NAME", "FAIL NAME: why" or
// "SKIP NAME: why". Everything else it prints is log. The last line of the runner is "N passed, N failed, N skipped";
// its exit status is 0 only when at least one test ran, none failed, and no test was skipped that may not be.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "gotest" {
		if err := reportGoTest(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintf(os.Stderr, "runner: error: %v\n", err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "counts" {
		if err := sumCounts(os.Stdout, os.Args[2:]); err != nil {
			fmt.Fprintf(os.Stderr, "runner: error: %v\n", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := run(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintf(os.Stderr, "runner: error: %v\n", err)
		os.Exit(2)
	case !ok:
		os.Exit(1)
	}
}

// run parses the command line, runs the selected parts and prints the summary; ok tells whether all of it is well.
func run(ctx context.Context, args []string) (ok bool, err error) {
	fs := flag.NewFlagSet("runner", flag.ContinueOnError)
	dir := fs.String("parts", "tests/parts", "folder of the parts")
	build := fs.String("build", "build", "build folder: logs and scratch folders of the parts go below it")
	quick := fs.Bool("quick", false, "only the parts that declare themselves quick, told so by SIGMATRACE_TEST_QUICK=1")
	without := fs.String("without", "", "parts to leave out, by name, separated by commas")
	jobs := fs.Int("j", 2, "parts run at a time")
	fs.Usage = func() {
		fmt.Fprintln(fs.Output(), "usage: tests/run [flags] [PART...]    PART: a name, such as go-test, or the start of one")
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil {
		return false, errors.Join(flag.ErrHelp, err)
	}
	parts, err := findParts(*dir)
	if err != nil {
		return false, err
	}
	parts, err = selectParts(parts, fs.Args(), splitList(*without), *quick)
	if err != nil {
		return false, err
	}
	absBuild, err := filepath.Abs(*build)
	if err != nil {
		return false, fmt.Errorf("build folder %s: %w", *build, err)
	}
	r := &runner{
		build:   absBuild,
		quick:   *quick,
		out:     os.Stdout,
		started: time.Now(),
	}
	if list, strict := os.LookupEnv("SIGMATRACE_ALLOWED_SKIPS"); strict {
		r.strict, r.allowed = true, strings.Fields(list)
	}
	total, err := r.runAll(ctx, parts, *jobs)
	if err != nil {
		return false, err
	}
	r.showFailures()
	summary := fmt.Sprintf("%d passed, %d failed, %d skipped\n", total.passed, total.failed, total.skipped)
	fmt.Print(summary)
	if err := os.WriteFile(filepath.Join(absBuild, "test-logs", "summary"), []byte(summary), 0o644); err != nil {
		return false, fmt.Errorf("write the summary: %w", err)
	}
	return total.failed == 0 && total.passed > 0, nil
}

func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}
