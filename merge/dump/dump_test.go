package dump

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/capture/capturetest"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// sample writes the run folder of one process and returns it and the capture's path.
func sample(t *testing.T) (run, path string) {
	t.Helper()
	run = t.TempDir()
	h := capture.Header{
		Mode: catalogue.ModeFull, Pid: 12, StartTime: 34, PidNamespace: 56, BootID: [16]byte{0xab, 0xcd}, Rank: 3, World: 4, RankSource: 1,
		ParentPid: 11, RealtimeNS: 77, ClockHz: 2400000000, ClockFlags: 1, Hostname: "n1", Executable: "/opt/my app", Job: "A=1\n", Providers: "ucx", Profile: "full",
	}
	folder := filepath.Join(run, "capture")
	w, err := capturetest.Create(folder, h, catalogue.Default)
	if err != nil {
		t.Fatal(err)
	}
	th := w.Thread()
	th.Counters = func(uint64) (uint64, uint64, uint64) { return 10, 0, 9 }
	put := []uint64{5, 4096, 0, 0, 0x7f00dead0000, 0x1000, 0xbeef, 1, catalogue.UcpResultPending, catalogue.UcpApiNbx, 250}
	th.Event(1000, catalogue.EventUcpPut, put)
	put[1], put[10] = 8192, 300
	th.Event(1500, catalogue.EventUcpPut, put)
	th.Event(1200, catalogue.EventUcpCompletion, []uint64{5, 1, 0, 0, ^uint64(2)})
	write := []uint64{6, 0x11, 64, catalogue.VerbsOpcodeSend, 2 | 8 | 64, 1, 0, 0, 0, 0, 0, 0}
	th.Event(1300, catalogue.EventVerbsSend, write)
	th.Cut()
	w.Define(900, catalogue.DefUcpEndpoint, uint64(5), uint64(1), uint64(catalogue.UcpEndpointSourceWorkerAddress), []byte{1, 0xff}, "a \"b\"")
	w.DefineRaw(901, 999, nil)
	w.Aggregate(capture.Aggregate{Object: 5, Event: catalogue.EventUcpPut, Thread: 0, First: 1000, Count: 3, Bytes: 12288, Calls: 3, Sizes: [32]uint64{0: 1, 13: 2}})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	path = capturetest.Path(folder, h)
	alive := filepath.Join(filepath.Dir(path), "alive")
	if err := capturetest.AppendAlive(alive, capture.Alive{Pid: 12, Rank: 3, World: 4, RankSource: 1, Hostname: "n1", Providers: "ucx", Executable: "/bin/app"}); err != nil {
		t.Fatal(err)
	}
	return run, path
}

func dumped(t *testing.T, path string, o Options) []string {
	t.Helper()
	var b bytes.Buffer
	if err := Dump(t.Context(), &b, path, o); err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
}

func equal(t *testing.T, got, want []string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("line %d:\n got %q\nwant %q", i+1, append(got, "nothing")[min(i, len(got))], append(want, "nothing")[min(i, len(want))])
		}
	}
}

