package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/tests/needs"
	"github.com/sigmatrace/sigmatrace/tests/ondisk"
	"github.com/sigmatrace/sigmatrace/tests/tp"
)

// burst is a burst-client under sigmatrace launch, at work: it publishes how many of its requests were accepted.
type burst struct {
	*run
	cmd  *exec.Cmd
	out  bytes.Buffer
	file string
	pid  int // of the client
}

var bursts = map[string]spec{
	"ucp":   {providers: "ucx", noCount: true, env: []string{"UCX_TLS=self"}},
	"verbs": {providers: "ibverbs", noCount: true, hca: true},
}

// startBurst starts one and waits until it has made some requests.
func startBurst(t *testing.T, layer, mode string, options ...string) *burst {
	t.Helper()
	return startBurstLike(t, layer, mode, options, "-t", "100")
}

// startBurstLike starts one with options of its own.
func startBurstLike(t *testing.T, layer, mode string, options []string, own ...string) *burst {
	t.Helper()
	s := bursts[layer]
	s.mode, s.options = mode, options
	b := &burst{run: newRun(t, s)}
	b.file = filepath.Join(b.dir, "published")
	b.cmd = b.command(append([]string{built(t, "tests/burst-client"), "-l", layer, "-f", b.file}, own...)...)
	b.cmd.Stdout, b.cmd.Stderr = &b.out, &b.out
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.cmd.Process.Signal(syscall.SIGTERM) }) // forwarded, where both are still there
	await(t, "the first requests of burst-client", func() bool { return b.published() > 1000 })
	b.pid = childOf(t, b.cmd.Process.Pid, "burst-client")
	return b
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// sent is how many tagged messages each process has sent, as far as its tables are on the disk.
func (r *run) sent() []uint64 {
	return ondisk.Counted(filepath.Join(r.path, "capture"), catalogue.EventUcpTagSend)
}

func (b *burst) published() uint64 {
	text, err := os.ReadFile(b.file)
	if err != nil || len(text) < 8 {
		return 0
	}
	return binary.LittleEndian.Uint64(text)
}

// wait waits for the launch to end.
func (b *burst) wait() {
	b.t.Helper()
	b.status = statusOf(b.t, b.cmd, b.cmd.Wait())
	b.stderr = b.out.String()
}

// childOf finds the descendant of a process that runs a program.
func childOf(t *testing.T, parent int, program string) int {
	t.Helper()
	for _, pid := range descendants(parent) {
		if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && strings.TrimSpace(string(name)) == program {
			return pid
		}
	}
	t.Fatalf("process %d has no descendant %s", parent, program)
	return 0
}

func descendants(parent int) (all []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	for _, l := range lists {
		text, _ := os.ReadFile(l)
		for _, f := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(f); err == nil {
				all = append(append(all, pid), descendants(pid)...)
			}
		}
	}
	return all
}

// kept holds that all accepted requests are there, but for the one that was being made: its call may have been accepted and not yet
// published, or published and not yet recorded. The name is that of the layer's request in full mode.
func (b *burst) kept(i *info, layer string) {
	b.t.Helper()
	op, event, published := "put", "ucp_put", b.published()
	if layer == "verbs" {
		op, event = "write", "verbs_write"
	}
	counts := map[string]uint64{"counts": i.Operations[layer][op].Count}
	switch b.spec.mode {
	case "full":
		counts["events"] = i.Events.ByName[event]
		if layer == "ucp" { // each put is one of UCT's as well
			counts["counts of UCT"], counts["events of UCT"] = i.Operations["uct"]["put"].Count, i.Events.ByName["uct_put"]
		}
	case "simple":
		counts["calls"] = i.Events.ByName[layer+"_call"]
	}
	for what, n := range counts {
		if n+1 < published || n > published+1 {
			b.t.Errorf("%s: %d requests kept of %d that were accepted", what, n, published)
		}
	}
	// A kill may come between the two additions of the last request.
	if v := i.Operations[layer][op]; v.Bytes != 64*v.Count && v.Bytes+64 != 64*v.Count && v.Bytes != 64*v.Count+64 {
		b.t.Errorf("%d bytes in %d requests of 64", v.Bytes, v.Count)
	}
}

