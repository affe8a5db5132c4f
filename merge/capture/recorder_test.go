package capture_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// buildEncoder builds the recorder with the encoders of the test catalogue, and testdata/encode.c over it.
func buildEncoder(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skipf("SKIP %s: no gcc to build the recorder with", t.Name())
	}
	const preload = "../../preload"
	dir := t.TempDir()
	args := []string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-g", "-fsanitize=undefined", "-fno-sanitize-recover=all", "-I", dir,
		"-o", filepath.Join(dir, "encode"), "testdata/encode.c"}
	headers, err := filepath.Glob(filepath.Join(preload, "*.h"))
	if err != nil || len(headers) == 0 {
		t.Fatalf("no headers in %s: %v", preload, err)
	}
	sources := []string{"app.c", "chunk.c", "config.c", "crc.c", "file.c", "filesystem.c", "header.c", "lookup.c", "memory.c", "object.c", "recorder.c", "ring.c", "select.c", "window.c", "written.c"} // without interpose.c: this program's own look-ups are its own
	for i, s := range sources {
		sources[i] = filepath.Join(preload, s)
		args = append(args, filepath.Join(dir, s))
	}
	for _, path := range slices.Concat(headers, sources) { // copies, beside which #include finds the test catalogue's header
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	generate := exec.Command("go", "run", "../../preload/gen", "-catalogue", "testdata/events.toml", "-header", filepath.Join(dir, "events.gen.h"), "-go", "", "-page", "", "-rows", "")
	if out, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("generating encoders: %v\n%s", err, out)
	}
	if out, err := exec.Command("gcc", append(args, "-ldl", "-lpthread")...).CombinedOutput(); err != nil {
		t.Fatalf("building the encoder: %v\n%s", err, out)
	}
	return filepath.Join(dir, "encode")
}

