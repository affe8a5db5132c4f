package merge_test

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
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

// Where Slurm saw a task's end, that is told of a capture without an end mark; not of what the task started, nor of another node's process with the number.
func TestEndOfATask(t *testing.T) {
	r := newRig(t)
	for rank, host := range []string{"n1.site", "n1.site", "n1.site", "n2.site"} {
		p := r.process(host, 100+uint32(rank%3), int64(rank))
		p.pairs(hz)
		if err := p.end(true); err != nil {
			t.Fatal(err)
		}
	}
	r.procs = nil
	if err := r.dir.MakeTasks(); err != nil {
		t.Fatal(err)
	}
	lines := "task=0 pid=100 status=9 of=3\ntask=1 pid=101 status=768 of=3\n"
	if err := os.WriteFile(filepath.Join(r.dir.TasksPath(), "n1"), []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []string{"no end mark (the task ended by SIGKILL)", "no end mark (the task ended with status 3)", "no end mark", "no end mark"}
	var got []string
	for _, x := range r.open(merge.Options{}).Info().Ranks.Incomplete {
		got = append(got, x.Reason)
	}
	if !slices.Equal(got, want) {
		t.Errorf("reasons %q, want %q", got, want)
	}
}
