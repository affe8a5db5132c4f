package ucx

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/tests/sources"
)

func compile(t *testing.T, cc string, args ...string) {
	t.Helper()
	args = append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g"}, args...)
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// edgeOf is a program of scenarios and the library that it stands in for.
type edgeOf struct {
	source, fake, library string
	scenarios             []string
}

var edges = map[string]edgeOf{
	"ucp": {"testdata/edge.c", "testdata/fake.c", "libucp.so.0",
		[]string{"forms", "early", "nested", "full", "fork", "threads", "looked_up", "direct", "sizes", "freed", "handles"}},
	"uct": {"testdata/uct_edge.c", "testdata/fake_uct.c", "libuct.so.0",
		[]string{"forms", "early", "shared", "full", "closed", "nested", "general", "reopened", "many", "unknown", "fork", "threads"}},
}

// client builds the program with the library. libs go before that library.
func (e edgeOf) client(t *testing.T, gcc string, flags []string, libs ...string) string {
	t.Helper()
	lib := filepath.Join(t.TempDir(), e.library)
	compile(t, gcc, append(flags, "-O2", "-shared", "-fPIC", "-Wl,-soname,"+e.library, "-o", lib, e.fake, "-lpthread")...)
	client := filepath.Dir(lib) + "/edge"
	args := append(append(flags, "-O1", "-o", client, e.source), libs...)
	compile(t, gcc, append(args, lib, "-Wl,-rpath,"+filepath.Dir(lib), "-ldl", "-lpthread")...)
	return client
}

// edge runs a scenario of a client, the last word of its command line, in full mode and holds the captures to what it printed.
func edge(t *testing.T, s *session, env []string, command ...string) []*process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c := s.command(ctx, env, command[0], command[1:]...)
	out, errors := &bytes.Buffer{}, &bytes.Buffer{}
	c.Stdout, c.Stderr = out, errors
	if err := c.Run(); err != nil {
		t.Fatalf("%v: %s", err, errors)
	}
	got := map[string]uint64{}
	all := readRun(t, s.dir+"/capture")
	for _, p := range all {
		p.check(t)
		got["processes"]++
		for op, c := range p.totals {
			got[op] += c.Count
			got[op+".bytes"] += c.Bytes
		}
		for _, r := range p.requests {
			got[[]string{"done", "pending", "implicit", "untracked"}[r.status]]++
		}
		for _, c := range p.completions {
			got["completions"]++
			if r := p.byID[c.id]; r != nil && r.thread == c.thread && c.sequence < r.sequence {
				got["early"]++
			}
			got["received"] += c.bytes
			if c.err != 0 {
				got["failed"]++
			}
		}
		p.uct.tell(got)
		for _, e := range p.endpoints {
			got["endpoints"]++
			got["source_"+strconv.FormatUint(e.source, 10)]++
			if e.ended {
				got["ended"]++
			}
		}
	}
	got["outstanding"] = got["pending"] - got["completions"]
	lines := 0
	for sc := bufio.NewScanner(out); sc.Scan(); lines++ {
		at := max(strings.LastIndexByte(sc.Text(), ' '), 0)
		name, value := sc.Text()[:at], strings.TrimPrefix(sc.Text()[at:], " ")
		want, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			t.Fatalf("%q: %v", sc.Text(), err)
		}
		if got[name] != want {
			t.Errorf("%s: %d, want %d", name, got[name], want)
		}
	}
	if lines == 0 {
		t.Errorf("nothing expected")
	}
	return all
}

func TestEdges(t *testing.T) {
	build(t)
	for level, e := range edges {
		client := e.client(t, "gcc", nil)
		for _, scenario := range e.scenarios {
			t.Run(level+"-"+scenario, func(t *testing.T) { edge(t, newSession(t, "full", false), nil, client, scenario) })
		}
	}
}

// What the application sees is the same without us.
func TestEdgesWithoutRecorder(t *testing.T) {
	for level, e := range edges {
		client := e.client(t, "gcc", nil)
		for _, scenario := range e.scenarios {
			if scenario == "direct" || scenario == "freed" { // what completes there, completes through us
				continue
			}
			t.Run(level+"-"+scenario, func(t *testing.T) {
				if out, err := exec.Command(client, scenario).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			})
		}
	}
}

