package ibverbs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// limit is how long one program may take: a hundred times what the slowest takes on an idle machine. A program that passes it is not slow,
// it hangs.
const limit = 90 * time.Second

// limited makes a command end after a time, whatever it waits for. What its processes were doing then is logged, and all of them are killed:
// the ranks of a killed mpirun would go on polling, and hold the command's output open.
func limited(t *testing.T, within time.Duration, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay = 10 * time.Second
	cmd.Cancel = func() error {
		all := append([]int{cmd.Process.Pid}, descendants(cmd.Process.Pid)...)
		t.Logf("%s was not done after %v:\n%s", strings.Join(args, " "), within, doing(all))
		for _, pid := range all {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		return nil
	}
	return cmd
}

// descendants are a process's children, their children, and so on.
func descendants(of int) (all []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	children := map[int][]int{}
	for _, name := range stats {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])); len(f) > 1 {
			parent, _ := strconv.Atoi(f[1])
			children[parent] = append(children[parent], pid)
		}
	}
	for next := children[of]; len(next) > 0; {
		all = append(all, next...)
		var after []int
		for _, pid := range next {
			after = append(after, children[pid]...)
		}
		next = after
	}
	return all
}

// doing tells of each thread of some processes what it waits for, and its stack where there is a debugger.
func doing(pids []int) string {
	var b strings.Builder
	for _, pid := range pids {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		fmt.Fprintf(&b, "%d %s\n", pid, bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		for _, thread := range threads {
			fmt.Fprintf(&b, "  %s", filepath.Base(thread))
			for _, what := range []string{"comm", "wchan", "syscall"} {
				text, _ := os.ReadFile(filepath.Join(thread, what))
				fmt.Fprintf(&b, "  %s", strings.TrimSpace(string(text)))
			}
			b.WriteByte('\n')
		}
		if gdb, err := exec.LookPath("gdb"); err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			cmd := exec.CommandContext(ctx, gdb, "-nx", "-batch", "-p", strconv.Itoa(pid), "-ex", "thread apply all bt 20")
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent"}
			stack, _ := cmd.CombinedOutput()
			cancel()
			b.Write(stack)
		}
	}
	return b.String()
}

// A program that does not end is ended, with the children that hold its output, and what they were doing is told.
func TestNoProgramHangsATest(t *testing.T) {
	done := make(chan error, 1)
	cmd := limited(t, 300*time.Millisecond, "sh", "-c", `setsid sleep 300 & sleep 300`)
	go func() { _, err := cmd.CombinedOutput(); done <- err }()
	select {
	case err := <-done:
		if err == nil {
			t.Error("the program is said to have succeeded")
		}
	case <-time.After(limit):
		t.Fatal("the program's output is still being waited for")
	}
	sleeper := limited(t, limit, "sleep", "300")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	await := func() bool {
		return strings.Contains(doing([]int{sleeper.Process.Pid}), "sleep 300 \n  "+strconv.Itoa(sleeper.Process.Pid)+"  sleep")
	}
	for end := time.Now().Add(limit); !await(); { // it may not have begun to sleep
		if time.Now().After(end) {
			t.Fatalf("of a program is told\n%s", doing([]int{sleeper.Process.Pid}))
		}
	}
	sleeper.Process.Kill()
	sleeper.Wait()
}