// Sizes by FORMAT.md: counters 5 bytes; the first put 7, 20 of predicted fields (address 7, key 3, sizes of 4096 2 each) and 2 of
// duration; the second 3, 2 of mask, 2 of bytes and 2 of duration; time 3; the completion 7 and 5; the send 7 and 12; end 1.
func TestEventsAreTextLines(t *testing.T) {
	_, path := sample(t)
	equal(t, dumped(t, path, Options{Events: true, Chunk: -1}), []string{
		"         0  file path=" + path + " size=200704",
		"      4096  chunk block=0 thread=0 sequence=0 domain=0 flags=closed|checked first=1000 last=1500 earliest=0 committed=83 records=4 crc=0x" + crc(t, path),
		"      4160              1000  counters thread=0 object=5 posted=10 received=0 completed=9",
		"      4165              1000  new thread=0 slot=1 ucp_put endpoint=5 bytes=4096 tag=0x0 mask=0x0 local_address=0x7f00dead0000 remote_address=0x1000 remote_key=0xbeef request=1 status=pending api=nbx duration=250",
		"      4194              1500  changed thread=0 slot=1 ucp_put endpoint=5 bytes=8192 tag=0x0 mask=0x0 local_address=0x7f00dead0000 remote_address=0x1000 remote_key=0xbeef request=1 status=pending api=nbx duration=300",
		"      4203              1200  time thread=0 change=-300",
		"      4206              1200  new thread=0 slot=2 ucp_completion endpoint=5 request=1 bytes=0 tag=0x0 error=-3",
		"      4218              1200  counters thread=0 object=6 posted=10 received=0 completed=9",
		"      4223              1300  new thread=0 slot=3 verbs_send queue_pair=6 wr_id=0x11 bytes=64 opcode=send flags=signaled|inline|bit6 sges=1 local_address=0x0 local_key=0x0 remote_address=0x0 remote_key=0x0 immediate=0x0 call=0",
		"      4242              1300  end thread=0",
	})
}

// crc reads the checksum from the chunk's header.
func crc(t *testing.T, path string) string {
	t.Helper()
	f, err := capture.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return strings.TrimPrefix(hexOf(uint64(f.Chunks()[0].CRC)), "0x")
}

func hexOf(v uint64) string {
	var l line
	l.hex("", v)
	return strings.TrimPrefix(string(l.buf), " =")
}

func TestPartsCanBeChosen(t *testing.T) {
	_, path := sample(t)
	file := "         0  file path=" + path + " size=200704"
	equal(t, dumped(t, path, Options{Definitions: true, Chunk: -1}), []string{
		file,
		`     69696               900  definition ucp_endpoint object=5 worker=1 source=worker_address address=01ff name="a \"b\""`,
		`     69720               901  definition unknown_id=999`,
	})
	equal(t, dumped(t, path, Options{Aggregates: true, Chunk: -1}), []string{
		file, "    135232  aggregate object=5 thread=0 epoch=0 ucp_put peer=0x0 first=1000 count=3 bytes=12288 calls=3 0=1 4096=2",
	})
	equal(t, dumped(t, path, Options{Header: true, Chunk: -1}), []string{
		file,
		"         0  header major=1 minor=0 chunk_bytes=65536 architecture=x86-64 back_end=mapped mode=full catalogue=1",
		`        40  process pid=12 image=0 pid_namespace=56 start_time=34 boot_id=abcd0000000000000000000000000000 rank=3 world=4 rank_source=OMPI_COMM_WORLD_RANK parent_pid=11 hostname=n1 executable="/opt/my app" job="A=1\n" providers=ucx profile=full`,
		"       104  clock realtime_ns=77 hz=2400000000 flags=1",
		"       128  domain domain=0 kind=tsc flags=0 hz=2400000000 identity=00000000000000000000000000000000",
		"      2048  live end_realtime_ns=0 end_mark=exit threads=1 blocks=3",
		"      2072  lost events=0 bytes=0 first=0 last=0 cause=none errno=0 tables=0 objects=0 definitions=0 unplaced=0",
	})
	only := dumped(t, path, Options{Chunk: 0})
	if len(only) != 10 {
		t.Errorf("--chunk 0 alone prints %q", only)
	}
	if err := Dump(t.Context(), &bytes.Buffer{}, path, Options{Chunk: 1}); err == nil || !strings.Contains(err.Error(), "no event chunk in block 1") {
		t.Errorf("block 1 holds definitions: %v", err)
	}
}

