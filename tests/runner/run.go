package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// tally counts results.
type tally struct{ passed, failed, skipped int }

func (t *tally) add(o tally) {
	t.passed += o.passed
	t.failed += o.failed
	t.skipped += o.skipped
}

type runner struct {
	build   string // absolute
	quick   bool
	strict  bool     // a skip that allowed does not name counts as a failure
	allowed []string // patterns of path.Match over "part/test"
	started time.Time

	mu       sync.Mutex // guards out and failures
	out      io.Writer
	failures []failure
}

// failure is a test that failed, or a part that did as a whole.
type failure struct {
	what string   // "PART/TEST: why"
	said []string // the last lines that the test itself printed
}

// runAll runs the parts, at most jobs at a time; those that want to be alone come last, one by one.
func (r *runner) runAll(ctx context.Context, parts []part, jobs int) (tally, error) {
	if len(parts) == 0 {
		return tally{}, errors.New("no part to run")
	}
	if err := os.MkdirAll(filepath.Join(r.build, "test-logs"), 0o755); err != nil {
		return tally{}, fmt.Errorf("folder of the logs: %w", err)
	}
	var (
		total tally
		mu    sync.Mutex
		wg    sync.WaitGroup
	)
	slots := make(chan struct{}, max(jobs, 1))
	for _, p := range parts {
		if p.alone {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			t := r.runPart(ctx, p)
			mu.Lock()
			total.add(t)
			mu.Unlock()
			<-slots
		})
	}
	wg.Wait()
	for _, p := range parts {
		if p.alone {
			total.add(r.runPart(ctx, p))
		}
	}
	return total, nil
}

// say prints lines together, each with the time since the start.
func (r *runner) say(lines ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range lines {
		fmt.Fprintf(r.out, "[%4.0f s] %s\n", time.Since(r.started).Seconds(), l)
	}
}

// fail shows a failure with what the test printed, and keeps it for showFailures.
func (r *runner) fail(what string, said []string) {
	const lines = 40
	kept := gist(said)
	said = said[max(0, len(said)-lines):]
	r.say(append([]string{"FAIL " + what}, said...)...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, failure{what, kept})
}

// reported is how go test begins what a test says of itself.
var reported = regexp.MustCompile(`^ +[a-z0-9_]+\.go:[0-9]+: `)

// gist are the few lines that say most of why a test failed: the first that it reported with what follows, and the last.
func gist(said []string) []string {
	const first, last = 5, 3
	from := max(0, slices.IndexFunc(said, reported.MatchString))
	said = said[from:]
	if len(said) <= first+last {
		return said
	}
	return slices.Concat(said[:first], said[len(said)-last:])
}

// showFailures prints all failures once more, for places where only the end of this output is kept.
func (r *runner) showFailures() {
	for _, f := range r.failures {
		fmt.Fprintf(r.out, "FAIL %s\n", f.what)
		for _, l := range f.said {
			fmt.Fprintln(r.out, l)
		}
	}
}

// runPart runs one part to its end or limit and prints what it came to.
func (r *runner) runPart(ctx context.Context, p part) tally {
	if ctx.Err() != nil {
		r.fail(p.name+": not run, interrupted", nil)
		return tally{failed: 1}
	}
	start := time.Now()
	logName := filepath.Join(r.build, "test-logs", p.name+".log")
	t, err := r.execute(ctx, p, logName)
	if err != nil {
		t.failed++
		r.fail(fmt.Sprintf("%s: %v", p.name, err), nil)
	}
	r.say(fmt.Sprintf("%s: %d ok, %d failed, %d skipped (%.1f s)", p.name, t.passed, t.failed, t.skipped, time.Since(start).Seconds()))
	if t.failed > 0 {
		r.showTail(logName)
	}
	return t
}

