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

// recording is a client under the recorder.
type recording struct {
	program, mode string
	set           []string // of the profile
	env           []string
	before        []string // a command that the client is run by
	own, lib      string   // another program in the client's place, and where it finds its driver
	dies          bool
	look          func(run string) // at the run directory
}

// run runs one of the client's cases, and returns what it printed, the run's account and what the adapter counted.
func (r recording) run(t *testing.T, name string) (string, *merge.Info, map[string]traffic) {
	t.Helper()
	dir := t.TempDir()
	run, stats := filepath.Join(dir, "run"), filepath.Join(dir, "stats")
	lib := filepath.Dir(needs.Built(t, "softhca/libibverbs.so.1")) + ":" + filepath.Dir(needs.Built(t, "standin/libcuda.so.1"))
	if r.lib != "" {
		lib = r.lib + ":" + lib
	}
	args := []string{"launch", "-p", r.mode, "--set", "providers=ibverbs,cuda"}
	for _, s := range r.set {
		args = append(args, "--set", s)
	}
	program := needs.Built(t, r.program)
	if r.own != "" {
		program = r.own
	}
	args = append(append(append(args, "-o", run, "--"), r.before...), program, name)
	cmd := exec.CommandContext(t.Context(), needs.Built(t, "bin/sigmatrace"), args...)
	cmd.Env = append(append(os.Environ(), "SOFTHCA_DEVX=1", "SOFTHCA_SHM="+filepath.Join(dir, "hca"), "SOFTHCA_STATS="+stats, "LD_LIBRARY_PATH="+lib), r.env...)
	cmd.WaitDelay = 10 * time.Second
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
	if r.look != nil {
		r.look(run)
	}
	if r.dies {
		return string(out), &info, nil
	}
	return string(out), &info, counted(t, stats)
}

// record runs a case of gpu_check.
func record(t *testing.T, mode, name string) (*merge.Info, map[string]traffic) {
	t.Helper()
	_, info, want := recording{program: "softhca/gpu_check", mode: mode}.run(t, name)
	return info, want
}
