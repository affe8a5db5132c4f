package chromejson_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/chromejson"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline/timelinetest"
	"github.com/sigmatrace/sigmatrace/tests/tp"
)

func write(t testing.TB, src ops.Source, o chromejson.Options) ([]byte, *chromejson.Stats) {
	t.Helper()
	var b bytes.Buffer
	s, err := chromejson.Write(context.Background(), &b, src, o)
	if err != nil {
		t.Fatal(err)
	}
	if int64(b.Len()) != s.Bytes {
		t.Fatalf("wrote %d bytes and says %d", b.Len(), s.Bytes)
	}
	return b.Bytes(), s
}

type event struct {
	Phase    string `json:"ph"`
	Pid      int
	Tid      int
	Time     json.Number `json:"ts"`
	Duration json.Number `json:"dur"`
	Name     string
	Category string `json:"cat"`
	Bind     string `json:"bind_id"`
	Out      bool   `json:"flow_out"`
	In       bool   `json:"flow_in"`
	Args     map[string]any
}

type file struct {
	Other  map[string]any `json:"otherData"`
	Events []event        `json:"traceEvents"`
}

func parse(t *testing.T, b []byte) *file {
	t.Helper()
	var f file
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&f); err != nil {
		t.Fatal(err)
	}
	return &f
}

