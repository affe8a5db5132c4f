// Package elements tests what is recorded of work queue elements: bytes as devices' descriptions have them go through the recorder, and their records are held against
// what was written, and give the same bytes again.
package elements

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/dump"
	"github.com/sigmatrace/sigmatrace/merge/elements"
	"github.com/sigmatrace/sigmatrace/tests/sources"
)

const qpn = 0x10203

// client is the recorder with the decoders and a main, under sanitizers.
var client = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "elements")
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, "client")
	args := []string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-I", "../../preload", "-o", out, "testdata/client.c"}
	args = append(append(args, of...), "-lpthread", "-ldl")
	if b, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the client: %w\n%s", err, b)
	}
	return out, nil
})

var of []string

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := client(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// one is an element as it was read from a capture, rebuilt.
type one struct {
	event  string
	fields map[string]uint64
	target map[string]uint64 // of its doorbell_target; nil where it has none
	raw    []byte
	err    error
}

type account struct {
	elements []one
	lost     uint64
	bytes    int64 // of records
	dump     string
}

type queue struct {
	device, dynamic, blocks int
	from, to                uint32
}

// record lets the client record a ring, and reads its capture.
func record(t *testing.T, q queue, ring []byte) account {
	t.Helper()
	if len(of) == 0 {
		of = sources.Recorder(t)
		for _, path := range sources.Provider(t, "cuda") {
			if strings.HasPrefix(filepath.Base(path), "decode") {
				of = append(of, path)
			}
		}
	}
	path, err := client()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	profile := filepath.Join(dir, "profile.resolved")
	text := fmt.Sprintf("sigmatrace.profile=1\nname=test\nmode=full\nproviders=cuda\nrecord.budget=67108864\nrecord.chunk=1048576\ncapture.directory=%s\n", dir)
	if err := os.WriteFile(profile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, fmt.Sprint(q.device), fmt.Sprint(q.dynamic), fmt.Sprint(qpn), fmt.Sprint(q.blocks), fmt.Sprint(q.from), fmt.Sprint(q.to))
	cmd.Stdin = bytes.NewReader(ring)
	cmd.Env = append(os.Environ(), "SIGMATRACE_CONFIG="+profile)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the client: %v\n%s", err, out)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*", "*.capture"))
	if err != nil || len(names) != 1 {
		t.Fatalf("captures: %v %v", names, err)
	}
	f, err := capture.Open(names[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var dumped strings.Builder
	if err := dump.Dump(ctx, &dumped, names[0], dump.Options{Events: true, Chunk: -1, JSON: true}); err != nil {
		t.Fatal(err)
	}
	a := read(t, f)
	a.dump = dumped.String()
	return a
}

func read(t *testing.T, f *capture.File) account {
	t.Helper()
	targets := map[uint64]map[string]uint64{}
	var reader elements.Reader
	err := f.Definitions(catalogue.Default, func(d *capture.Definition) error {
		if d.ID == catalogue.DefDoorbellTarget {
			id := d.Uint(catalogue.DefDoorbellTargetObject)
			targets[id] = map[string]uint64{"qpn": d.Uint(catalogue.DefDoorbellTargetQpn), "dlid": d.Uint(catalogue.DefDoorbellTargetDlid), "global": d.Uint(catalogue.DefDoorbellTargetGlobal),
				"access_key": d.Uint(catalogue.DefDoorbellTargetAccessKey), "dgid": uint64(len(d.Bytes(catalogue.DefDoorbellTargetDgid)))}
		}
		return reader.Define(d)
	})
	if err != nil {
		t.Fatal(err)
	}
	a := account{lost: f.Live().LostEvents}
	var d capture.Decoder
	for _, chunk := range f.Chunks() {
		a.bytes += int64(chunk.Committed)
		d.Reset(f, &chunk, catalogue.Default)
		for {
			var ev capture.Event
			ok, err := d.Next(&ev)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			e := catalogue.Default.Event(ev.ID)
			if e == nil {
				continue
			}
			x := one{event: e.Name, fields: map[string]uint64{}}
			for i, field := range e.Layout.Fields {
				x.fields[field.Name] = ev.Fields[i]
			}
			x.target = targets[x.fields["target"]]
			x.raw, x.err = reader.Element(&ev)
			a.elements = append(a.elements, x)
		}
	}
	return a
}

// hashed is how keys are stored.
func hashed(key uint64) uint64 {
	for _, factor := range []uint64{0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53} {
		key ^= key >> 33
		key *= factor
	}
	return (key ^ key>>33) & 0xffffffff
}

// expect holds one element against what was written: what fields has, and its bytes.
func expect(t *testing.T, name string, got one, event string, fields map[string]uint64, raw []byte) {
	t.Helper()
	if got.event != event {
		t.Errorf("%s: event %s, not %s", name, got.event, event)
	}
	for field, want := range fields {
		if got.fields[field] != want {
			t.Errorf("%s: %s is %#x, not %#x", name, field, got.fields[field], want)
		}
	}
	if got.err != nil || !bytes.Equal(got.raw, raw) {
		t.Errorf("%s: bytes %x (%v), not %x", name, got.raw, got.err, raw)
	}
}

// blank is an element with zeros where keys are.
func blank(raw []byte, keys ...int) []byte {
	raw = slices.Clone(raw)
	for _, at := range keys {
		clear(raw[at : at+4])
	}
	return raw
}

// As libFuzzer varies what is in a ring: so many inputs, nearly the same in every run, under the sanitizers. `make fuzz` tries more.
func TestFuzzTarget(t *testing.T) {
	if _, err := os.Stat("/usr/bin/clang"); err != nil {
		t.Skip("clang is not installed (clang, libclang-rt-14-dev)")
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "./fuzz.sh", dir, "-seed=1", "-runs=30000").CombinedOutput()
	_, told, _ := strings.Cut(string(out), "\nDone ")
	var done int
	if _, wrong := fmt.Sscan(told, &done); err != nil || wrong != nil || done < 30000 { // it ends an input's variations that it has begun
		t.Fatalf("%d runs: %v\n%s", done, err, out)
	}
}
