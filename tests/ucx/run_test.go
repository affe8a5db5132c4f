package ucx

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/tests/objects"
)

// build is the build folder.
func build(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../build")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir + "/lib/sigmatrace/provider-ucx.so"); err != nil {
		t.Skipf("nothing built to test: run make tests (%v)", err)
	}
	return dir
}

// session is a run directory with the environment that records into it.
type session struct {
	dir     string
	env     []string
	preload []string
	uct     bool // the level of UCT is recorded
}

// newSession records in the given mode, with the counting preload beside it where counting is set.
func newSession(t *testing.T, mode string, counting bool) *session {
	t.Helper()
	b := build(t)
	s := &session{dir: t.TempDir(), preload: objects.List(b+"/lib/sigmatrace", "ucx")}
	if err := os.Mkdir(s.dir+"/capture", 0o700); err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("sigmatrace.profile=1\nname=%s\nproviders=ucx\nmode=%s\ncapture.directory=%s/capture\n", mode, mode, s.dir)
	if err := os.WriteFile(s.dir+"/config", []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	s.uct = mode == "full"
	if counting {
		s.preload = append(s.preload, b+"/tests/count-ucp.so", b+"/tests/count-uct.so")
	}
	s.env = []string{"SIGMATRACE_CONFIG=" + s.dir + "/config", "COUNT_OUT=" + s.dir + "/count", "UCX_NET_DEVICES=lo"}
	return s
}

// command runs under the recorder; its output goes to the test's log if it fails.
func (s *session) command(ctx context.Context, env []string, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, name, args...)
	c.Env = append(append(os.Environ(), s.env...), env...)
	c.Env = append(c.Env, "LD_PRELOAD="+strings.Join(s.preload, ":"))
	out := &bytes.Buffer{}
	c.Stdout, c.Stderr = out, out
	c.WaitDelay = 10 * time.Second
	return c
}

func finish(t *testing.T, c *exec.Cmd, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v\n%s", c, err, c.Stdout)
	}
}

// counted sums what the counting preloads of a layer saw in all processes.
func (s *session) counted(t *testing.T, layer string) map[string]total {
	t.Helper()
	sum := map[string]total{}
	files, err := filepath.Glob(s.dir + "/count." + layer + ".*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var counts map[string]struct{ Count, Bytes uint64 }
		if err := json.Unmarshal(text, &counts); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for op, c := range counts {
			sum[op] = total{sum[op].Count + c.Count, sum[op].Bytes + c.Bytes}
		}
	}
	delete(sum, "stream_recv") // no operation of the catalogue
	return sum
}

// compare holds the captures to the counting preload, in every mode, and to themselves in full mode.
func (s *session) compare(t *testing.T, mode string) []*process {
	t.Helper()
	all := readRun(t, s.dir+"/capture")
	sum, events := map[string]total{}, map[string]total{}
	for _, p := range all {
		for op, c := range p.totals {
			sum[op] = total{sum[op].Count + c.Count, sum[op].Bytes + c.Bytes}
		}
		for op, c := range p.recorded {
			events[op] = total{events[op].Count + c.Count, events[op].Bytes + c.Bytes}
		}
		if mode == "full" {
			if n := p.check(t); n != 0 {
				t.Errorf("%d requests without completion in pid %d", n, p.header.Pid)
			}
		}
	}
	want := s.counted(t, "ucp")
	if len(want) == 0 {
		t.Error("the counting preload saw nothing")
	}
	if fmt.Sprint(sum) != fmt.Sprint(want) {
		t.Errorf("tables: %v, counting preload: %v", sum, want)
	}
	if mode == "aggregate" {
		want = map[string]total{}
	}
	if fmt.Sprint(events) != fmt.Sprint(want) {
		t.Errorf("events: %v, expected: %v", events, want)
	}
	s.compareUCT(t, mode, all)
	return all
}

// listening waits for a server without connecting to it: ucx_perftest takes the first connection for its client.
func listening(t *testing.T, port int) {
	t.Helper()
	for range 1200 {
		text, err := os.ReadFile("/proc/net/tcp")
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), fmt.Sprintf(":%04X 00000000:0000 0A", port)) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("nothing listens on port %d", port)
}

func asExit(err error, exit **exec.ExitError) bool { return errors.As(err, exit) }
