package parquet_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/parquet"
	"github.com/sigmatrace/sigmatrace/merge/parquet/parquettest"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline/timelinetest"
)

func write(t testing.TB, src ops.Source, account parquet.Account, o parquet.Options) (string, *parquet.Index) {
	t.Helper()
	dir := t.TempDir()
	index, err := parquet.Write(context.Background(), dir, src, account, o)
	if err != nil {
		t.Fatal(err)
	}
	return dir, index
}

// renamed are the columns that are not called as the field, by layout and field; "" has none.
var renamed = map[string]string{
	"ucp_request.bytes": "posted_bytes", "ucp_request.status": "result", "ucp_request.duration": "call_ns",
	"verbs_request.bytes": "posted_bytes", "verbs_request.immediate": "immediate_data",
	"verbs_receive.bytes": "posted_bytes", "verbs_empty_polls.count": "", "verbs_empty_polls.duration": "call_ns",
	"call.operation": "", "call.requests": "", "call.bytes": "posted_bytes", "call.peer": "remote_qpn", "call.duration": "call_ns",
}

var operationNames = map[uint16]string{catalogue.EventUcpPut: "put", catalogue.EventUcpTagSend: "tag_send", catalogue.EventUcpTagRecv: "tag_recv",
	catalogue.EventUcpFlush: "flush", catalogue.EventVerbsSend: "send", catalogue.EventVerbsRecv: "recv", catalogue.EventVerbsWrite: "write",
	catalogue.EventVerbsControl: "local_invalidate", catalogue.EventVerbsEmptyPolls: "empty polls", catalogue.EventVerbsCall: "write"}

// expected is what the row of an operation holds; columns that it does not name are null.
func expected(run *ops.Run, o *ops.Op) map[string]any {
	e := catalogue.Default.Event(o.Event)
	ep, p := &run.Endpoints[o.Endpoint], &run.Processes[o.Process]
	kind := map[catalogue.Kind]string{catalogue.Request: "request", catalogue.Call: "call", catalogue.Poll: "polls", catalogue.Control: "control"}[e.Kind]
	want := map[string]any{
		"post_ns": o.Post, "done_ns": o.Done, "operation": operationNames[o.Event], "event": e.Name, "kind": kind,
		"role":  map[ops.Role]string{ops.Initiator: "initiator", ops.Target: "target", ops.OneSided: "one_sided", ops.Local: "local"}[o.Role],
		"bytes": o.Bytes, "requests": uint64(o.Requests), "host": p.Host, "node": p.Node, "pid": uint64(p.Pid), "process": uint64(o.Process),
		"thread": uint64(o.Thread), "sequence": o.Sequence, "endpoint": uint64(o.Endpoint), "endpoint_kind": ep.Kind, "endpoint_name": ep.Name,
		"ordinal": o.Ordinal, "lane": uint64(o.Lane), "outstanding": uint64(o.Outstanding), "outstanding_after": uint64(o.After),
		"total_bytes": o.Total, "status": int64(o.Status), "unfinished": o.Flags&ops.Unfinished != 0, "failed": o.Flags&ops.Failed != 0,
		"implied": o.Flags&ops.Implied != 0, "ambiguous": o.Flags&ops.Ambiguous != 0, "complete_on_return": o.Flags&ops.Immediate != 0,
		"completion_unseen": o.Flags&ops.Unseen != 0, "synchronizes": o.Flags&ops.Synchronizes != 0,
	}
	if p.Rank >= 0 {
		want["rank"] = p.Rank
	}
	if o.Peer != 0 {
		q := &run.Endpoints[o.Peer-1]
		r := &run.Processes[q.Process]
		want["peer_host"], want["peer_node"], want["peer_process"], want["peer_endpoint"], want["peer_name"] = r.Host, r.Node, uint64(q.Process), uint64(o.Peer-1), q.Name
		if r.Rank >= 0 {
			want["peer_rank"] = r.Rank
		}
	}
	if ep.GPU != 0 {
		want["gpu"] = uint64(ep.GPU - 1)
	}
	if o.PeerGPU != 0 {
		want["peer_gpu"] = uint64(o.PeerGPU - 1)
	}
	if o.Flow != 0 {
		want["flow"] = o.Flow
	}
	if o.Flags&ops.Failed != 0 {
		want["status_name"] = map[int32]string{12: "transport retry counter exceeded", -25: "connection reset"}[o.Status]
	}
	for i, f := range e.Layout.Fields[1:] {
		name, ok := renamed[e.Layout.Name+"."+f.Name]
		if !ok {
			name = f.Name
		}
		v := o.Fields[i+1]
		switch {
		case name == "":
		case f.Type == catalogue.Ticks:
			want[name] = int64(v) / 2 // the test's processes have ticks of half a nanosecond; its durations are even
		case f.Type == catalogue.Flags && v == 0:
			want[name] = ""
		case f.Type == catalogue.Enum || f.Type == catalogue.Flags:
			want[name] = catalogue.Default.EnumName(f.Of, v)
		default:
			want[name] = v
		}
	}
	return want
}

