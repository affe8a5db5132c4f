package merge_test

import (
	"bytes"
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/capture"
)

// A capture without an end mark whose process is alive is of a run that goes on; another process with its pid is not it.
func TestStillRunning(t *testing.T) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	var ns syscall.Stat_t
	if err := syscall.Stat("/proc/self/ns/pid", &ns); err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')'):])) // the third field of the file is the second here
	start, err := strconv.ParseUint(fields[22-2], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for reason, started := range map[string]uint64{"still running": start, "no end mark": start + 1} {
		r := newRig(t)
		p := r.process("n1", uint32(os.Getpid()), 0, func(h *capture.Header) {
			id, _ := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(boot)), "-", ""))
			copy(h.BootID[:], id)
			h.PidNamespace, h.StartTime = ns.Ino, started
		})
		p.pairs(hz)
		if err := p.end(true); err != nil {
			t.Fatal(err)
		}
		if x := r.open(merge.Options{}).Info().Ranks.Incomplete; len(x) != 1 || x[0].Reason != reason {
			t.Errorf("incomplete %v, want %s", x, reason)
		}
	}
}