func TestRunFolderIsDumpedWhole(t *testing.T) {
	run, path := sample(t)
	want := dumped(t, run, Options{Chunk: -1})
	if !strings.HasSuffix(want[0], "/alive") || !strings.Contains(want[1], "alive rank_source=OMPI_COMM_WORLD_RANK pid=12 rank=3") {
		t.Errorf("proof of life: %q", want[:2])
	}
	equal(t, dumped(t, filepath.Join(run, "capture"), Options{Chunk: -1}), want)
	equal(t, dumped(t, path, Options{Chunk: -1}), want[2:])
	if n := slices.IndexFunc(want, func(s string) bool { return strings.Contains(s, "file path="+path) }); n != 2 {
		t.Errorf("the capture comes at line %d", n)
	}
	if err := Dump(t.Context(), &bytes.Buffer{}, t.TempDir(), Options{Chunk: -1}); err == nil || !strings.Contains(err.Error(), "no captures in ") {
		t.Errorf("an empty folder: %v", err)
	}
}

func TestJSONLinesHoldTheSame(t *testing.T) {
	_, path := sample(t)
	var lines []map[string]any
	for _, s := range dumped(t, path, Options{Chunk: -1, JSON: true}) {
		var v map[string]any
		d := json.NewDecoder(strings.NewReader(s))
		d.UseNumber()
		if err := d.Decode(&v); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		lines = append(lines, v)
	}
	find := func(offset, kind string) map[string]any {
		for _, l := range lines {
			if l["offset"] == json.Number(offset) && l["type"] == kind {
				return l
			}
		}
		t.Fatalf("no %s at %s in %v", kind, offset, lines)
		return nil
	}
	ev := find("4206", "event")
	fields := ev["fields"].(map[string]any)
	if ev["time"] != json.Number("1200") || ev["form"] != "new" || ev["name"] != "ucp_completion" || ev["thread"] != json.Number("0") ||
		fields["tag"] != "0x0" || fields["error"] != json.Number("-3") || fields["endpoint"] != json.Number("5") {
		t.Errorf("event %v", ev)
	}
	def := find("69696", "definition")["fields"].(map[string]any)
	if def["name"] != `a "b"` || def["source"] != "worker_address" || def["address"] != "01ff" {
		t.Errorf("definition %v", def)
	}
	if sizes := find("135232", "aggregate")["sizes"].(map[string]any); sizes["0"] != json.Number("1") || sizes["4096"] != json.Number("2") {
		t.Errorf("sizes %v", sizes)
	}
	if p := find("40", "process"); p["executable"] != "/opt/my app" || p["rank"] != json.Number("3") {
		t.Errorf("process %v", p)
	}
	if l := find("4218", "event"); l["form"] != "counters" || l["posted"] != json.Number("10") {
		t.Errorf("counters %v", l)
	}
}

func TestDamageIsPrintedAtItsPlace(t *testing.T) {
	_, path := sample(t)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[4203] = 0x3b // slot 59 was never filled
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = Dump(t.Context(), &out, path, Options{Chunk: -1})
	if !errors.Is(err, capture.ErrCorrupt) || !strings.HasPrefix(err.Error(), path+": offset 4203: ") {
		t.Errorf("error %v", err)
	}
	lines := strings.Split(out.String(), "\n")
	i := slices.IndexFunc(lines, func(s string) bool { return strings.HasPrefix(s, "      4203  error error=") })
	if i < 0 || !strings.Contains(lines[i-1], "changed thread=0") || !strings.Contains(out.String(), "aggregate object=5") {
		t.Errorf("printed %q", lines)
	}
	b[0x11040] = 0 // the length of the first definition
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	err = Dump(t.Context(), &out, path, Options{Chunk: -1})
	if !errors.Is(err, capture.ErrCorrupt) || !strings.HasPrefix(err.Error(), "2 damaged places, the first: "+path+": offset 69696: ") {
		t.Errorf("two places: %v", err)
	}
	if err := os.WriteFile(path, []byte("not a capture"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Dump(t.Context(), &out, path, Options{Chunk: -1}); !errors.Is(err, capture.ErrForeign) {
		t.Errorf("a foreign file: %v", err)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestOutputErrorsAndCancellation(t *testing.T) {
	_, path := sample(t)
	if err := Dump(t.Context(), full{}, path, Options{Chunk: -1}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed output: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Dump(ctx, &bytes.Buffer{}, path, Options{Chunk: -1}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