// made is a run with every kind of operation, with clocks of two ticks a nanosecond, and a process without a rank.
func made(config timelinetest.Config) *timelinetest.Source {
	src := timelinetest.New(config)
	for i := range src.Info.Processes {
		src.Info.Processes[i].TickNS = 0.5
	}
	src.Info.Processes[1].Rank = -1
	for _, part := range src.Parts {
		for i := range part {
			if d := catalogue.Default.Event(part[i].Event).Layout.FieldIndex("duration"); d >= 0 {
				part[i].Fields[d] &^= 1
			}
		}
	}
	return src
}

// Arrow reads every operation once, in order, in the file of its layer, with all that is known of it.
func TestEveryOperationIsARow(t *testing.T) {
	for _, config := range []timelinetest.Config{{Seed: 5, Ranks: 4, Messages: 4000, Partitions: 5, Strays: true}, {Seed: 6, Ranks: 3, Messages: 500, Partitions: 2, Simple: true}} {
		src := made(config)
		dir, index := write(t, src, parquet.Account{}, parquet.Options{Workers: 2})
		want := map[string][]*ops.Op{}
		src.Each(func(o *ops.Op) {
			c := *o
			layer := catalogue.Default.Event(o.Event).Layer
			want[layer] = append(want[layer], &c)
		})
		total := 0
		for layer, tables := range parquettest.Operations(t, dir) {
			var row int
			for _, table := range tables {
				for k := range table.Rows {
					if row == len(want[layer]) {
						t.Fatalf("layer %s: more than %d rows", layer, row)
					}
					x := expected(&src.Info, want[layer][row])
					for name, values := range table.Columns {
						if values[k] != x[name] {
							t.Fatalf("layer %s, row %d, column %s: %v (%[4]T), not %v (%[5]T)", layer, row, name, values[k], x[name])
						}
						delete(x, name)
					}
					if len(x) > 0 {
						t.Fatalf("layer %s, row %d: no column for %v", layer, row, x)
					}
					row++
				}
			}
			if row != len(want[layer]) {
				t.Errorf("layer %s: %d rows of %d operations", layer, row, len(want[layer]))
			}
			total += row
			delete(want, layer)
		}
		if len(want) != 0 || int64(total) != src.Info.Operations || index.Rows != src.Info.Operations {
			t.Errorf("%d rows and %d in the index of %d operations; layers left: %v", total, index.Rows, src.Info.Operations, want)
		}
	}
}