// record runs the encoder over events and opens the capture it leaves.
func record(t *testing.T, program string, c *catalogue.Catalogue, backEnd string, chunk, objects int, events []recorded) *capture.File {
	t.Helper()
	var in bytes.Buffer
	put := func(values ...uint64) {
		if err := binary.Write(&in, binary.LittleEndian, values); err != nil {
			t.Fatal(err)
		}
	}
	put(uint64(objects))
	for _, ev := range events {
		put(uint64(ev.id), ev.time)
		raw := ev.raw
		for i, f := range c.Event(ev.id).Layout.Fields {
			if f.Type != catalogue.Raw {
				put(ev.fields[i])
				continue
			}
			put(uint64(len(raw[0])))
			in.Write(raw[0])
			in.Write(make([]byte, -len(raw[0])&7))
			raw = raw[1:]
		}
	}
	dir := t.TempDir()
	profile := filepath.Join(dir, "profile")
	text := fmt.Sprintf("sigmatrace.profile=1\nmode=full\nrecord.chunk=%d\nrecord.budget=268435456\nrecord.back_end=%s\ncapture.directory=%s\n", chunk, backEnd, dir)
	if err := os.WriteFile(profile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "SIGMATRACE=", "SIGMATRACE_CONFIG="+profile)
	cmd.Stdin = &in
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("recording: %v\n%s", err, out)
	}
	nodes, err := capture.Find(dir)
	if err != nil || len(nodes) != 1 || len(nodes[0].Captures) != 1 {
		t.Fatalf("captures: %+v, %v", nodes, err)
	}
	f, err := capture.Open(nodes[0].Captures[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// The recorder's encoders and this reader agree on every form of record, whatever the catalogue.
func TestRecorderAndReaderAgree(t *testing.T) {
	c := testCatalogue(t)
	program := buildEncoder(t)
	rounds := 40
	if testing.Short() {
		rounds = 6
	}
	forms := map[capture.Form]int{}
	bounded := 0
	for seed := range rounds {
		r := rand.New(rand.NewPCG(uint64(seed), 9))
		events := history(r, c, 1+r.IntN(6000))
		f := record(t, program, c, []string{"mapped", "written"}[seed%2], 16384<<(seed%7), 40, events)
		if len(f.Problems()) != 0 || f.Live().EndMark != capture.EndExit || f.Live().LostEvents != 0 {
			t.Fatalf("problems %v, end %v, lost %d", f.Problems(), f.Live().EndMark, f.Live().LostEvents)
		}
		compare(t, f, c, f.Chunks()[0].Thread, events)
		countForms(t, f, c, forms)
		bounded += checkBounds(t, f, c)
		checkCounters(t, f, c, events)
		checkDefinitions(t, f, c)
	}
	for form := capture.FormHit; form < capture.FormEnd; form++ { // the recorder writes no end records
		if forms[form] == 0 {
			t.Errorf("no record of form %v was tried", form)
		}
	}
	if bounded == 0 {
		t.Error("no chunk's bounds were checked")
	}
	t.Log(forms, bounded)
}

// checkBounds holds the bounds in closed chunks' headers against their records. Chunks whose times span more than a counter does in
// a century, which the recorder takes for steps back, are left out.
func checkBounds(t *testing.T, f *capture.File, c *catalogue.Catalogue) (checked int) {
	t.Helper()
	var d capture.Decoder
	for i := range f.Chunks() {
		ch := &f.Chunks()[i]
		if ch.Flags&(capture.Closed|capture.Checked) != capture.Closed|capture.Checked { // the last one too: the program ended in order
			t.Errorf("chunk %d of %d: flags %#x", i, len(f.Chunks()), ch.Flags)
		}
		span, err := d.Measure(f, ch, c)
		if err != nil {
			t.Fatal(err)
		}
		if span.Last-span.First > 1<<62 {
			continue
		}
		first, last, known := ch.Bounds()
		if known && (first > span.First || last != span.Last) {
			t.Errorf("chunk %d: its header says %d to %d, its records are from %d to %d", i, first, last, span.First, span.Last)
		}
		if known {
			checked++
		}
	}
	return checked
}

// checkCounters holds counters records against what came before them, and the aggregates against all events.
func checkCounters(t *testing.T, f *capture.File, c *catalogue.Catalogue, events []recorded) {
	t.Helper()
	class := map[uint16]int{element: 0, wide: 1, signed: 2} // posted, received, completed
	counts := map[uint64][3]uint64{}
	var d capture.Decoder
	var ev capture.Event
	records := 0
	for i := range f.Chunks() {
		d.Reset(f, &f.Chunks()[i], c)
		met := map[uint64]bool{}
		for {
			ok, err := d.Next(&ev)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			object := ev.Fields[0]
			if ev.Form == capture.FormCounters {
				records++
				if got := [3]uint64(ev.Fields[1:4]); got != counts[object] || met[object] {
					t.Fatalf("counters of object %d: %v, were %v; met before in the chunk: %v", object, got, counts[object], met[object])
				}
				met[object] = true
				continue
			}
			if !met[object] {
				t.Fatalf("no counters before the first record of object %d in chunk %d", object, i)
			}
			if k, counted := class[ev.ID]; counted {
				n := counts[object]
				n[k]++
				counts[object] = n
			}
		}
	}
	if records == 0 {
		t.Error("no counters")
	}
	type key struct {
		object uint32
		event  uint16
	}
	want, got := map[key]uint64{}, map[key]uint64{}
	for _, e := range events {
		if _, counted := class[e.id]; counted {
			want[key{uint32(e.fields[0]), e.id}]++
		}
	}
	err := f.Aggregates(func(a *capture.Aggregate) error {
		got[key{a.Object, a.Event}] += a.Count
		sizes := uint64(0)
		for _, n := range a.Sizes {
			sizes += n
		}
		if sizes != a.Count {
			t.Errorf("object %d event %d: %d by size, %d counted", a.Object, a.Event, sizes, a.Count)
		}
		return nil
	})
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("aggregates %v, %v, want %v", got, err, want)
	}
}

// checkDefinitions looks for those that testdata/encode.c makes.
func checkDefinitions(t *testing.T, f *capture.File, c *catalogue.Catalogue) {
	t.Helper()
	var got []string
	err := f.Definitions(c, func(d *capture.Definition) error {
		switch {
		case d.Def == nil:
			got = append(got, "unknown")
		case d.Def.Name == "device":
			got = append(got, fmt.Sprintf("device %d %q %d %x %d", d.Uint(0), d.String(1), d.Int(2), d.Bytes(3), d.Uint(4)))
		case d.Def.Name == "clock":
			got = append(got, fmt.Sprintf("clock %#x %#x", d.Uint(0), d.Uint(1)))
		}
		return nil
	})
	want := []string{`device 7 "gpu0" -40 01ff 1`, `device 8 "" -9223372036854775808  0`, "clock 0xffffffffffffffff 0x8000000000000000"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("definitions %q, %v, want %q", got, err, want)
	}
}
