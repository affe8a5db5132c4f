package merge

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sigmatrace/sigmatrace/merge/capture"
)

// Ranks counts the ranks of a run by how far each got.
type Ranks struct {
	Expected   *int         `json:"expected"` // null where neither launcher nor MPI told
	Injected   int          `json:"injected"` // the recorder was loaded
	Excluded   int          `json:"excluded"` // left out by the profile's [ranks] or [processes]
	Idle       int          `json:"idle"`     // made no call of the recorded libraries: no capture, and the command succeeded
	Active     int          `json:"active"`   // there is a capture
	Complete   int          `json:"complete"` // its captures came to an orderly end and lost nothing
	Incomplete []Incomplete `json:"incomplete"`
	Components int          `json:"components,omitempty"` // several that have ranks of the same number, which are counted once: 0 where none have
}

// Incomplete is a rank, or a process without one, that is not complete. Host and Pid are null where the process was never seen;
// neighbours of which none was seen share an entry, since there may be millions.
type Incomplete struct {
	Rank     *int64  `json:"rank"`
	LastRank *int64  `json:"last_rank"` // null for a single rank
	Host     *string `json:"host"`
	Pid      *uint32 `json:"pid"`
	Reason   string  `json:"reason"`
}

// Count is how many ranks, or processes without one, the entry stands for.
func (x *Incomplete) Count() int {
	if x.LastRank == nil {
		return 1
	}
	return int(*x.LastRank - *x.Rank + 1)
}

// Processes counts the processes that left a capture.
type Processes struct {
	Total       int `json:"total"`
	WithoutRank int `json:"without_rank"`
	Complete    int `json:"complete"`
}

// Reasons why a process is not complete.
const (
	reasonNotInjected = "not injected"
	reasonNoCapture   = "no capture"
	reasonFailed      = "no capture could be made"
	reasonNoEndMark   = "no end mark"
	reasonRunning     = "still running"
	// The written back end fails silently where the program can no longer reach its own files, after chroot(2) or setuid(2).
	reasonUnwritten = ", written back end: what it recorded after its last write is missing"
	reasonBehind    = "its latest records are in memory of its host: sigmatrace merge or collect brings them home there"
)

func (p *process) rank() *int64 {
	if p.header.Rank < 0 {
		return nil
	}
	return &p.header.Rank
}

// ranks tells how far each rank got.
func (in *inventory) ranks() (Ranks, Processes) {
	r := Ranks{Incomplete: []Incomplete{}, Expected: in.expected()}
	var count Processes
	injected, active, broken := map[int64]bool{}, map[int64]bool{}, map[int64]bool{}
	excluded := in.excluded()
	for _, a := range in.alive {
		if a.Rank >= 0 {
			injected[a.Rank] = true
		}
	}
	for i, p := range in.processes {
		count.Total++
		reason := in.reason(i)
		if reason == "" {
			count.Complete++
		} else {
			r.Incomplete = append(r.Incomplete, Incomplete{Rank: p.rank(), Host: &p.header.Hostname, Pid: &p.header.Pid, Reason: reason})
		}
		if p.header.Rank < 0 {
			count.WithoutRank++
			continue
		}
		injected[p.header.Rank], active[p.header.Rank] = true, true
		broken[p.header.Rank] = broken[p.header.Rank] || reason != ""
	}
	for _, d := range in.damaged {
		if !strings.HasSuffix(d.File, capture.Extension) {
			continue
		}
		entry := Incomplete{Reason: "capture cannot be read: " + d.Reason}
		if pid, start, ok := fromName(d.File); ok {
			entry.Pid = &pid
			if a := in.aliveOf(filepath.Base(filepath.Dir(d.File)), pid, start); a != nil {
				entry.Rank, entry.Host = &a.Rank, &a.Hostname
				active[a.Rank], broken[a.Rank] = true, true
			}
		}
		r.Incomplete = append(r.Incomplete, entry)
	}
	for rank := range injected {
		switch {
		case active[rank]:
			continue
		case excluded[rank]:
			r.Excluded++
			continue
		}
		a, reason := in.silent(rank)
		if reason == "" {
			r.Idle++
			continue
		}
		r.Incomplete = append(r.Incomplete, Incomplete{Rank: &a.Rank, Host: &a.Hostname, Pid: &a.Pid, Reason: reason})
	}
	if r.Expected != nil {
		r.Incomplete = append(r.Incomplete, missing(injected, int64(*r.Expected))...)
	}
	if count.Total == 0 && len(r.Incomplete) == 0 && r.Excluded+r.Idle == 0 {
		r.Incomplete = append(r.Incomplete, Incomplete{Reason: reasonNoCapture})
	}
	if of := in.components(); of != nil {
		r.Components = slices.Max(of) + 1
	}
	r.Injected, r.Active = len(injected), len(active)
	for rank := range active {
		if !broken[rank] {
			r.Complete++
		}
	}
	slices.SortStableFunc(r.Incomplete, func(a, b Incomplete) int {
		key := func(i Incomplete) int64 {
			if i.Rank == nil {
				return 1<<63 - 1
			}
			return *i.Rank
		}
		return cmp.Compare(key(a), key(b))
	})
	return r, count
}

