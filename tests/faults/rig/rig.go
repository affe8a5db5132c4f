// Package rig runs the fault client under sigmatrace launch and without it, with faults between its commands, and reads what came of it.
package rig

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/tests/needs"
)

// limit is for one command, on a machine that has much else to do.
const limit = 2 * time.Minute

// Spec says how the client is run.
type Spec struct {
	Layer   string   // verbs (on the software HCA) or ucp
	Mode    string   // "" is full
	Sets    []string // settings of the profile, KEY=VALUE
	Options []string // more of sigmatrace launch
	Env     []string
	Shell   string // how the client is started: a line of sh that ends in "$@"; "" is directly
	As      uint32 // user to run as; 0: this one
}

// BackEnds are the settings of both. With the mapped one, records then go to the disk at once.
var BackEnds = map[string]string{"mapped": "record.back_end=mapped", "written": "record.back_end=written"}

// Run is one run of the client.
type Run struct {
	t    testing.TB
	spec Spec
	Dir  string // scratch folder
	Path string // run directory
	// Elsewhere is the working directory, where it is not Dir.
	Elsewhere string
	// Generated leaves the name of the run directory to the command: Path is not it.
	Generated bool
	cmd       *exec.Cmd
	in        io.WriteCloser
	out       *bufio.Reader
	errs      bytes.Buffer
	said      []string
	status    int
}

// New prepares a run with its run directory in dir, or in a folder of the test's own where dir is "".
func New(t testing.TB, s Spec, dir string) *Run {
	t.Helper()
	if dir == "" {
		dir = t.TempDir()
	}
	if s.Mode == "" {
		s.Mode = "full"
	}
	return &Run{t: t, spec: s, Dir: dir, Path: filepath.Join(dir, "run")}
}

// argv is the client's command line.
func (r *Run) argv() []string {
	line := []string{needs.Built(r.t, "tests/fault-client"), r.spec.Layer}
	if r.spec.Shell != "" {
		line = append([]string{"sh", "-c", r.spec.Shell, "sh"}, line...)
	}
	return line
}

func (r *Run) begin(traced bool) {
	r.t.Helper()
	line := r.argv()
	if traced {
		provider := map[string]string{"ucp": "ucx", "verbs": "ibverbs"}[r.spec.Layer]
		launch := []string{needs.Built(r.t, "bin/sigmatrace"), "launch", "-p", r.spec.Mode, "--providers", provider, "--no-merge"}
		if !r.Generated {
			launch = append(launch, "-o", r.Path)
		}
		if r.spec.Layer == "ucp" { // what the program knows of: its calls of UCP, not what they lead to
			launch = append(launch, "--set", "ucx.level=ucp")
		}
		for _, s := range r.spec.Sets {
			launch = append(launch, "--set", s)
			if s == BackEnds["mapped"] {
				launch = append(launch, "--set", "record.place=disk")
			}
		}
		line = slices.Concat(launch, r.spec.Options, []string{"--"}, line)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	r.cmd = exec.CommandContext(ctx, line[0], line[1:]...)
	r.cmd.Cancel = func() error { return r.cmd.Process.Signal(syscall.SIGTERM) } // it takes its child along
	r.cmd.WaitDelay = 10 * time.Second
	r.cmd.Env = append(os.Environ(), "UCX_TLS=self", "LD_LIBRARY_PATH="+filepath.Dir(needs.Built(r.t, "softhca/libibverbs.so.1")),
		"SOFTHCA_SHM="+filepath.Join(r.t.TempDir(), "hca"))
	r.cmd.Env = append(r.cmd.Env, r.spec.Env...)
	r.cmd.Dir = r.Dir
	if r.Elsewhere != "" {
		r.cmd.Dir = r.Elsewhere
	}
	r.cmd.Stderr = &r.errs
	if r.spec.As != 0 {
		r.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: r.spec.As, Gid: r.spec.As}}
		r.cmd.Env = append(r.cmd.Env, "SOFTHCA_SHM="+filepath.Join(r.Dir, "hca"))
	}
	in, err := r.cmd.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	r.in, r.out = in, bufio.NewReader(out)
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(cancel)
}

// Step is a command of the client, or a fault.
type Step struct {
	Do    string
	Fault func(*Run)
}

// Do is a step of the client.
func Do(format string, args ...any) Step { return Step{Do: fmt.Sprintf(format, args...)} }

// Fault is a step of the test, left out of the run without us.
func Fault(f func(*Run)) Step { return Step{Fault: f} }

// Start starts the client under sigmatrace launch.
func (r *Run) Start() *Run {
	r.t.Helper()
	r.begin(true)
	return r
}

// Refused waits until the client is there or the run has ended without it, and tells the latter.
func (r *Run) Refused() bool {
	r.t.Helper()
	r.Send("total")
	answer, err := r.out.ReadString('\n')
	if err == nil {
		r.said = append(r.said, answer)
		return false
	}
	r.status = r.wait()
	return true
}

