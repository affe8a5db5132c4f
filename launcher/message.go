package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/sigmatrace/sigmatrace/profiles"
	"golang.org/x/sys/unix"
)

// What this program says on standard error has one of these forms, a line each, beginning in lower case:
//
//	sigmatrace: error: <what, and to what>
//	sigmatrace: warning: <what will be missing>
//	sigmatrace: hint: <what to do about the line before>
//	sigmatrace: <what was done>

// Exit statuses of sigmatrace itself. launch returns its command's status instead, and these only when there was none.
const (
	exitFailure       = 1
	exitUsage         = 2
	exitIncomplete    = 3
	exitNotExecutable = 126
	exitNotFound      = 127
)

// usageError is a wrong command line, profile or variable: exit status 2.
type usageError struct {
	err  error
	hint string
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }
func (e *usageError) Hint() string  { return e.hint }

// failure is an error with its own exit status and advice.
type failure struct {
	err    error
	hint   string
	status int
}

func (e *failure) Error() string { return e.err.Error() }
func (e *failure) Unwrap() error { return e.err }
func (e *failure) Hint() string  { return e.hint }

func failf(hint, format string, args ...any) error {
	return &failure{err: fmt.Errorf(format, args...), hint: hint, status: exitFailure}
}

// report prints err and its hints, and returns the exit status.
func report(w io.Writer, err error) int {
	var list profiles.Problems
	if errors.As(err, &list) {
		for _, p := range list {
			printError(w, p)
		}
	} else {
		printError(w, err)
	}
	var f *failure
	var u *usageError
	var p *profiles.Problem
	switch {
	case errors.As(err, &f):
		return f.status
	case errors.As(err, &u), errors.As(err, &p), list != nil:
		return exitUsage
	}
	return exitFailure
}

// outliveReaders makes a message that nobody reads any more fail instead of ending this process by SIGPIPE: the command's status and
// the merge do not depend on who looks at standard error. The command itself gets the default action.
func outliveReaders() { signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) }

func printError(w io.Writer, err error) {
	fmt.Fprintf(w, "sigmatrace: error: %s\n", oneLine(err.Error()))
	printHint(w, hintOf(err))
}

func warn(w io.Writer, hint, format string, args ...any) {
	fmt.Fprintf(w, "sigmatrace: warning: %s\n", oneLine(fmt.Sprintf(format, args...)))
	printHint(w, hint)
}

func note(w io.Writer, format string, args ...any) {
	fmt.Fprintf(w, "sigmatrace: %s\n", oneLine(fmt.Sprintf(format, args...)))
}

func printHint(w io.Writer, hint string) {
	if hint != "" {
		fmt.Fprintf(w, "sigmatrace: hint: %s\n", oneLine(hint))
	}
}

// hintOf returns the first advice along the chain of wrapped errors.
func hintOf(err error) string {
	for ; err != nil; err = errors.Unwrap(err) {
		if h, ok := err.(interface{ Hint() string }); ok && h.Hint() != "" {
			return h.Hint()
		}
	}
	return ""
}

// oneLine keeps a message on its line: names of files may hold newlines.
func oneLine(s string) string { return strings.ReplaceAll(s, "\n", `\n`) }