// missing lists the ranks below expected that no process claimed, neighbours together.
func missing(injected map[int64]bool, expected int64) []Incomplete {
	var all []Incomplete
	for rank := int64(0); rank < expected; rank++ {
		if injected[rank] {
			continue
		}
		first := rank
		for rank+1 < expected && !injected[rank+1] {
			rank++
		}
		x := Incomplete{Rank: &first, Reason: reasonNotInjected}
		if last := rank; last > first {
			x.LastRank = &last
		}
		all = append(all, x)
	}
	return all
}

// excluded returns the ranks of which the profile left out all processes.
func (in *inventory) excluded() map[int64]bool {
	out := map[int64]bool{}
	for _, a := range in.alive {
		if a.Rank >= 0 && a.State&(capture.RankExcluded|capture.ProcessExcluded) != 0 {
			if _, seen := out[a.Rank]; !seen {
				out[a.Rank] = true
			}
		} else if a.Rank >= 0 {
			out[a.Rank] = false
		}
	}
	return out
}

// silent returns a process of a rank without a capture, and why it is incomplete: "" where it made no call that would be recorded. The first
// such call makes the capture; what is not known is whether a rank lived on where the command did not succeed.
func (in *inventory) silent(rank int64) (a *alive, reason string) {
	for i := range in.alive {
		x := &in.alive[i]
		if x.Rank != rank {
			continue
		}
		if x.State&capture.CaptureFailed != 0 {
			return x, reasonFailed
		}
		if a == nil {
			a = x
		}
	}
	if m := in.manifest; m != nil && m.Run.Status != nil && *m.Run.Status == 0 {
		return a, ""
	}
	return a, reasonNoCapture
}

// reached tells whether the recorder reached every process that it was to record: no rank went without it, and none failed to make its capture.
func (in *inventory) reached() bool {
	seen := map[int64]bool{}
	for _, a := range in.alive {
		if a.State&capture.CaptureFailed != 0 {
			return false
		}
		seen[a.Rank] = true
	}
	for _, p := range in.processes {
		seen[p.header.Rank] = true
	}
	if n := in.expected(); n != nil {
		for rank := range int64(*n) {
			if !seen[rank] {
				return false
			}
		}
	}
	return true
}

// maxRanks bounds what a damaged header may claim the number of ranks to be.
const maxRanks = 1 << 22

// expected returns the number of ranks that the launcher counted, else the one that MPI told the processes.
func (in *inventory) expected() *int {
	if in.manifest != nil && in.manifest.Run.ExpectedRanks != nil && *in.manifest.Run.ExpectedRanks <= maxRanks {
		return in.manifest.Run.ExpectedRanks
	}
	world := int64(-1)
	for _, p := range in.processes {
		world = max(world, p.header.World)
	}
	for _, a := range in.alive {
		world = max(world, a.World)
	}
	if world <= 0 || world > maxRanks {
		return nil
	}
	n := int(world)
	return &n
}

