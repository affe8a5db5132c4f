package ucx

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// edgeClient builds testdata/edge.c with the library that stands in for libucp, and returns the program and the library's folder. libs go
// before that library.
func edgeClient(t *testing.T, flags []string, libs ...string) (client, dir string) {
	t.Helper()
	dir = t.TempDir()
	cc := func(args ...string) {
		args = append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g"}, args...)
		if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	cc(append(flags, "-O2", "-shared", "-fPIC", "-Wl,-soname,libucp.so.0", "-o", dir+"/libucp.so.0", "testdata/fake.c", "-lpthread")...)
	client = dir + "/edge"
	args := append(flags, "-O1", "-o", client, "testdata/edge.c")
	args = append(args, libs...)
	cc(append(args, dir+"/libucp.so.0", "-Wl,-rpath,"+dir, "-ldl", "-lpthread")...)
	return client, dir
}

var scenarios = []string{"forms", "early", "nested", "full", "fork", "threads", "looked_up", "direct", "sizes", "handles"}

// edge runs a scenario in full mode and holds the captures to what the program printed.
func edge(t *testing.T, s *session, client, scenario string, env ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c := s.command(ctx, env, client, scenario)
	out, errors := &bytes.Buffer{}, &bytes.Buffer{}
	c.Stdout, c.Stderr = out, errors
	if err := c.Run(); err != nil {
		t.Fatalf("%v: %s", err, errors)
	}
	got := map[string]uint64{}
	for _, p := range readRun(t, s.dir+"/capture") {
		p.check(t)
		for op, c := range p.totals {
			got[op] += c.Count
			got[op+".bytes"] += c.Bytes
		}
		for _, r := range p.requests {
			got[[]string{"done", "pending", "implicit", "untracked"}[r.status]]++
		}
		for _, c := range p.completions {
			got["completions"]++
			got["received"] += c.bytes
		}
		for _, e := range p.endpoints {
			got["endpoints"]++
			if e.ended {
				got["ended"]++
			}
		}
	}
	lines := 0
	for sc := bufio.NewScanner(out); sc.Scan(); lines++ {
		name, value, _ := strings.Cut(sc.Text(), " ")
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
}

func TestEdges(t *testing.T) {
	build(t)
	client, _ := edgeClient(t, nil)
	for _, scenario := range scenarios {
		t.Run(scenario, func(t *testing.T) { edge(t, newSession(t, "full", false), client, scenario) })
	}
}

// What the application sees is the same without us.
func TestEdgesWithoutRecorder(t *testing.T) {
	client, _ := edgeClient(t, nil)
	for _, scenario := range scenarios {
		if scenario == "direct" || scenario == "full" { // the first learns of its completion only through us
			continue
		}
		t.Run(scenario, func(t *testing.T) {
			if out, err := exec.Command(client, scenario).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		})
	}
}

// The provider, the recorder and the program under each sanitizer.
func TestEdgesUnderSanitizers(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIP sanitizers: not part of the quick run")
	}
	build(t)
	for name, flags := range map[string][]string{
		"address": {"-fsanitize=address,undefined", "-fno-sanitize-recover=all"},
		"thread":  {"-fsanitize=thread"},
	} {
		t.Run(name, func(t *testing.T) {
			lib := filepath.Join(t.TempDir(), "provider-ucx.so")
			args := append([]string{"-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-ftls-model=initial-exec", "-Wl,-Bsymbolic", "-o", lib}, flags...)
			for _, f := range []string{"config", "crc", "file", "lookup", "object", "recorder", "ucx", "ucx_messages", "ucx_memory", "ucx_objects", "ucx_requests"} {
				args = append(args, "../../preload/"+f+".c")
			}
			if out, err := exec.Command("gcc", append(args, "-lpthread", "-ldl")...).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			suppressions, err := filepath.Abs("testdata/tsan.supp")
			if err != nil {
				t.Fatal(err)
			}
			client, _ := edgeClient(t, flags, lib, "-Wl,-rpath,"+filepath.Dir(lib))
			for _, scenario := range scenarios {
				if scenario == "looked_up" || (name == "thread" && scenario == "fork") {
					continue // the sanitizer's own dlsym is used; the thread sanitizer does not follow forks
				}
				t.Run(scenario, func(t *testing.T) {
					s := newSession(t, "full", false)
					s.preload = nil
					edge(t, s, client, scenario, "TSAN_OPTIONS=halt_on_error=1 suppressions="+suppressions, "ASAN_OPTIONS=detect_leaks=0")
				})
			}
		})
	}
}

// The version script and the table of hooks hold the same names, and nothing else goes out.
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
	for _, part := range strings.Split(string(text), "X(ucp_")[1:] {
		name, _, _ := strings.Cut(part, ")")
		hooks++
		if !exported["ucp_"+name] {
			t.Errorf("ucp_%s is not exported", name)
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