// execute starts the part in a process group of its own, with a fresh scratch folder, and reads its report. The error
// is what went wrong with the part as a whole.
func (r *runner) execute(ctx context.Context, p part, logName string) (tally, error) {
	var t tally
	tmp := filepath.Join(r.build, "test-tmp", p.name)
	if err := os.RemoveAll(tmp); err != nil {
		return t, fmt.Errorf("scratch folder: %w", err)
	}
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return t, fmt.Errorf("scratch folder: %w", err)
	}
	log, err := os.Create(logName)
	if err != nil {
		return t, fmt.Errorf("log: %w", err)
	}
	defer log.Close()

	partCtx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	cmd := exec.CommandContext(partCtx, p.path)
	cmd.Env = append(os.Environ(), "B="+r.build, "TMP="+tmp)
	if r.quick {
		cmd.Env = append(cmd.Env, "SIGMATRACE_TEST_QUICK=1")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	pr, pw, err := os.Pipe()
	if err != nil {
		return t, fmt.Errorf("pipe: %w", err)
	}
	cmd.Stdout, cmd.Stderr = pw, log
	if err := cmd.Start(); err != nil {
		pr.Close()
		pw.Close()
		return t, err
	}
	pw.Close()
	read := make(chan tally)
	go func() { read <- r.readReport(p, pr, log) }()
	waitErr := cmd.Wait()
	// What a part left running is of no use to anyone, and would keep the pipe open.
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	_ = pr.SetReadDeadline(time.Now().Add(30 * time.Second))
	t = <-read
	pr.Close()
	switch {
	case partCtx.Err() == context.DeadlineExceeded:
		return t, fmt.Errorf("time limit of %s reached", p.limit)
	case ctx.Err() != nil:
		return t, errors.New("interrupted")
	case waitErr != nil && t.failed == 0:
		return t, fmt.Errorf("%w, with no test reported as failed", waitErr)
	case waitErr == nil && t == (tally{}):
		return t, errors.New("reported no test")
	}
	return t, nil
}

// readReport copies the part's output to its log and counts the result lines; failures and skips are shown at once.
// Indented lines are what the test of the next result line printed.
func (r *runner) readReport(p part, in io.Reader, log io.Writer) tally {
	var t tally
	var said []string
	br := bufio.NewReader(in)
	for {
		line, err := br.ReadString('\n')
		if line != "" {
			fmt.Fprint(log, line)
			line = strings.TrimRight(line, "\n")
			if strings.HasPrefix(line, "    ") {
				said = append(said, line)
			} else {
				r.count(p, line, said, &t)
				said = nil
			}
		}
		if err != nil {
			return t
		}
	}
}

func (r *runner) count(p part, line string, said []string, t *tally) {
	word, rest, _ := strings.Cut(line, " ")
	name, _, _ := strings.Cut(rest, ": ")
	if name == "" {
		return
	}
	switch word {
	case "ok":
		t.passed++
	case "FAIL":
		t.failed++
		r.fail(p.name+"/"+rest, said)
	case "SKIP":
		if r.quick && strings.HasSuffix(rest, ": not part of the quick run") {
			return // left out by choice, not for want of something
		}
		if r.strict && !r.mayBeSkipped(p.name+"/"+name) {
			t.failed++
			r.fail(p.name+"/"+rest+" (this skip is not on the list of allowed ones)", nil)
			return
		}
		t.skipped++
		r.say("SKIP " + p.name + "/" + rest)
	}
}

func (r *runner) mayBeSkipped(name string) bool {
	for _, pattern := range r.allowed {
		if ok, err := path.Match(pattern, name); err == nil && ok {
			return true
		}
	}
	return false
}

// showTail prints the end of a failed part's log, for places where only this output is kept.
func (r *runner) showTail(logName string) {
	const lines = 40
	data, err := os.ReadFile(logName)
	if err != nil {
		r.say(fmt.Sprintf("cannot show the log: %v", err))
		return
	}
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, "    the end of %s:\n", logName)
	for _, l := range all[max(0, len(all)-lines):] {
		fmt.Fprintf(r.out, "    | %s\n", l)
	}
}
