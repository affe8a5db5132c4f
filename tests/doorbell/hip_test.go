package doorbell

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/tests/needs"
)

// recordHIP runs a case of hip_check under the recorder, and returns the run's account and what the adapter counted.
func recordHIP(t *testing.T, mode, name string, env ...string) (*merge.Info, map[string]traffic) {
	t.Helper()
	dir := t.TempDir()
	out, stats := filepath.Join(dir, "run"), filepath.Join(dir, "stats")
	program := needs.Built(t, "hip/hip_check")
	cmd := exec.CommandContext(t.Context(), needs.Built(t, "bin/sigmatrace"), "launch", "-p", mode, "--providers", "cuda", "-o", out, "--", program, name)
	cmd.Env = append(append(os.Environ(), env...), "SOFTHCA_DEVX=1", "SOFTHCA_SHM="+filepath.Join(dir, "hca"), "SOFTHCA_STATS="+stats,
		"LD_LIBRARY_PATH="+filepath.Dir(needs.Built(t, "softhca/libibverbs.so.1"))+":"+filepath.Dir(program))
	cmd.WaitDelay = 10 * time.Second
	text, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(text), "ok "+name+"\n") {
		t.Fatalf("%s: %v\n%s", name, err, text)
	}
	text, err = exec.CommandContext(t.Context(), needs.Built(t, "bin/sigmatrace"), "info", "--json", out).Output()
	if err != nil {
		t.Fatal(err)
	}
	info, err := merge.ParseInfo(text)
	if err != nil {
		t.Fatal(err)
	}
	return info, counted(t, stats)
}

// Every element that the adapter executed is seen once: of queues in a GPU's memory and, as rocSHMEM's are, in the host's, with doorbells from HIP, whichever way its functions were found,
// and from HSA, from where rocSHMEM has them. ROCm 6 and 7 differ in what a thread's last error is.
func TestHIPEveryElementOnce(t *testing.T) {
	for _, name := range []string{"linked", "asked", "rocshmem"} {
		for mode, version := range map[string]string{"aggregate": "70051831", "full": "60443482"} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				info, want := recordHIP(t, mode, name, "STANDIN_HIP="+version)
				total := int64(0)
				for operation, w := range want {
					if got := info.Operations["doorbell"][operation]; int64(got.Count) != w.Count || int64(got.Bytes) != w.Bytes {
						t.Errorf("%s: %d of %d bytes in all, the adapter counted %d of %d", operation, got.Count, got.Bytes, w.Count, w.Bytes)
					}
					total += w.Count
				}
				if total != 2020 {
					t.Errorf("the adapter counted %d requests, the kernel made 2020", total)
				}
				if info.Lost.Events != 0 || !info.Exact {
					t.Errorf("lost: %+v, exact: %v", info.Lost, info.Exact)
				}
				// The peer's queue is made, and never rung.
				if len(info.Blind) != 1 {
					t.Errorf("not seen: %+v", info.Blind)
				}
			})
		}
	}
}

// Memory goes before the queue that lies in it, with an error that the program has not asked for yet: what was rung for is read before, by a slow driver too.
func TestHIPMemoryFirst(t *testing.T) {
	for _, version := range []string{"70051831", "60443482"} {
		info, want := recordHIP(t, "full", "memory_first", "STANDIN_HIP="+version, "STANDIN_TO_HOST=20000")
		if got := info.Operations["doorbell"]["write"]; int64(got.Count) != want["write"].Count || info.Lost.Events != 0 {
			t.Errorf("%s: %d of %d writes, %d lost", version, got.Count, want["write"].Count, info.Lost.Events)
		}
	}
}

// Before ROCm 6 kinds of memory had other numbers: pages are left alone then, the program runs as it does, and its queues are named.
func TestHIPBeforeROCm6(t *testing.T) {
	info, want := recordHIP(t, "full", "linked", "STANDIN_HIP=50731921")
	if want["write"].Count != 2000 {
		t.Errorf("the adapter counted %v", want)
	}
	if n := len(info.Operations["doorbell"]); n != 0 || len(info.Blind) != 2 {
		t.Errorf("%d operations of layer doorbell, not seen: %+v", n, info.Blind)
	}
}

// Launches are counted in every mode, whichever way the function was found; one that HIP refused is not, and the program is told of it as without us.
func TestHIPLaunches(t *testing.T) {
	for _, mode := range []string{"aggregate", "full"} {
		info, _ := recordHIP(t, mode, "launches")
		if g := info.GPUs; g == nil || g.Launches != 9 || len(g.Devices) != 1 || g.Devices[0].UUID != "GPU-5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a01" {
			t.Errorf("%s: %+v, want 9 launches on the second GPU", mode, g)
		}
		if n := info.Events.ByName["gpu_launch"]; (mode == "full") != (n == 9) {
			t.Errorf("%s: %d events", mode, n)
		}
	}
}
