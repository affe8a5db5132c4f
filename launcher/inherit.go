package main

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// entry is where the program starts (build.mk gives it to the linker): it looks at what the Go runtime will have changed by the time
// that main runs, namely signals that were ignored and standard files that were closed, and goes on to the runtime's own entry. The
// command shall get both as this process did. In a build without it, such as a test's, nothing was ignored or closed.
func entry()

var _ = entry // the linker's, by name

var (
	ignoredAtStart uint64 // bit n-1 for signal n
	closedAtStart  uint64 // bit n for descriptor n, of 0 to 2
)

// ignoreAgain ignores what this process was started with ignored, which exec hands on. Two are left alone: without SIGCHLD the command's
// status would be lost, and the runtime uses SIGURG, which does nothing to anybody who does not ask for it.
func ignoreAgain() {
	for n := unix.Signal(1); n <= 64; n++ {
		if ignoredAtStart&(1<<(n-1)) != 0 && n != unix.SIGCHLD && n != unix.SIGURG {
			signal.Ignore(n)
		}
	}
}

// standardFiles are those of the command: nil for what was closed when this process was started.
func standardFiles() []*os.File {
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	for n := range files {
		if closedAtStart&(1<<n) != 0 {
			files[n] = nil
		}
	}
	return files
}