// The small tables hold what operations refer to.
func TestSmallTables(t *testing.T) {
	src := made(timelinetest.Config{Seed: 5, Ranks: 3, Messages: 50, Partitions: 2})
	expect, four := 4, uint32(4)
	dir, _ := write(t, src, parquet.Account{Summary: parquet.Summary{Complete: true, RanksExpected: &expect, RanksComplete: 3, EventsLost: 17}, Exact: true,
		Traffic: []parquet.Traffic{{Layer: "ucp", Operation: "put", Side: "initiator", SourceEndpoint: &four, Count: 3, Bytes: 1 << 40}}}, parquet.Options{})
	table := func(name string, rows int) map[string][]any {
		x := parquettest.Read(t, filepath.Join(dir, name+".parquet"))
		if x.Rows != rows {
			t.Fatalf("%s: %d rows, not %d", name, x.Rows, rows)
		}
		return x.Columns
	}
	equal := func(what string, got, want any) {
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v (%[2]T), not %v (%[3]T)", what, got, want)
		}
	}
	run := table("run", 1)
	equal("ranks expected", run["ranks_expected"][0], int64(4))
	equal("ranks complete", run["ranks_complete"][0], int64(3))
	equal("lost", run["events_lost"][0], uint64(17))
	equal("operations", run["operations"][0], src.Info.Operations)
	processes := table("processes", 3)
	equal("ranks", processes["rank"], []any{int64(2), nil, int64(0)})
	equal("executable", processes["executable"][2], "/usr/bin/xhpl")
	threads := table("threads", 6)
	equal("threads", threads["name"][:2], []any{"tid 1000 (xhpl)", "tid 2000 (progress)"})
	endpoints := table("endpoints", len(src.Info.Endpoints))
	for i := range src.Info.Endpoints {
		e := &src.Info.Endpoints[i]
		equal("endpoint", []any{endpoints["endpoint"][i], endpoints["process"][i], endpoints["object"][i], endpoints["layer"][i], endpoints["kind"][i], endpoints["name"][i]},
			[]any{uint64(i), uint64(e.Process), uint64(e.Object), e.Layer, e.Kind, e.Name})
		peer := any(nil)
		if e.Peer > 0 {
			peer = uint64(e.Peer - 1)
		}
		equal("peer", endpoints["peer_endpoint"][i], peer)
	}
	clocks := table("clocks", 2)
	equal("clock error", clocks["error_ns"], []any{350.0, nil})
	equal("reason", clocks["reason"], []any{nil, "one pair only"})
	traffic := table("traffic", 1)
	equal("source", traffic["source_endpoint"][0], uint64(4))
	equal("destination", traffic["destination_rank"][0], nil)
	equal("bytes", traffic["bytes"][0], uint64(1<<40))
}

// The bytes are the same whatever the number of workers, and many partitions make several files and row groups.
func TestBytesDoNotDependOnWorkers(t *testing.T) {
	src := made(timelinetest.Config{Seed: 7, Ranks: 4, Messages: 6000, Partitions: 130, Strays: true})
	var first map[string][]byte
	for _, workers := range []int{1, 2, 7} {
		dir, index := write(t, src, parquet.Account{}, parquet.Options{Workers: workers})
		files := map[string][]byte{}
		for _, f := range append(slices.Clone(index.Files), parquet.File{Path: parquet.IndexName}) {
			b, err := os.ReadFile(filepath.Join(dir, f.Path))
			if err != nil {
				t.Fatal(err)
			}
			if files[f.Path] = b; f.Rows > 0 && int64(len(b)) != f.Bytes {
				t.Errorf("%s: %d bytes, the index says %d", f.Path, len(b), f.Bytes)
			}
		}
		if first == nil {
			first = files
			if n := len(index.Files); n != 2*44+7 {
				t.Errorf("%d files of 130 partitions and 2 layers, 3 partitions a file", n)
			}
			x := parquettest.Read(t, filepath.Join(dir, index.Files[0].Path))
			if x.Groups != 2 {
				t.Errorf("%d row groups of 3 partitions", x.Groups)
			}
			continue
		}
		for path, b := range first {
			if !bytes.Equal(files[path], b) {
				t.Errorf("%d workers: %s differs", workers, path)
			}
		}
	}
}

