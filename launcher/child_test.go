package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// launched is a running `sigmatrace launch -- signalled` and the lines that come out of it.
type launched struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string
	dir   string // the run directory
}

// start launches the program that names its signals, through wrapper if there is one. change may alter how it is started.
func start(t *testing.T, change func(*exec.Cmd), wrapper ...string) *launched {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	args := append(wrapper, "sigmatrace", "launch", "--no-merge", "-o", dir, "--", "signalled")
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "SIGMATRACE_LIBDIR="+libs(t))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal, and a process group of its own
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = in
	if change != nil {
		change(cmd)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	l := &launched{t: t, cmd: cmd, lines: make(chan string, 64), dir: dir}
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			l.lines <- s.Text()
		}
		close(l.lines)
	}()
	t.Cleanup(func() {
		unix.Kill(-cmd.Process.Pid, unix.SIGKILL) //nolint:errcheck // gone already, where the test went well
		out.Close()
	})
	return l
}

func (l *launched) expect(want string) {
	l.t.Helper()
	select {
	case line := <-l.lines:
		if line != want {
			l.t.Fatalf("got %q, want %q", line, want)
		}
	case <-time.After(time.Minute):
		l.t.Fatalf("nothing came, want %q", want)
	}
}

// quiet checks that nothing comes for a while: a doubled signal would.
func (l *launched) quiet() {
	l.t.Helper()
	select {
	case line := <-l.lines:
		l.t.Fatalf("got %q, want nothing", line)
	case <-time.After(200 * time.Millisecond):
	}
}

func (l *launched) signal(s unix.Signal) {
	l.t.Helper()
	if err := unix.Kill(l.cmd.Process.Pid, s); err != nil {
		l.t.Fatal(err)
	}
}

// end waits for the launcher, which must exit with status.
func (l *launched) end(status int) {
	l.t.Helper()
	l.cmd.Wait() //nolint:errcheck // the status is looked at
	if got := l.cmd.ProcessState.ExitCode(); got != status {
		l.t.Errorf("exit status %d, want %d", got, status)
	}
}

// state returns the letter of /proc/PID/stat: R, S, T (stopped).
func (l *launched) state() string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", l.cmd.Process.Pid))
	if err != nil {
		l.t.Fatal(err)
	}
	return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))[0]
}

func (l *launched) waitState(want string) {
	l.t.Helper()
	for range 6000 {
		if l.state() == want {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	l.t.Fatalf("the launcher is in state %s, want %s", l.state(), want)
}

func TestSignalsToTheLauncherReachTheCommandOnce(t *testing.T) {
	l := start(t, nil)
	l.expect("ready")
	for _, s := range []unix.Signal{unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH} {
		l.signal(s)
		l.expect(unix.SignalName(s))
	}
	l.quiet()
	l.signal(unix.SIGTERM)
	l.expect("SIGTERM")
	l.end(9)
	text, err := os.ReadFile(filepath.Join(l.dir, "manifest.json"))
	if err != nil || !strings.Contains(string(text), `"status": 9`) {
		t.Errorf("%v: the manifest does not have the status:\n%s", err, text)
	}
}

func TestStopAndContinue(t *testing.T) {
	l := start(t, nil)
	l.expect("ready")
	l.signal(unix.SIGTSTP)
	l.expect("SIGTSTP")
	l.waitState("T")
	l.signal(unix.SIGCONT)
	l.expect("SIGCONT")
	l.waitState("S")
	l.signal(unix.SIGTERM)
	l.expect("SIGTERM")
	l.end(9)
}

// nohup ignores SIGHUP; the command must find it ignored, and the launcher must not die of it.
func TestNohupStays(t *testing.T) {
	l := start(t, nil, "nohup")
	l.expect("SIGHUP is ignored")
	l.expect("ready")
	l.signal(unix.SIGHUP)
	l.quiet()
	l.signal(unix.SIGTERM)
	l.expect("SIGTERM")
	l.end(9)
}

// On a terminal the keys reach the whole foreground group: the command must get each signal once.
func TestTerminalKeysAreNotDoubled(t *testing.T) {
	keyboard, tty := terminal(t)
	l := start(t, func(cmd *exec.Cmd) {
		cmd.Stdin = tty
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	})
	tty.Close()
	l.expect("ready")
	for key, name := range map[byte]string{'C' - '@': "SIGINT", '\\' - '@': "SIGQUIT"} {
		if _, err := keyboard.Write([]byte{key}); err != nil {
			t.Fatal(err)
		}
		l.expect(name)
		l.quiet()
	}
	if err := unix.IoctlSetWinsize(int(keyboard.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 7, Col: 7}); err != nil {
		t.Fatal(err)
	}
	l.expect("SIGWINCH")
	l.quiet()
	l.signal(unix.SIGUSR1) // what is no key is passed on there too
	l.expect("SIGUSR1")
	l.signal(unix.SIGTERM)
	l.expect("SIGTERM")
	l.end(9)
}

// terminal opens a pseudo terminal: what is written to keyboard is typed on tty.
func terminal(t *testing.T) (keyboard, tty *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals: %v", err)
	}
	t.Cleanup(func() { keyboard.Close() })
	if err := unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return keyboard, tty
}

func TestInheritedDescriptorsReachTheCommand(t *testing.T) {
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sigmatrace", "launch", "--no-merge", "-o", filepath.Join(t.TempDir(), "run"), "--", "sh", "-c", "echo three >&3")
	cmd.Env = append(os.Environ(), "SIGMATRACE_LIBDIR="+libs(t))
	cmd.ExtraFiles = []*os.File{in}
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "three\n" {
		t.Errorf("got %q, %v", line, err)
	}
}
