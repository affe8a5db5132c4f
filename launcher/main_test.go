package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"golang.org/x/sys/unix"
)

// The test binary is these commands too, found in PATH: sigmatrace as built here, one with a merger whose answer a variable gives,
// and a program that says which signals it gets.
func TestMain(m *testing.M) {
	testscript.Main(tidy{m}, map[string]func(){
		"sigmatrace":         func() { os.Exit(run(os.Args)) },
		"sigmatrace-merging": func() { merger = answeringMerger; os.Exit(run(os.Args)) },
		"signalled":          signalled,
	})
}

// tidy removes what all tests share when they are through.
type tidy struct{ *testing.M }

func (m tidy) Run() int {
	status := m.M.Run()
	if dir, err := standIns(); err == nil {
		os.RemoveAll(dir)
	}
	return status
}

type answer string

func (a answer) Complete() bool      { return a == "complete" }
func (a answer) Summary(w io.Writer) { fmt.Fprintf(w, "summary: %s\n", string(a)) }

// answeringMerger stands in for the merge package: it checks what it is given, writes a trace, and answers what MERGE says.
func answeringMerger(ctx context.Context, dir *rundir.Dir, o mergeOptions) (mergeInfo, error) {
	m, err := dir.ReadManifest()
	if err != nil {
		return nil, err
	}
	if m.Run.End == nil || m.Run.Status == nil {
		return nil, errors.New("the manifest does not say that the command has ended")
	}
	if os.Getenv("MERGE") == "fails" {
		return nil, errors.New("no captures")
	}
	if os.Getenv("MERGE") == "slow" {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	text := fmt.Sprintf("memory %d, exports %q\n", o.Memory, o.Exports)
	return answer(os.Getenv("MERGE")), os.WriteFile(dir.Trace(), []byte(text), 0o600)
}

// signalled prints the name of each signal that it gets, on a line; SIGTERM and SIGALRM end it with status 9.
func signalled() {
	signals := make(chan os.Signal, 16)
	if signal.Ignored(unix.SIGHUP) {
		fmt.Println("SIGHUP is ignored")
	} else {
		signal.Notify(signals, unix.SIGHUP) // which would end the ignoring
	}
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGTSTP, unix.SIGCONT)
	fmt.Println("ready")
	for {
		select {
		case s := <-signals:
			fmt.Println(unix.SignalName(s.(unix.Signal)))
			if s == unix.SIGTERM {
				os.Exit(9)
			}
		case <-time.After(3 * time.Minute): // longer than tests wait
			os.Exit(9) // the test died
		}
	}
}

// standIns is a directory with empty libraries of the names that launch preloads.
var standIns = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sigmatrace-libs")
	if err != nil {
		return "", err
	}
	source := filepath.Join(dir, "empty.c")
	if err := os.WriteFile(source, []byte("int sigmatrace_stand_in;\n"), 0o666); err != nil {
		return "", err
	}
	for _, lib := range []string{"libsigmatrace", "provider-ucx", "provider-libfabric", "provider-ibverbs", "provider-mlx5dv"} {
		if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", filepath.Join(dir, lib+".so"), source).CombinedOutput(); err != nil {
			return "", fmt.Errorf("gcc: %w: %s", err, out)
		}
	}
	return dir, nil
})

func libs(t testing.TB) string {
	t.Helper()
	dir, err := standIns()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestScripts(t *testing.T) {
	dir := libs(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("SIGMATRACE_LIBDIR", dir)
			e.Setenv("HOME", filepath.Join(e.WorkDir, "home"))
			e.Setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
			e.Setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
			// A child of another script that is not executed yet may still have files open for writing that we have just unpacked; the
			// kernel does not execute those. Another process makes them anew.
			again := exec.Command("sh", "-c", `grep -rl '^#!' "$0" | while read -r f; do cp -p "$f" "$f.again" && mv "$f.again" "$f" || exit 1; done`, e.WorkDir)
			if out, err := again.CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		},
		Cmds:      map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
		Condition: condition,
	})
}

// exits STATUS COMMAND... runs the command, which must exit with the status.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS COMMAND...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// condition knows root; the package has exec:COMMAND itself.
func condition(name string) (bool, error) {
	if name == "root" {
		return os.Getuid() == 0, nil
	}
	return false, fmt.Errorf("unknown condition %q", name)
}