// Every file is compressed with zstd and says which schema it has; the index names each with its rows and times.
func TestIndexAndMetadata(t *testing.T) {
	src := made(timelinetest.Config{Seed: 8, Ranks: 2, Messages: 400, Partitions: 3})
	dir, index := write(t, src, parquet.Account{}, parquet.Options{})
	text, err := os.ReadFile(filepath.Join(dir, parquet.IndexName))
	if err != nil {
		t.Fatal(err)
	}
	var read parquet.Index
	if err := json.Unmarshal(text, &read); err != nil || !reflect.DeepEqual(&read, index) {
		t.Errorf("index: %v\n%s", err, text)
	}
	for _, f := range index.Files {
		path := filepath.Join(dir, f.Path)
		values, codecs := parquettest.Metadata(t, path)
		if values["sigmatrace.run"] != "made" || values["sigmatrace.schema"] != "1" || f.Rows > 0 && !slices.Equal(codecs, []string{"ZSTD"}) {
			t.Errorf("%s: metadata %v, codecs %v", f.Path, values, codecs)
		}
		x := parquettest.Read(t, path)
		if int64(x.Rows) != f.Rows {
			t.Errorf("%s: %d rows, the index says %d", f.Path, x.Rows, f.Rows)
		}
		if f.Layer != nil {
			posts := x.Columns["post_ns"]
			if posts[0] != *f.FirstNS || posts[len(posts)-1] != *f.LastNS {
				t.Errorf("%s: from %v to %v, the index says %d to %d", f.Path, posts[0], posts[len(posts)-1], *f.FirstNS, *f.LastNS)
			}
		}
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", f.Path, st.Mode(), err)
		}
	}
}

// What the options leave out is left out, and counted.
func TestNarrowed(t *testing.T) {
	src := made(timelinetest.Config{Seed: 9, Ranks: 4, Messages: 3000, Partitions: 4})
	from, to := src.Info.First+(src.Info.Last-src.Info.First)/3, src.Info.First+(src.Info.Last-src.Info.First)/2
	ranks := func(r int64) bool { return r >= 2 }
	dir, index := write(t, src, parquet.Account{}, parquet.Options{From: from, To: to, Ranks: ranks, Layers: []string{"ucp"}})
	var want []any
	src.Each(func(o *ops.Op) {
		if catalogue.Default.Event(o.Event).Layer == "ucp" && o.Post < to && max(o.Done, o.Post) >= from && src.Info.Processes[o.Process].Rank >= 2 {
			want = append(want, o.Post)
		}
	})
	var got []any
	tables := parquettest.Operations(t, dir)
	for _, x := range tables["ucp"] {
		got = append(got, x.Columns["post_ns"]...)
	}
	if len(want) == 0 || !slices.Equal(got, want) || len(tables) != 1 {
		t.Errorf("%d operations, not %d; layers %d", len(got), len(want), len(tables))
	}
	if index.Filtered != src.Info.Operations-int64(len(want)) {
		t.Errorf("%d filtered of %d", index.Filtered, src.Info.Operations)
	}
}

type failing struct{ *timelinetest.Source }

var errFailing = errors.New("the disk is gone")

func (f failing) Partition(ctx context.Context, i int, fn func([]ops.Op) error) error {
	if i == 2 {
		return errFailing
	}
	return f.Source.Partition(ctx, i, fn)
}

// What cannot be read is told with its place, and leaves no open file.
func TestErrorsAreTold(t *testing.T) {
	src := made(timelinetest.Config{Seed: 9, Ranks: 2, Messages: 300, Partitions: 4})
	before, _ := os.ReadDir("/proc/self/fd")
	if _, err := parquet.Write(context.Background(), t.TempDir(), failing{src}, parquet.Account{}, parquet.Options{}); !errors.Is(err, errFailing) {
		t.Errorf("%v", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if _, err := parquet.Write(ctx, t.TempDir(), src, parquet.Account{}, parquet.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	after, _ := os.ReadDir("/proc/self/fd")
	if len(after) > len(before) {
		t.Errorf("%d files open, %d before", len(after), len(before))
	}
	if _, err := parquet.Write(context.Background(), t.TempDir(), src, parquet.Account{}, parquet.Options{Layers: []string{"tcp"}}); err == nil {
		t.Error("a layer that does not exist")
	}
}

// The page of the columns is that of the rows.
func TestSchemaPageIsCurrent(t *testing.T) {
	text, err := os.ReadFile("SCHEMA.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, parquet.Page()) {
		t.Error("SCHEMA.md is not current: run `make generate`")
	}
	for _, l := range catalogue.Default.Layers {
		for _, e := range catalogue.Default.Events {
			if e.Layer == l.Name && !bytes.Contains(text, []byte(fmt.Sprintf("further columns of layer %s\n", l.Name))) {
				t.Errorf("layer %s is not in SCHEMA.md", l.Name)
			}
		}
	}
}
