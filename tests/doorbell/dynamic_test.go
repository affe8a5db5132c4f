package doorbell

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/tests/needs"
)

// sent is what one process sent to another by its own account.
type sent struct{ writes, bytes, atomics, stores uint64 }

// dynamic runs dc_check under the recorder: three processes whose dynamically connected queues send to each other by turns. It returns the run, what each process says that it sent,
// and checks that this is what the adapter executed.
func dynamic(t *testing.T, mode string) (*merge.Merged, map[[2]uint32]sent) {
	t.Helper()
	dir := t.TempDir()
	run, stats := filepath.Join(dir, "run"), filepath.Join(dir, "stats")
	lib := filepath.Dir(needs.Built(t, "softhca/libibverbs.so.1")) + ":" + filepath.Dir(needs.Built(t, "standin/libcuda.so.1"))
	cmd := exec.CommandContext(t.Context(), needs.Built(t, "bin/sigmatrace"), "launch", "-p", mode, "--set", "providers=ibverbs,cuda", "-o", run, "--", needs.Built(t, "softhca/dc_check"))
	cmd.Env = append(os.Environ(), "SOFTHCA_DEVX=1", "SOFTHCA_SHM="+filepath.Join(dir, "hca"), "SOFTHCA_STATS="+stats, "LD_LIBRARY_PATH="+lib)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ok three\n") {
		t.Fatalf("dc_check: %v\n%s", err, out)
	}
	told, of := map[[2]uint32]sent{}, map[uint32]sent{}
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
		var pair [2]uint32
		var s sent
		if n, _ := fmt.Sscanf(lines.Text(), "sent %d %d %d %d %d %d", &pair[0], &pair[1], &s.writes, &s.bytes, &s.atomics, &s.stores); n == 6 {
			told[pair] = s
			sum := of[pair[0]]
			of[pair[0]] = sent{sum.writes + s.writes, sum.bytes + s.bytes, sum.atomics + s.atomics, sum.stores + s.stores}
		}
	}
	if len(told) != 6 {
		t.Fatalf("%d pairs of processes:\n%s", len(told), out)
	}
	adapter(t, stats, of)
	d, err := rundir.Open(run)
	if err != nil {
		t.Fatal(err)
	}
	m, err := merge.Open(t.Context(), d, merge.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m, told
}

// adapter holds what processes say against what the adapter counted on their queue.
func adapter(t *testing.T, stats string, of map[uint32]sent) {
	t.Helper()
	text, err := os.ReadFile(stats)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(text)) {
		var s struct {
			Pid   uint32
			Pairs []map[string]any `json:"queue_pairs"`
		}
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatal(err)
		}
		for _, q := range s.Pairs {
			if q["type"] != "DCI" {
				continue
			}
			number := func(name string, i int) uint64 { return uint64(q[name].([]any)[i].(float64)) }
			got := sent{number("write", 0), number("write", 1), number("fetch_add", 0), number("masked_compare_swap", 0)}
			if got != of[s.Pid] {
				t.Errorf("process %d says it sent %+v, the adapter counted %+v", s.Pid, of[s.Pid], got)
			}
			seen++
		}
	}
	if seen != len(of) {
		t.Errorf("the adapter tells of %d queues", seen)
	}
}

// Whom each element goes to is known in every mode, though one queue serves all: matrix and counts are those of the processes' own accounts, and, in full mode, each element's peer.
func TestDynamicallyConnected(t *testing.T) {
	for _, mode := range needs.Modes() {
		t.Run(mode, func(t *testing.T) {
			m, told := dynamic(t, mode)
			info := m.Info()
			var all sent
			for _, s := range told {
				all = sent{all.writes + s.writes, all.bytes + s.bytes, all.atomics + s.atomics, all.stores + s.stores}
			}
			if p := info.Purposes["doorbell"]; p.Data != (merge.Count{Count: all.writes, Bytes: all.bytes}) || p.Control.Count != all.atomics+all.stores || p.Unknown != 0 {
				t.Errorf("purposes %+v, sent %+v", p, all)
			}
			if !info.Exact || info.Lost.Events != 0 {
				t.Errorf("exact %v, lost %d", info.Exact, info.Lost.Events)
			}
			got := map[[2]uint32]sent{}
			for _, row := range m.Matrix().Layers["doorbell"].Endpoint {
				if row.Destination == nil {
					t.Fatalf("a row without destination: %+v", row)
				}
				pair := [2]uint32{row.Source.Pid, row.Destination.Pid}
				s := got[pair]
				switch row.Operation {
				case "write":
					s.writes, s.bytes = s.writes+row.Count, s.bytes+row.Bytes
				case "atomic":
					s.atomics += row.Count
				}
				got[pair] = s
			}
			for pair, s := range told {
				if got[pair] != (sent{s.writes, s.bytes, s.atomics + s.stores, 0}) {
					t.Errorf("matrix from %d to %d: %+v, sent %+v", pair[0], pair[1], got[pair], s)
				}
			}
			if len(got) != len(told) {
				t.Errorf("%d pairs in the matrix", len(got))
			}
			switch mode {
			case "simple":
				calls(t, m, all)
			case "full":
				peers(t, m, told)
			}
		})
	}
}

// calls holds the records of doorbells against what was sent: data and control have each their own.
func calls(t *testing.T, m *merge.Merged, all sent) {
	t.Helper()
	requests, bytes := map[string]uint64{}, map[string]uint64{}
	operations(t, m, func(e *catalogue.Event, op *ops.Op) {
		requests[e.Name] += uint64(op.Requests)
		bytes[e.Name] += op.Bytes
	})
	if requests["doorbell_call"] != all.writes || bytes["doorbell_call"] != all.bytes || requests["doorbell_control_call"] != all.atomics+all.stores {
		t.Errorf("doorbells cover %v requests of %v bytes, sent %+v", requests, bytes, all)
	}
}

func operations(t *testing.T, m *merge.Merged, fn func(e *catalogue.Event, op *ops.Op)) {
	t.Helper()
	for part := range m.Run().Partitions {
		err := m.Partition(t.Context(), part, func(all []ops.Op) error {
			for i := range all {
				if e := catalogue.Default.Event(all[i].Event); e.Layer == "doorbell" {
					fn(e, &all[i])
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// peers holds the elements' own peers against what was sent.
func peers(t *testing.T, m *merge.Merged, told map[[2]uint32]sent) {
	t.Helper()
	run := m.Run()
	got := map[[2]uint32]sent{}
	operations(t, m, func(e *catalogue.Event, op *ops.Op) {
		if e.Operation == "" || op.Peer == 0 {
			return
		}
		pair := [2]uint32{run.Processes[op.Process].Pid, run.Processes[run.Endpoints[op.Peer-1].Process].Pid}
		s := got[pair]
		switch e.Name {
		case "doorbell_write":
			s.writes, s.bytes = s.writes+1, s.bytes+op.Bytes
		case "doorbell_atomic":
			s.atomics++
		case "doorbell_signal":
			s.stores++
		}
		if control := op.Fields[catalogue.DoorbellRequestFlags]&catalogue.VerbsSendFlagsControl != 0; control != (e.Name != "doorbell_write") {
			t.Errorf("%s: control %v", e.Name, control)
		}
		got[pair] = s
	})
	for pair, s := range told {
		if got[pair] != s {
			t.Errorf("elements from %d to %d: %+v, sent %+v", pair[0], pair[1], got[pair], s)
		}
	}
}