// ns is a time in nanoseconds; digits beyond them would be an error.
func ns(t *testing.T, n json.Number) int64 {
	t.Helper()
	whole, fraction, _ := strings.Cut(string(n), ".")
	if len(fraction) > 3 {
		t.Fatalf("time %s has more than three places", n)
	}
	v, err := strconv.ParseInt(whole+(fraction + "000")[:3], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Every operation, flow and sample is in the file, read with a plain JSON decoder.
func TestContent(t *testing.T) {
	src := timelinetest.New(timelinetest.Config{Seed: 31, Ranks: 4, Messages: 3000, Partitions: 4, Strays: true})
	b, s := write(t, src, chromejson.Options{Workers: 2})
	f := parse(t, b)
	if int64(len(f.Events)) != s.Packets {
		t.Errorf("%d events, said to be %d", len(f.Events), s.Packets)
	}
	begin := src.Info.First
	if f.Other["begin_ns"] != fmt.Sprint(begin) {
		t.Errorf("begin_ns is %v, not %d", f.Other["begin_ns"], begin)
	}
	processes, threads := map[int]string{}, map[int]string{}
	for _, e := range f.Events {
		switch {
		case e.Phase == "M" && e.Name == "process_name":
			processes[e.Pid] = e.Args["name"].(string)
		case e.Phase == "M" && e.Name == "thread_name":
			threads[e.Tid], _, _ = strings.Cut(e.Args["name"].(string), " (lane")
		}
	}
	got, want := map[string]int{}, map[string]int{}
	var slices_, instants, counters int64
	for _, e := range f.Events {
		switch {
		case e.Phase == "X" && e.Bind != "":
			instants++
			got[fmt.Sprintf("%s %s out %v in %v at %d", e.Name, e.Bind, e.Out, e.In, ns(t, e.Time)+begin)]++
		case e.Phase == "X" && e.Category != "sigmatrace":
			slices_++
			got[fmt.Sprintf("%d +%d %s %s in %s / %s: bytes %v ordinal %v address %v status %v unfinished %v", ns(t, e.Time)+begin, ns(t, e.Duration), e.Name, e.Category,
				processes[e.Pid], threads[e.Tid], e.Args["bytes"], e.Args["ordinal"], e.Args["local_address"], e.Args["status"], e.Args["unfinished"])]++
		case e.Phase == "X":
			slices_++
		case e.Phase == "C":
			counters++
			got[fmt.Sprintf("%s / %s is %v at %d", processes[e.Pid], e.Name, e.Args["value"], ns(t, e.Time)+begin)]++
		}
	}
	name := map[uint16]string{catalogue.EventUcpPut: "put", catalogue.EventUcpTagSend: "tag_send", catalogue.EventUcpTagRecv: "tag_recv",
		catalogue.EventUcpFlush: "flush", catalogue.EventVerbsSend: "send", catalogue.EventVerbsRecv: "recv", catalogue.EventVerbsWrite: "write",
		catalogue.EventVerbsControl: "local_invalidate", catalogue.EventVerbsEmptyPolls: "empty polls"}
	src.Each(func(o *ops.Op) {
		ep, q := &src.Info.Endpoints[o.Endpoint], &src.Info.Processes[o.Process]
		process := fmt.Sprintf("rank %d on %s (pid %d, xhpl)", q.Rank, q.Host, q.Pid)
		category := ep.Layer
		var bytes, ordinal, address, status, unfinished any = o.Bytes, o.Ordinal, nil, nil, nil
		if o.Flags&ops.PollRecord != 0 {
			bytes, ordinal = nil, nil
		}
		if i := catalogue.Default.Event(o.Event).Layout.FieldIndex("local_address"); i >= 0 && o.Fields[i] != 0 {
			address = fmt.Sprintf("0x%x", o.Fields[i])
		}
		if o.Flags&ops.Failed != 0 {
			category += ",error"
			status = o.Status
		}
		if o.Flags&ops.Unfinished != 0 {
			unfinished = true
		}
		want[fmt.Sprintf("%d +%d %s %s in %s / %s: bytes %v ordinal %v address %v status %v unfinished %v", o.Post, o.Done-o.Post, name[o.Event], category,
			process, ep.Layer+": "+ep.Name, bytes, ordinal, address, status, unfinished)]++
		if o.Flow != 0 {
			if o.Role != ops.Target {
				want[fmt.Sprintf("posted 0x%x out true in false at %d", o.Flow, o.Post)]++
			}
			if o.Role == ops.Target {
				want[fmt.Sprintf("received 0x%x out false in true at %d", o.Flow, o.Done)]++
			} else if o.Role == ops.OneSided {
				want[fmt.Sprintf("completed 0x%x out false in true at %d", o.Flow, o.Done)]++
			}
		}
		if o.Flags&ops.PollRecord != 0 {
			return
		}
		counter := func(what string, value any, at int64) {
			want[fmt.Sprintf("%s / %s: %s: %s is %v at %d", process, ep.Layer, ep.Name, what, value, at)]++
		}
		counter("outstanding requests", o.Outstanding, o.Post)
		if o.Flags&ops.Unfinished == 0 {
			counter("outstanding requests", o.After, o.Done)
		}
		if o.Bytes > 0 {
			counter(map[ops.Role]string{ops.Initiator: "send bytes posted", ops.Target: "receive bytes posted", ops.OneSided: "one-sided bytes posted"}[o.Role], o.Total, o.Post)
		}
	})
	if slices_ != s.Slices || instants != s.Instants || counters != s.Counters || s.FlowBegins+s.FlowEnds != instants {
		t.Errorf("%d slices, %d instants, %d samples in the file; said to be %+v", slices_, instants, counters, s)
	}
	shown := 0
	for k, n := range want {
		if got[k] -= n; got[k] == 0 {
			delete(got, k)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if shown++; shown <= 6 {
			t.Errorf("%+d %s", got[k], k)
		}
	}
}

func TestTraceProcessorReadsIt(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	tp.Need(t)
	src := timelinetest.New(timelinetest.Config{Seed: 32, Ranks: 4, Messages: 3000, Partitions: 4, Strays: true})
	b, s := write(t, src, chromejson.Options{})
	path := filepath.Join(t.TempDir(), "trace.json")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := tp.Check(path); err != nil {
		t.Error(err)
	}
	// This format has no arrow for a message whose receive does not come after its send, in time or, at equal times, in the file.
	sends := map[uint64]int64{}
	late := map[uint64]bool{}
	var arrows int
	src.Each(func(o *ops.Op) {
		switch {
		case o.Flow == 0:
		case o.Role == ops.OneSided:
			arrows++
		case o.Role == ops.Initiator:
			sends[o.Flow] = o.Post
		}
	})
	src.Each(func(o *ops.Op) {
		switch {
		case o.Flow == 0:
		case o.Role == ops.Initiator:
			late[o.Flow] = true
		case o.Role == ops.Target && (o.Done > sends[o.Flow] || o.Done == sends[o.Flow] && late[o.Flow]):
			arrows++
		}
	})
	rows, err := tp.Query(path, "select (select count(*) from slice), (select count(*) from counter), (select count(*) from flow), (select count(*) from process where name is not null)")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{fmt.Sprint(s.Slices + s.Instants), fmt.Sprint(s.Counters), fmt.Sprint(arrows), fmt.Sprint(len(src.Info.Processes) + 1)}; !slices.Equal(rows[0], want) {
		t.Errorf("slices, samples, arrows, processes: %v, not %v", rows[0], want)
	}
	if err := os.WriteFile(path, b[:len(b)*2/3], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := tp.Check(path); err == nil {
		t.Error("a file without its tail passed for a good one")
	}
}

func TestOptions(t *testing.T) {
	src := timelinetest.New(timelinetest.Config{Seed: 33, Ranks: 4, Messages: 6000, Partitions: 11, Strays: true})
	for name, o := range map[string]chromejson.Options{"whole": {}, "limited": {MaxSlices: 2000}, "layer": {Layers: []string{"ucp"}}} {
		t.Run(name, func(t *testing.T) {
			o.Workers = 1
			want, s := write(t, src, o)
			for _, workers := range []int{2, 8} {
				o.Workers = workers
				if got, _ := write(t, src, o); !bytes.Equal(got, want) {
					t.Errorf("%d workers wrote other bytes than one", workers)
				}
			}
			f := parse(t, want)
			for _, e := range f.Events {
				if name == "layer" && strings.Contains(e.Category, "verbs") {
					t.Fatalf("%+v is of another layer", e)
				}
			}
			if name == "limited" && (s.Slices+s.Instants > 2000 || s.LeftOut["ucp"] == 0 || !strings.Contains(f.Events[len(f.Events)-1].Name, "left out")) {
				t.Errorf("%d slices and instants, last event %q", s.Slices+s.Instants, f.Events[len(f.Events)-1].Name)
			}
		})
	}
	if _, err := chromejson.Write(context.Background(), &bytes.Buffer{}, src, chromejson.Options{Layers: []string{"nvlink"}}); err == nil {
		t.Error("a layer that is not there was accepted")
	}
}
