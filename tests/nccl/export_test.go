package nccl

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/parquet/parquettest"
)

// Tables and traces say of each request for what it was, and have a row for each communicator.
func TestExports(t *testing.T) {
	r := job{mode: "full", name: "normal", newest: 5, set: []string{"nccl.events=coll,p2p,steps", "merge.exports=json,parquet"}}.do(t)
	files, err := filepath.Glob(filepath.Join(r.run, "events", "operations", "layer=verbs", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("tables of layer verbs: %v, %v", files, err)
	}
	writes, known := 0, 0
	for _, f := range files {
		c := parquettest.Read(t, f).Columns
		for i, operation := range c["operation"] {
			if operation != "write" {
				continue
			}
			writes++
			id := c["wr_id"][i].(uint64)
			collective := id>>40 == 0
			if want := map[bool]string{true: "AllReduce", false: "Send"}[collective]; c["nccl_function"][i] != want || c["nccl_communicator"][i] == nil || collective && c["nccl_sequence"][i] != id>>16&0xffffff {
				t.Errorf("request %#x: %v %v on %v", id, c["nccl_function"][i], c["nccl_sequence"][i], c["nccl_communicator"][i])
			}
			if n := c["nccl_candidates"][i]; n == uint64(1) {
				known++
				if channel, ok := c["nccl_channel"][i].(uint64); !ok || collective && channel != id>>1&0x7fff {
					t.Errorf("request %#x is on channel %v", id, c["nccl_channel"][i])
				}
			}
		}
	}
	if writes != allWrites || known < allWrites-2*(channels+1)*2 {
		t.Errorf("%d requests, %d of which have one connection", writes, known)
	}
	files, _ = filepath.Glob(filepath.Join(r.run, "events", "operations", "layer=nccl", "*"))
	tasks := map[string]int{}
	for _, f := range files {
		c := parquettest.Read(t, f).Columns
		for i, event := range c["event"] {
			if event == "nccl_collective" && c["algorithm"][i] == "RING" && c["protocol"][i] == "SIMPLE" && c["datatype"][i] == "ncclFloat32" && c["bytes"][i] == uint64(chunk) {
				tasks[c["operation"][i].(string)]++
			}
		}
	}
	if tasks["AllReduce"] != 2*rounds {
		t.Errorf("collectives in the tables: %v", tasks)
	}
	text, err := os.ReadFile(filepath.Join(r.run, "trace.json"))
	if err != nil {
		t.Fatal(err)
	}
	var trace struct {
		TraceEvents []struct {
			Name, Ph, Cat string
			Args          map[string]any
		}
	}
	if err := json.Unmarshal(text, &trace); err != nil {
		t.Fatal(err)
	}
	slices, told := map[string]int{}, 0
	for _, e := range trace.TraceEvents {
		if e.Ph == "X" || e.Ph == "B" || e.Ph == "b" {
			slices[e.Cat+" "+e.Name]++
		}
		if e.Name == "write" && (e.Args["collective"] == "AllReduce" || e.Args["collective"] == "Send") && e.Args["communicator"] == "communicator world, rank 0 of 2" {
			told++
		}
	}
	if slices["nccl AllReduce"] != 2*rounds || slices["nccl Send"] != 2*rounds || slices["nccl proxy"] != 2*rounds*(channels+1)*2 || told < allWrites/2 {
		t.Errorf("slices %v, requests of rank 0 with their collective %d", slices, told)
	}
}
