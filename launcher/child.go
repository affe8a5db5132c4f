package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that people and schedulers send to a job.
var forwarded = []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGTSTP, unix.SIGCONT}

// outcome is how the command ended.
type outcome struct {
	status int    // 128+n for a signal
	signal string // as SIGTERM; "" where none ended it
}

// execute runs the plan with our standard files and waits for it, passing signals on. The command stays in our process group: what a
// terminal or a batch system does to the group happens to both, as if the command had been started without us.
func execute(path string, p *plan) (outcome, error) {
	ignoreAgain()
	signals := make(chan os.Signal, 16)
	for _, s := range forwarded {
		if !signal.Ignored(s) { // what is ignored, as SIGHUP under nohup, stays so for the command too
			signal.Notify(signals, s)
		}
	}
	defer signal.Stop(signals)
	child, err := os.StartProcess(path, p.argv, &os.ProcAttr{Env: environList(p.environ), Files: standardFiles()})
	if err != nil {
		return outcome{}, startFailure(path, err)
	}
	type ended struct {
		state *os.ProcessState
		err   error
	}
	done := make(chan ended, 1)
	go func() {
		state, err := child.Wait()
		done <- ended{state, err}
	}()
	for {
		select {
		case s := <-signals:
			pass(child, s.(syscall.Signal))
		case e := <-done:
			if e.err != nil {
				return outcome{}, failf("", "waiting for %s: %w", path, e.err)
			}
			return outcomeOf(e.state), nil
		}
	}
}

// pass hands one signal on. The signals of a terminal's keys reach the whole foreground group: the command has them already, and a
// second SIGINT makes mpirun give up its orderly end.
func pass(child *os.Process, s syscall.Signal) {
	switch s {
	case unix.SIGINT, unix.SIGQUIT, unix.SIGWINCH:
		if inForeground() {
			return
		}
	case unix.SIGTSTP:
		if !inForeground() {
			child.Signal(s) //nolint:errcheck // the child may just have ended
		}
		unix.Kill(os.Getpid(), unix.SIGSTOP) //nolint:errcheck // cannot fail: stop as the default action would
		return
	}
	child.Signal(s) //nolint:errcheck // the child may just have ended
}

// inForeground says whether this process is in the foreground group of a terminal.
func inForeground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

func outcomeOf(state *os.ProcessState) outcome {
	ws := state.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return outcome{status: 128 + int(ws.Signal()), signal: unix.SignalName(ws.Signal())}
	}
	return outcome{status: ws.ExitStatus()}
}

func startFailure(path string, err error) error {
	f := &failure{err: fmt.Errorf("starting %s: %w", path, err), status: exitNotExecutable}
	switch {
	case errors.Is(err, unix.ENOEXEC):
		f.hint = "a script needs a first line such as #!/bin/sh"
	case errors.Is(err, unix.ENOENT): // the file is there: its interpreter is not
		f.hint = "its interpreter or dynamic linker does not exist; see `file " + path + "`"
	}
	return f
}

// environList puts variables in the order in which this process has them, ours behind: programs print theirs, and run in a row print the same.
func environList(environ map[string]string) []string {
	list := make([]string, 0, len(environ))
	listed := map[string]bool{}
	add := func(name string) {
		if value, set := environ[name]; set && !listed[name] {
			listed[name] = true
			list = append(list, name+"="+value)
		}
	}
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		add(name)
	}
	for _, name := range sortedNames(environ) {
		add(name)
	}
	return list
}