func (in *inventory) aliveOf(node string, pid uint32, start uint64) *alive {
	for i := range in.alive {
		if a := &in.alive[i]; a.node == node && a.Pid == pid && a.StartTime == start {
			return a
		}
	}
	return nil
}

// reason tells why a process is not complete, "" where it is.
func (in *inventory) reason(i int) string {
	p := in.processes[i]
	var reasons []string
	if p.live.EndMark == capture.EndNone && !in.replaced(i) {
		reason := reasonNoEndMark
		switch m := in.manifest; {
		case p.alive:
			reason = reasonRunning
		case m != nil && m.Run.Signal != nil && m.Run.Dialect == "plain":
			reason += fmt.Sprintf(" (the command ended by %s)", *m.Run.Signal)
		default:
			reason += in.taskEnd(p)
		}
		if p.header.BackEnd == capture.Written {
			reason += reasonUnwritten
		}
		reasons = append(reasons, reason)
	}
	if p.behind() {
		reasons = append(reasons, reasonBehind)
	}
	if p.live.LostEvents > 0 {
		reason := "lost events: " + p.live.LostCause.String()
		if p.live.LostErrno != 0 {
			reason += " (" + syscall.Errno(p.live.LostErrno).Error() + ")"
		}
		reasons = append(reasons, reason)
	}
	if p.live.LostTables > 0 {
		reasons = append(reasons, "lost counts: totals are a lower bound")
	}
	if n := p.live.LostDefinitions; n > 0 {
		reasons = append(reasons, fmt.Sprintf("lost definitions: %d", n))
	}
	if n := p.live.LostObjects; n > 0 {
		reasons = append(reasons, fmt.Sprintf("more objects than the recorder has places for: %d", n))
	}
	if n := p.live.Unplaced; n > 0 {
		reasons = append(reasons, fmt.Sprintf("tables full: %d calls are counted without their endpoint", n))
	}
	if len(p.problems) > 0 {
		reasons = append(reasons, "damaged: "+p.problems[0].Error())
	} else if p.gap {
		reasons = append(reasons, "chunks are missing")
	}
	return strings.Join(reasons, "; ")
}

// taskEnd is what Slurm saw of the end of a process that was a task itself: of what a task started, nobody tells.
func (in *inventory) taskEnd(p *process) string {
	end, known := in.tasks.EndOf(p.header.Hostname, p.header.Pid)
	switch {
	case !known:
		return ""
	case end.Signaled():
		return fmt.Sprintf(" (the task ended by %s)", unix.SignalName(end.Signal()))
	}
	return fmt.Sprintf(" (the task ended with status %d)", end.ExitStatus())
}

// replaced tells whether the process went on as another program: exec leaves no end mark, and what was recorded before it is whole.
func (in *inventory) replaced(i int) bool {
	h := &in.processes[i].header
	for _, q := range in.processes[i+1:] {
		if q.node != in.processes[i].node || q.header.Pid != h.Pid {
			return false
		}
		if q.header.StartTime == h.StartTime && q.header.PidNamespace == h.PidNamespace && q.header.Image > h.Image {
			return true
		}
	}
	return false
}

// running tells whether a capture's process is alive on this machine.
func running(h *capture.Header) bool {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || strings.ReplaceAll(strings.TrimSpace(string(boot)), "-", "") != fmt.Sprintf("%x", h.BootID) {
		return false
	}
	var ns syscall.Stat_t
	if syscall.Stat("/proc/self/ns/pid", &ns) != nil || ns.Ino != h.PidNamespace {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.Pid))
	if err != nil {
		return false
	}
	// The second field, the program's name, may hold anything: fields are counted from its closing parenthesis.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	const startTime, state = 22 - 3, 0
	if len(fields) <= startTime || fields[state] == "Z" {
		return false
	}
	start, err := strconv.ParseUint(fields[startTime], 10, 64)
	return err == nil && start == h.StartTime
}

// Complete tells whether every expected rank is there, whole, and nothing was lost.
func (i *Info) Complete() bool { return len(i.Ranks.Incomplete) == 0 && len(i.Damaged) == 0 }