// StartPlain starts the client without us.
func (r *Run) StartPlain() *Run {
	r.t.Helper()
	r.begin(false)
	return r
}

// Do has the client do something and returns its answer.
func (r *Run) Do(format string, args ...any) string {
	r.t.Helper()
	fmt.Fprintf(r.in, format+"\n", args...)
	answer, err := r.out.ReadString('\n')
	if err != nil {
		r.in.Close()
		r.status = r.wait()
		r.t.Fatalf("%q: no answer (%v), the program ended with %d\n%s", fmt.Sprintf(format, args...), err, r.status, r.errs.String())
	}
	r.said = append(r.said, answer)
	return answer
}

// Send has the client do something that it may not survive.
func (r *Run) Send(format string, args ...any) { fmt.Fprintf(r.in, format+"\n", args...) }

// End ends the client's input and returns the status of the run, 128+n for a signal.
func (r *Run) End() int {
	r.t.Helper()
	r.in.Close()
	rest, err := io.ReadAll(r.out)
	if err != nil {
		r.t.Fatal(err)
	}
	r.said = append(r.said, string(rest))
	r.status = r.wait()
	return r.status
}

// KillLauncher kills sigmatrace launch by SIGKILL and leaves the client alone. End then says nothing of the client's status.
func (r *Run) KillLauncher() {
	r.t.Helper()
	if err := r.cmd.Process.Kill(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *Run) wait() int {
	err := r.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.t.Fatalf("%s: %v", strings.Join(r.cmd.Args, " "), err)
	}
	if ws := r.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return r.cmd.ProcessState.ExitCode()
}

// Said is what the client has answered.
func (r *Run) Said() string { return strings.Join(r.said, "") }

// Errors is what came on standard error.
func (r *Run) Errors() string { return r.errs.String() }

// Both runs the steps under sigmatrace launch, faults and all, and again without us and without the faults, and holds that the program
// printed the same and ended with the same status.
func (r *Run) Both(steps ...Step) *Run {
	r.t.Helper()
	r.Start()
	for _, s := range steps {
		if s.Fault != nil {
			s.Fault(r)
		} else {
			r.Do("%s", s.Do)
		}
	}
	r.End()
	r.Alike(steps...)
	return r
}

// Alike holds that the program, run without us, prints and ends as it did.
func (r *Run) Alike(steps ...Step) {
	r.t.Helper()
	plain := New(r.t, r.spec, r.t.TempDir())
	plain.spec.As = 0
	plain.begin(false)
	for _, s := range steps {
		if s.Fault == nil {
			plain.Do("%s", s.Do)
		}
	}
	plain.End()
	if r.status != plain.status || r.Said() != plain.Said() {
		r.t.Errorf("status %d with us and %d without; output\n%swithout us\n%s\n%s", r.status, plain.status, r.Said(), plain.Said(), r.errs.String())
	}
	for line := range strings.Lines(r.errs.String()) {
		if !strings.HasPrefix(line, "sigmatrace: ") {
			r.t.Errorf("on standard error: %s", line)
		}
	}
}

// Tally is the program's own: what it said last.
func (r *Run) Tally() (writes, bytes, completions, regions uint64) {
	r.t.Helper()
	lines := strings.Split(strings.TrimSpace(r.Said()), "\n")
	last := lines[len(lines)-1]
	if _, err := fmt.Sscanf(last, "%d writes of %d bytes, %d completions, %d regions", &writes, &bytes, &completions, &regions); err != nil {
		r.t.Fatalf("%v in %q", err, last)
	}
	return writes, bytes, completions, regions
}

// Pid is that of the client.
func (r *Run) Pid() int {
	r.t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, pid := range append(descendants(r.cmd.Process.Pid), r.cmd.Process.Pid) {
			if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && strings.TrimSpace(string(name)) == "fault-client" {
				return pid
			}
		}
	}
	r.t.Fatal("there is no fault-client")
	return 0
}

func descendants(parent int) (all []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	for _, l := range lists {
		text, _ := os.ReadFile(l)
		for _, f := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(f); err == nil {
				all = append(append(all, pid), descendants(pid)...)
			}
		}
	}
	return all
}

// Memory is a line of /proc/PID/status, in KiB: VmRSS, VmHWM, RssAnon ...
func (r *Run) Memory(name string) uint64 {
	r.t.Helper()
	return memoryOf(r.t, r.Pid(), name)
}

func memoryOf(t testing.TB, pid int, name string) uint64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name+":" {
			n, err := strconv.ParseUint(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s of process %d", name, pid)
	return 0
}

// Captures are the capture files of a run.
func (r *Run) Captures() []string {
	names, _ := filepath.Glob(filepath.Join(r.Path, "capture/*/*.capture"))
	return names
}

// Sigmatrace runs a command of ours to its end.
func Sigmatrace(t testing.TB, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, needs.Built(t, "bin/sigmatrace"), args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}
