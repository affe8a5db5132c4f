package capture_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/capture/capturetest"
)

func fullHeader() capture.Header {
	return capture.Header{
		Major: 1, ChunkBytes: 32 << 10, Architecture: capture.AArch64, BackEnd: capture.Written, Mode: 2, Catalogue: 3,
		Pid: 4001, Image: 2, PidNamespace: 4026531836, StartTime: 998877, BootID: [16]byte{0xde, 0xad, 0xbe, 0xef, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
		Rank: -1, World: 128, RankSource: 2, ParentPid: 4000, RealtimeNS: 1700000000123456789, ClockHz: 2445400000, ClockFlags: 1,
		Domains:  []capture.Domain{{Kind: 1, Flags: 1, Hz: 2445400000}, {Kind: 3, Hz: 1000000000, Identity: [16]byte{1, 2, 3}}},
		Hostname: "node-7", Executable: "/usr/bin/app", Job: "SLURM_JOB_ID=12\nSLURM_STEP_ID=0\n", Providers: "ucx,ibverbs", Profile: "full",
	}
}

func TestHeaderComesBackAsWritten(t *testing.T) {
	c := testCatalogue(t)
	want := fullHeader()
	var m capturetest.Memory
	w := capturetest.New(&m, want, c)
	w.Live = capture.Live{
		EndRealtimeNS: 1700000001123456789, EndMark: capture.EndExit, LostEvents: 3, LostBytes: 4, LostFirst: 5, LostLast: 6,
		LostCause: 2, LostErrno: 28, LostTables: 7, LostObjects: 8,
	}
	live := w.Live
	w.Thread()
	w.Thread().Event(9, ring, []uint64{1})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f := open(t, m)
	if got := *f.Header(); !reflect.DeepEqual(got, want) {
		t.Errorf("header\n got %+v\nwant %+v", got, want)
	}
	live.Threads, live.Blocks = 2, 1
	if got := f.Live(); got != live {
		t.Errorf("live part\n got %+v\nwant %+v", got, live)
	}
	if got := f.Header().Node(); got != "node-7.deadbeef" {
		t.Errorf("node %q", got)
	}
	if got := f.Header().JobValues(); !reflect.DeepEqual(got, map[string]string{"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0"}) {
		t.Errorf("job %v", got)
	}
	for _, s := range []struct{ got, want string }{
		{f.Header().RankSource.String(), "PMIX_RANK"}, {f.Header().Architecture.String(), "aarch64"}, {f.Header().BackEnd.String(), "written"},
		{f.Live().LostCause.String(), "no space"}, {f.Live().EndMark.String(), "exit"}, {capture.LostCause(77).String(), "77"},
	} {
		if s.got != s.want {
			t.Errorf("name %q, want %q", s.got, s.want)
		}
	}
}

func TestDefinitionsOfOlderAndNewerWriters(t *testing.T) {
	c := testCatalogue(t)
	var m capturetest.Memory
	w := capturetest.New(&m, capture.Header{}, c)
	w.Define(10, 1, uint64(1), "gpu0", -40, []byte{9, 8}, uint64(1))
	w.Define(20, 1, uint64(2), "")                                     // an older writer: three fields fewer
	w.DefineRaw(30, 999, []byte("a definition nobody knows"))          // a newer writer: another kind
	w.DefineRaw(40, 9, []byte{5, 0x80, 1, 'm', 'o', 'r', 'e'})         // a newer writer: a field more
	w.Define(5, 9, ^uint64(0), uint64(1)<<63)                          // an earlier time; the longest numbers
	w.Define(50, 1, uint64(3), strings.Repeat("x", 8192), 1, []byte{}) // the longest bytes
	w.Thread().Event(9, ring, []uint64{1})                             // a chunk between
	for i := range 9 {                                                 // enough for a second and third block
		w.Define(60, 1, uint64(i), "", 0, bytes.Repeat([]byte{byte(i)}, 8192))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f := open(t, m)
	var got []string
	err := f.Definitions(c, func(d *capture.Definition) error {
		line := fmt.Sprintf("%d %d", d.Time, d.ID)
		switch {
		case d.Def == nil:
			line += " unknown"
			if d.Uint(0) != 0 || d.String(0) != "" {
				t.Errorf("fields of an unknown definition")
			}
		case d.ID == 1:
			line += fmt.Sprintf(" %d %d %d %d %d", d.Uint(0), len(d.String(1)), d.Int(2), len(d.Bytes(3)), d.Uint(4))
		default:
			line += fmt.Sprintf(" %#x %#x", d.Uint(0), d.Uint(1))
		}
		got = append(got, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"10 1 1 4 -40 2 1", "20 1 2 0 0 0 0", "30 999 unknown", "40 9 0x5 0x80", "5 9 0xffffffffffffffff 0x8000000000000000", "50 1 3 8192 1 0 0"}
	for i := range 9 {
		want = append(want, fmt.Sprintf("60 1 %d 0 0 8192 0", i))
	}
	if !slices.Equal(got, want) {
		t.Errorf("definitions\n got %q\nwant %q", got, want)
	}
	stop := errors.New("stop")
	if err := f.Definitions(c, func(*capture.Definition) error { return stop }); err != stop {
		t.Errorf("error of the callback: %v", err)
	}
}

func TestAggregatesComeBackAsWritten(t *testing.T) {
	c := testCatalogue(t)
	var m capturetest.Memory
	w := capturetest.New(&m, capture.Header{ChunkBytes: 16 << 10}, c)
	var want []capture.Aggregate
	for i := range uint32(120) { // more than two blocks of 51
		a := capture.Aggregate{
			Object: i, Thread: i % 3, Epoch: i % 2, Event: uint16(i % 4), Peer: uint64(i) << 40, First: 1 << 50, Count: 2, Bytes: 1 << 40, Calls: 1,
		}
		a.Sizes[i%32] = uint64(i)
		w.Aggregate(a)
		if a.Event != 0 {
			want = append(want, a)
		}
	}
	if err := w.Kill(); err != nil {
		t.Fatal(err)
	}
	var got []capture.Aggregate
	err := open(t, m).Aggregates(func(a *capture.Aggregate) error {
		b := *a
		b.Offset = 0
		got = append(got, b)
		return nil
	})
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%d aggregates, %d written: %v", len(got), len(want), err)
	}
}

func TestBoundsOfChunks(t *testing.T) {
	c := testCatalogue(t)
	var m capturetest.Memory
	w := capturetest.New(&m, capture.Header{}, c)
	th := w.Thread()
	th.Begin(1000)
	for _, time := range []uint64{1500, 900, 2500, 950} {
		th.Event(time, ring, []uint64{1})
	}
	th.Cut()
	th.Skip()
	th.Begin(3000)
	th.Event(2900, ring, []uint64{1})
	th.Event(4000, ring, []uint64{1})
	if err := w.Kill(); err != nil {
		t.Fatal(err)
	}
	f := open(t, m)
	chunks := f.Chunks()
	if len(chunks) != 2 || chunks[0].Sequence != 0 || chunks[1].Sequence != 2 {
		t.Fatalf("chunks %+v", chunks)
	}
	if first, last, known := chunks[0].Bounds(); first != 900 || last != 2500 || !known {
		t.Errorf("closed chunk: %d to %d, known %v", first, last, known)
	}
	if _, _, known := chunks[1].Bounds(); known {
		t.Error("the bounds of an open chunk are known")
	}
	var d capture.Decoder
	for i, want := range []capture.Span{{First: 900, Last: 2500, Events: 4}, {First: 2900, Last: 4000, Events: 2}} {
		if got, err := d.Measure(f, &chunks[i], c); got != want || err != nil {
			t.Errorf("chunk %d: %+v, %v, want %+v", i, got, err, want)
		}
	}
}

func TestFindAndProofOfLife(t *testing.T) {
	dir := t.TempDir()
	h := fullHeader()
	for i := range uint32(2) {
		h.Image = 1 - i
		w, err := capturetest.Create(dir, h, testCatalogue(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	node := filepath.Join(dir, "node-7.deadbeef")
	want := []capture.Alive{
		{Offset: 0, RankSource: 1, Pid: 7, Rank: 0, World: 2, PidNamespace: 8, StartTime: 9, RealtimeNS: 10, Image: 1, Hostname: "h", Providers: "ucx", BootID: [16]byte{1}, Executable: "/bin/a"},
		{Offset: 512, Rank: -1, World: -1},
	}
	alive := filepath.Join(node, "alive")
	if err := capturetest.AppendAlive(alive, want...); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"node-7.deadbeef/notes.txt", "empty.00000000/notes.txt", "stray.capture"} {
		path = filepath.Join(dir, path)
		os.MkdirAll(filepath.Dir(path), 0o700)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(node, "link.capture")); err != nil {
		t.Fatal(err)
	}
	nodes, err := capture.Find(dir)
	if err != nil {
		t.Fatal(err)
	}
	wantNodes := []capture.Node{{
		Name:     "node-7.deadbeef",
		Captures: []string{filepath.Join(node, "4001.998877.0.capture"), filepath.Join(node, "4001.998877.1.capture")},
		Alive:    alive,
	}}
	if !reflect.DeepEqual(nodes, wantNodes) {
		t.Errorf("nodes\n got %+v\nwant %+v", nodes, wantNodes)
	}
	got, err := capture.ReadAlive(alive)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("alive\n got %+v %v\nwant %+v", got, err, want)
	}

	b, err := os.ReadFile(alive)
	if err != nil {
		t.Fatal(err)
	}
	newer := slices.Clone(b[:512])
	newer[8] = 2
	b = slices.Concat(newer, make([]byte, 512), b[:512], b[:100])
	if err := os.WriteFile(alive, b, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err = capture.ReadAlive(alive)
	if len(got) != 1 || got[0].Offset != 1024 {
		t.Errorf("of a damaged file: %+v", got)
	}
	for _, kind := range []error{capture.ErrNewer, capture.ErrForeign, capture.ErrTruncated} {
		if !errors.Is(err, kind) {
			t.Errorf("no %v in %v", kind, err)
		}
	}
	if _, err := capture.Find(filepath.Join(dir, "nowhere")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
}
