// Package doorbell tests what is recorded of queues that GPU kernels fill and ring, with kernels of the stand-in CUDA driver (tests/standin) on the software HCA:
// what the run says is held against what the adapter counted.
package doorbell

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/tests/needs"
)

type traffic struct{ Count, Bytes int64 }

// counted is what the adapter executed, as layer doorbell names it.
func counted(t *testing.T, path string) map[string]traffic {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	names := map[string]string{"write": "write", "write_imm": "write_imm", "read": "read", "send": "send", "send_imm": "send", "compare_swap": "atomic", "fetch_add": "atomic",
		"masked_compare_swap": "atomic", "masked_fetch_add": "atomic"}
	all := map[string]traffic{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var s struct{ Requests, Bytes map[string]int64 }
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		for its, ours := range names {
			sum := all[ours]
			sum.Count += s.Requests[its]
			sum.Bytes += s.Bytes[its]
			all[ours] = sum
		}
	}
	return all
}

// record runs a case of gpu_check under the recorder, and returns the run's account and what the adapter counted.
func record(t *testing.T, mode, name string) (*merge.Info, map[string]traffic) {
	t.Helper()
	dir := t.TempDir()
	run, stats := filepath.Join(dir, "run"), filepath.Join(dir, "stats")
	lib := filepath.Dir(needs.Built(t, "softhca/libibverbs.so.1")) + ":" + filepath.Dir(needs.Built(t, "standin/libcuda.so.1"))
	cmd := exec.CommandContext(t.Context(), needs.Built(t, "bin/sigmatrace"), "launch", "-p", mode, "--set", "providers=ibverbs,cuda", "-o", run, "--", needs.Built(t, "softhca/gpu_check"), name)
	cmd.Env = append(os.Environ(), "SOFTHCA_DEVX=1", "SOFTHCA_SHM="+filepath.Join(dir, "hca"), "SOFTHCA_STATS="+stats, "LD_LIBRARY_PATH="+lib)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ok "+name+"\n") {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	text, err := exec.CommandContext(t.Context(), needs.Built(t, "bin/sigmatrace"), "info", "--json", run).Output()
	if err != nil {
		t.Fatal(err)
	}
	var info merge.Info
	if err := json.Unmarshal(text, &info); err != nil {
		t.Fatal(err)
	}
	return &info, counted(t, stats)
}

// Every element that the adapter executed is seen once, in every mode: of queues rung one by one, of two that share a page of doorbells which each overwrites before
// the other's has been seen, and of queues between two processes with a GPU each. On the shared page the adapter looks at the queues' records by itself, and may be
// a whole ring ahead of what was passed on to it; what was overwritten then is counted as lost, element by element.
func TestEveryElementOnce(t *testing.T) {
	for _, name := range []string{"one_by_one", "shared_page", "between"} {
		for _, mode := range []string{"aggregate", "simple", "full"} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				info, want := record(t, mode, name)
				total, lost := int64(0), int64(info.Lost.Events)
				for operation, w := range want {
					got := info.Operations["doorbell"][operation]
					if name == "shared_page" && operation == "write" {
						got.Count += uint64(lost)
						got.Bytes += uint64(4 * lost)
					}
					if int64(got.Count) != w.Count || int64(got.Bytes) != w.Bytes {
						t.Errorf("%s: %d of %d bytes in all, the adapter counted %d of %d", operation, got.Count, got.Bytes, w.Count, w.Bytes)
					}
					total += w.Count
				}
				if total < 1000 {
					t.Errorf("the adapter counted %d requests", total)
				}
				if lost != 0 && name != "shared_page" {
					t.Errorf("lost: %+v", info.Lost)
				}
				if info.Exact != (lost == 0) {
					t.Errorf("exact: %v with %d lost", info.Exact, lost)
				}
				if mode == "full" && info.Events.Total+lost < total {
					t.Errorf("%d events of %d requests", info.Events.Total, total)
				}
			})
		}
	}
}
