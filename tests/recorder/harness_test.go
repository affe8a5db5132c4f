package recorder

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

const root = "../.."

// build compiles the client against the built recorder.
func build(t *testing.T, flags ...string) string {
	t.Helper()
	lib, err := filepath.Abs(filepath.Join(root, "build/lib/sigmatrace"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(lib, "libsigmatrace.so")); err != nil {
		t.Fatalf("the recorder is not built (run make): %v", err)
	}
	out := filepath.Join(t.TempDir(), "client")
	args := append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-g", "-I", filepath.Join(root, "preload"), "-o", out, "testdata/client.c",
		"-L", lib, "-lsigmatrace", "-Wl,-rpath," + lib, "-lpthread", "-ldl"}, flags...)
	if b, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("building the client: %v\n%s", err, b)
	}
	return out
}

type settings map[string]string

// configure writes a resolved profile and returns the environment for the client and the capture directory.
func configure(t *testing.T, dir string, s settings) (env []string, captures string) {
	t.Helper()
	captures = filepath.Join(dir, "capture")
	if err := os.MkdirAll(captures, 0o700); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("sigmatrace.profile=1\n")
	for k, v := range map[string]string{"name": "test", "mode": "full", "providers": "ucx", "record.budget": "67108864", "record.chunk": "65536", "capture.directory": captures} {
		if _, ok := s[k]; !ok {
			fmt.Fprintf(&b, "%s=%s\n", k, v)
		}
	}
	for k, v := range s {
		fmt.Fprintf(&b, "%s=%s\n", k, v)
	}
	path := filepath.Join(dir, "profile.resolved")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return append(os.Environ(), "SIGMATRACE_CONFIG="+path), captures
}

func run(t *testing.T, env []string, args ...string) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = env
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, b)
	}
}

// files opens the captures of a run, in order of name.
func files(t *testing.T, captures string) []*capture.File {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(captures, "*", "*.capture"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	var out []*capture.File
	for _, n := range names {
		f, err := capture.Open(n)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if p := f.Problems(); len(p) > 0 {
			t.Fatalf("%s: %v", n, p)
		}
		out = append(out, f)
	}
	return out
}

func events(t *testing.T, f *capture.File, thread uint32) []capture.Event {
	t.Helper()
	var out []capture.Event
	var d capture.Decoder
	chunks := f.Chunks()
	slices.SortFunc(chunks, func(a, b capture.Chunk) int { return int(a.Sequence) - int(b.Sequence) })
	for i := range chunks {
		if chunks[i].Thread != thread {
			continue
		}
		d.Reset(f, &chunks[i], catalogue.Default)
		for {
			var ev capture.Event
			ok, err := d.Next(&ev)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			if ev.ID != 0 { // counters are checked by TestCountersPrecedeObjects
				out = append(out, ev)
			}
		}
	}
	return out
}

type random uint64

func (s *random) next() uint64 {
	x := uint64(*s)
	x ^= x << 13
	x ^= x >> 7
	x ^= x << 17
	*s = random(x)
	return x
}

func (s *random) value(last uint64) uint64 {
	switch s.next() % 8 {
	case 0:
		return s.next()
	case 1:
		return last + 1
	case 2:
		return s.next() % 300
	}
	return last
}

type record struct {
	time   uint64
	id     uint16
	fields [16]uint64
}

// series is what client.c's series() records. first is the id of its first object.
func series(seed uint64, n int, first uint64) []record {
	s, now := random(seed), uint64(1000000000)
	var f [16]uint64
	var out []record
	for range n {
		object := first + s.next()%20
		switch s.next() % 16 {
		case 0:
			now -= s.next() % 1000
		case 1:
			now += s.next() % (1 << 40)
		case 2:
			now += s.next() % (1 << 24)
		default:
			now += s.next() % 3000
		}
		for k := 1; k < 12; k++ {
			f[k] = s.value(f[k])
		}
		kind := s.next() % 16
		r := record{time: now, fields: f}
		r.fields[0] = object
		last := 11
		switch {
		case kind < 10:
			r.id = uint16(catalogue.EventUcpPut + kind%8)
			r.fields[10] &= 0xffff
			last = 10
		case kind < 13:
			r.id, last = catalogue.EventUcpCompletion, 4
		case kind < 15:
			r.id = catalogue.EventVerbsWrite
		default:
			r.id, last = catalogue.EventVerbsEmptyPolls, 2
		}
		clear(r.fields[last+1:])
		out = append(out, r)
	}
	return out
}

func compare(t *testing.T, got []capture.Event, want []record) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d events, want %d", len(got), len(want))
	}
	for i, w := range want {
		g := record{got[i].Time, got[i].ID, got[i].Fields}
		if g != w {
			t.Fatalf("event %d:\n got %v\nwant %v", i, g, w)
		}
	}
}