// The provider, the recorder and the program under each sanitizer.
func TestEdgesUnderSanitizers(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	build(t)
	for name, flags := range map[string][]string{
		"address": {"-fsanitize=address,undefined", "-fno-sanitize-recover=all"},
		"thread":  {"-fsanitize=thread"},
	} {
		t.Run(name, func(t *testing.T) {
			lib := filepath.Join(t.TempDir(), "provider-ucx.so")
			args := append([]string{"-O1", "-fPIC", "-shared", "-ftls-model=initial-exec", "-Wl,-Bsymbolic", "-o", lib}, flags...)
			args = slices.Concat(args, sources.Recorder(t), sources.Provider(t, "ucx"), []string{"-lpthread", "-ldl"})
			compile(t, "gcc", args...)
			suppressions, err := filepath.Abs("testdata/tsan.supp")
			if err != nil {
				t.Fatal(err)
			}
			for level, e := range edges {
				client := e.client(t, "gcc", flags, lib, "-Wl,-rpath,"+filepath.Dir(lib))
				for _, scenario := range e.scenarios {
					if scenario == "looked_up" || (name == "thread" && scenario == "fork") {
						continue // the sanitizer's own dlsym is used; the thread sanitizer does not follow forks
					}
					t.Run(level+"-"+scenario, func(t *testing.T) {
						s := newSession(t, "full", false)
						s.preload = nil
						edge(t, s, []string{"TSAN_OPTIONS=halt_on_error=1 suppressions=" + suppressions, "ASAN_OPTIONS=detect_leaks=0"}, client, scenario)
					})
				}
			}
		})
	}
}

// Trampolines, thread-local storage and the calling convention of another machine, under user-mode emulation.
func TestEdgesOnAarch64(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	build(t)
	for _, tool := range []string{"aarch64-linux-gnu-gcc", "qemu-aarch64"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%s is not installed: run scripts/deps.sh test", tool)
		}
	}
	out, err := exec.Command("make", "-C", "../..", "aarch64").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	recorder, err := filepath.Abs("../../build/aarch64/libsigmatrace.so")
	if err != nil {
		t.Fatal(err)
	}
	lib := filepath.Join(t.TempDir(), "provider-ucx.so")
	headers := []string{"-idirafter", "/usr/include"} // those of UCX are the same for all machines
	args := append(headers, "-O2", "-fPIC", "-fvisibility=hidden", "-shared", "-ftls-model=initial-exec", "-Wl,-Bsymbolic", "-o", lib)
	compile(t, "aarch64-linux-gnu-gcc", append(append(args, sources.Provider(t, "ucx")...), recorder, "-Wl,-rpath,"+filepath.Dir(recorder), "-ldl", "-lpthread")...)
	for level, e := range edges {
		client := e.client(t, "aarch64-linux-gnu-gcc", headers)
		for _, scenario := range e.scenarios {
			t.Run(level+"-"+scenario, func(t *testing.T) {
				s := newSession(t, "full", false)
				s.preload = nil
				edge(t, s, nil, "qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-E", "LD_PRELOAD="+recorder+":"+lib, client, scenario)
			})
		}
	}
}

// What is hooked is exported, and nothing else.
func TestExports(t *testing.T) {
	out, err := exec.Command("nm", "-D", "--defined-only", build(t)+"/lib/sigmatrace/provider-ucx.so").Output()
	if err != nil {
		t.Fatal(err)
	}
	exported := map[string]bool{}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		exported[strings.Fields(line)[2]] = true
	}
	text, err := os.ReadFile("../../preload/ucx.h")
	if err != nil {
		t.Fatal(err)
	}
	hooks := 0
	for _, part := range strings.Split(string(text), "X(uc")[1:] {
		name, _, _ := strings.Cut(part, ")")
		hooks++
		if !exported["uc"+name] {
			t.Errorf("uc%s is not exported", name)
		}
	}
	if hooks != len(exported) || hooks < 40 {
		t.Errorf("%d hooks, %d exported symbols", hooks, len(exported))
	}
	out, err = exec.Command("objdump", "-p", build(t)+"/lib/sigmatrace/provider-ucx.so").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(out), "\n") {
		f := strings.Fields(line)
		if len(f) == 2 && f[0] == "NEEDED" && f[1] != "libsigmatrace.so" && f[1] != "libc.so.6" {
			t.Errorf("needs %s", f[1])
		}
	}
}