// F39, F41, F42, F72: a process that is killed while it sends as fast as it can loses at most the request it was making, and leaves
// nothing behind.
func TestKilled(t *testing.T) {
	signals := []syscall.Signal{syscall.SIGKILL}
	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	for layer := range bursts {
		for _, mode := range needs.Modes() {
			for n := range rounds {
				sig := append(signals, syscall.SIGTERM, syscall.SIGKILL)[n]
				t.Run(fmt.Sprintf("%s/%s/%d", layer, mode, n), func(t *testing.T) {
					b := startBurst(t, layer, mode)
					time.Sleep(time.Duration(1+20*n) * time.Millisecond) // anywhere in the burst
					if sig == syscall.SIGTERM {
						b.cmd.Process.Signal(sig) // the launcher hands it on
					} else if err := syscall.Kill(b.pid, sig); err != nil {
						t.Fatal(err)
					}
					b.wait()
					if b.status != 128+int(sig) {
						t.Errorf("launch ended with %d\n%s", b.status, b.stderr)
					}
					i := b.info()
					b.kept(i, layer)
					if len(i.Ranks.Incomplete) != 1 || i.Ranks.Incomplete[0].Pid == nil || *i.Ranks.Incomplete[0].Pid != b.pid ||
						!strings.Contains(i.Ranks.Incomplete[0].Reason, "no end mark") || !strings.Contains(i.Ranks.Incomplete[0].Reason, map[syscall.Signal]string{
						syscall.SIGKILL: "SIGKILL", syscall.SIGTERM: "SIGTERM"}[sig]) {
						t.Errorf("incomplete: %+v, want process %d and why", i.Ranks.Incomplete, b.pid)
					}
					if !i.Exact || len(i.Damaged) != 0 || i.Lost.Events != 0 {
						t.Errorf("not only cut off: %+v", i)
					}
					_, errs, status := execute(t, sigmatrace(t, "merge", b.path))
					if status != 3 || !strings.Contains(errs, fmt.Sprint("pid ", b.pid)) {
						t.Errorf("merge ended with %d: %s", status, errs)
					}
					if mode == "full" && n == 0 && !testing.Short() {
						tp.Need(t)
						if err := tp.Check(filepath.Join(b.path, "trace.pftrace")); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
	}
}

// F67, F72: one rank of a job is killed: it is named, and the others' messages are there.
func TestKilledRank(t *testing.T) {
	r := newRun(t, spec{mode: "full", providers: "ucx", noCount: true, env: transports["shm"]})
	cmd := r.command(r.mpirun(3, built(t, "tests/mpi-app"), "-n", "1000000")...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Signal(syscall.SIGTERM)
	captures := func() []string { names, _ := filepath.Glob(filepath.Join(r.path, "capture/*/*.capture")); return names }
	await(t, "three ranks that communicate", func() bool { n := r.sent(); return len(n) == 3 && slices.Min(n) >= 100 })
	victim := 0
	for _, pid := range descendants(cmd.Process.Pid) {
		if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); err == nil && strings.Contains(string(env), "OMPI_COMM_WORLD_RANK=1\x00") {
			victim = pid
		}
	}
	if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
		t.Fatalf("%d: %v\n%s", victim, err, out.String())
	}
	if status := statusOf(t, cmd, cmd.Wait()); status != 137 {
		t.Errorf("launch ended with %d, mpirun does with 137\n%s", status, out.String())
	}
	i := r.info()
	found := false
	for _, x := range i.Ranks.Incomplete {
		found = found || x.Rank != nil && *x.Rank == 1 && x.Pid != nil && *x.Pid == victim && strings.Contains(x.Reason, "no end mark")
	}
	if !found || i.Ranks.Active != 3 || *i.Ranks.Expected != 3 || i.Ranks.Complete > 2 {
		t.Errorf("ranks %+v, rank 1 was process %d", i.Ranks, victim)
	}
	if sends := i.Operations["ucp"]["tag_send"].Count; i.Flows.Matched == 0 || i.Flows.Matched > sends || i.Flows.Matched+1000 < sends {
		t.Errorf("%d of %d messages matched: only those under way when the job was killed may be missing; %v", i.Flows.Matched, sends, i.Flows.Unmatched)
	}
	for _, path := range captures() {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	if _, _, status := execute(t, sigmatrace(t, "merge", r.path)); status != 3 {
		t.Errorf("merge ended with %d", status)
	}
}

// F41: a run can be merged while its program still runs, and again afterwards.
func TestMergeWhileRunning(t *testing.T) {
	b := startBurstLike(t, "ucp", "full", nil, "-t", "100", "-w", "20") // one that goes as fast as it can has ever more to merge where others have the processors
	before := b.published()
	_, errs, status := execute(t, sigmatrace(t, "merge", b.path))
	if status != 3 || !strings.Contains(errs, "still running") {
		t.Errorf("merge ended with %d: %s", status, errs)
	}
	i := b.info()
	if n := i.Events.ByName["ucp_put"]; n+1 < before || n > b.published()+1 {
		t.Errorf("%d requests merged, %d were made before and %d now", n, before, b.published())
	}
	if len(i.Damaged) != 0 || i.Lost.Events != 0 {
		t.Errorf("a running program's capture: %+v", i)
	}
	if err := syscall.Kill(b.pid, syscall.SIGSTOP); err != nil { // so that there is not ever more to merge
		t.Fatalf("the program has ended already: %v", err)
	}
	again := b.info("--again")
	if n := again.Operations["ucp"]["put"].Count; n < i.Operations["ucp"]["put"].Count {
		t.Errorf("info --again has %d requests, the merge before it %d", n, i.Operations["ucp"]["put"].Count)
	}
	syscall.Kill(b.pid, syscall.SIGKILL)
	b.wait()
	b.kept(b.info(), "ucp")
}
