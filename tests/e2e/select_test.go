package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/match"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/tests/needs"
)

func notQuick(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
}

// account is what the merge says, as its package has it.
func (r *run) account() *merge.Info {
	r.t.Helper()
	out, errs, status := execute(r.t, sigmatrace(r.t, "info", "--json", r.path))
	i, err := merge.ParseInfo([]byte(out))
	if status != 0 || err != nil {
		r.t.Fatalf("info ended with %d: %v\n%s", status, err, errs)
	}
	return i
}

// posts are the times of all operations of a layer, in order.
func (r *run) posts(layer string) (all []time.Time) {
	r.t.Helper()
	dir, err := rundir.Open(r.path)
	if err != nil {
		r.t.Fatal(err)
	}
	m, err := merge.Open(r.t.Context(), dir, merge.Options{})
	if err != nil {
		r.t.Fatal(err)
	}
	defer m.Close()
	for i := range m.Run().Partitions {
		err := m.Partition(r.t.Context(), i, func(batch []ops.Op) error {
			for _, op := range batch {
				if m.Run().Endpoints[op.Endpoint].Layer == layer {
					all = append(all, time.Unix(0, op.Post))
				}
			}
			return nil
		})
		if err != nil {
			r.t.Fatal(err)
		}
	}
	return all
}

// epochsAddUp holds the sums of the account's and the matrix's epochs against the totals, and returns the matrix.
func (r *run) epochsAddUp(i *merge.Info) *merge.Matrix {
	r.t.Helper()
	m := &merge.Matrix{}
	readJSON(r.t, filepath.Join(r.path, "matrix.json"), m)
	for layer, operations := range i.Operations {
		for op, want := range operations {
			var got merge.Count
			for _, e := range i.Epochs {
				got.Count += e.Operations[layer][op].Count
				got.Bytes += e.Operations[layer][op].Bytes
			}
			if got != want {
				r.t.Errorf("%s of layer %s: %v in all epochs, %v in all", op, layer, got, want)
			}
		}
		rows := map[string]merge.Count{}
		add := func(row merge.PartyRow, sign uint64) {
			key := fmt.Sprint(row.Source, row.Destination, row.Operation)
			c := rows[key]
			rows[key] = merge.Count{Count: c.Count + sign*row.Count, Bytes: c.Bytes + sign*row.Bytes}
		}
		for _, row := range m.Layers[layer].Rank {
			add(row, 1)
		}
		for _, e := range m.Epochs {
			if l := e.Layers[layer]; l != nil {
				for _, row := range l.Rank {
					add(row, ^uint64(0))
				}
			}
		}
		for key, c := range rows {
			if c != (merge.Count{}) {
				r.t.Errorf("%s: the epochs' matrices and that of the run differ by %v", key, c)
			}
		}
	}
	return m
}

func epochNames(i *merge.Info) (names []string) {
	for _, e := range i.Epochs {
		names = append(names, e.Name)
	}
	return names
}

// By the commands of `sigmatrace window` a running program's events are recorded between them only, and its counts all the time.
func TestWindowByCommand(t *testing.T) {
	notQuick(t)
	for layer, op := range map[string]string{"ucp": "put", "verbs": "write"} {
		t.Run(layer, func(t *testing.T) {
			b := startBurstLike(t, layer, "simple", []string{"--set", "window.start=closed"}, "-t", "100", "-w", "20")
			command := func(word string) time.Time {
				t.Helper()
				before := time.Now()
				if _, errs, status := execute(t, sigmatrace(t, "window", word, b.path)); status != 0 {
					t.Fatalf("window %s ended with %d: %s", word, status, errs)
				}
				return before
			}
			// noticed waits until the program has noticed so many changes of its window, the first at its begin, and has made requests after that.
			noticed := func(changes int) time.Time {
				t.Helper()
				await(t, "the program to notice", func() bool { return b.windows() >= changes })
				at, n := time.Now(), b.published()
				await(t, "more requests", func() bool { return b.published() > n+1000 })
				return at
			}
			noticed(1)
			on := command("start")
			opened := noticed(2)
			off := command("stop")
			closed := noticed(3)
			syscall.Kill(b.pid, syscall.SIGKILL)
			b.wait()
			i, n := b.account(), b.published()
			// A request that was accepted and not counted when the kill came is missing by one in either.
			if got := i.Operations[layer][op].Count; got+1 < n || got > n+1 {
				t.Errorf("%d counted, %d published", got, n)
			}
			all := b.posts(layer)
			if len(all) == 0 {
				t.Fatalf("nothing was recorded in the window\n%s", b.stderr)
			}
			first, last := all[0], all[len(all)-1]
			const apart = 10 * time.Millisecond // from the recording clock's times to ours
			if first.Before(on) || first.After(off) || last.Before(opened) || last.After(closed.Add(apart)) || uint64(len(all)) >= n {
				t.Errorf("%d events of %d requests, from %v after the start to %v after the stop", len(all), n, first.Sub(on), last.Sub(off))
			}
			t.Logf("reacted after %v and %v", first.Sub(on), last.Sub(off))
			if w := i.Windowed; w == nil || w.Processes != 1 || w.RecordedNS <= 0 || w.RecordedNS >= w.LivedNS {
				t.Errorf("windowed: %+v", w)
			}
			if i.Lost.Events != 0 {
				t.Errorf("%d events lost", i.Lost.Events)
			}
			if names := epochNames(i); !slices.Equal(names, []string{"outside window", "window 1"}) {
				t.Errorf("epochs %v", names)
			}
			b.epochsAddUp(i)
			if _, errs, status := execute(t, sigmatrace(t, "window", "start", b.path)); status != 1 || !strings.Contains(errs, "has ended") {
				t.Errorf("window start after the end: %d, %s", status, errs)
			}
		})
	}
}

// A program that makes a few calls a second has its window too: it does not look for an edge after a thousand calls only.
func TestWindowOfASlowProgram(t *testing.T) {
	notQuick(t)
	r := newRun(t, bursts["ucp"])
	r.spec.mode, r.spec.options = "simple", []string{"--set", "window.delay=3s"}
	r.launch(built(t, "tests/burst-client"), "-l", "ucp", "-f", filepath.Join(r.dir, "published"), "-n", "300", "-w", "20000").succeed()
	if i := r.account(); i.Events.Total == 0 || i.Operations["ucp"]["put"].Count != 300 {
		t.Errorf("%d events of %v", i.Events.Total, i.Operations["ucp"])
	}
}

// The window of the profile: by time from the run's start, and by number.
func TestWindowOfTheProfile(t *testing.T) {
	notQuick(t)
	r := newRun(t, bursts["ucp"])
	// From the launch on, and the program's start may take seconds; late is for how long it may stand still at the end.
	const delay, duration, late = 2 * time.Second, 6 * time.Second, 6 * time.Second
	r.spec.mode, r.spec.options = "full", []string{"--set", "window.delay=" + delay.String(), "--set", "window.duration=" + duration.String()}
	r.launch(built(t, "tests/burst-client"), "-l", "ucp", "-f", filepath.Join(r.dir, "published"), "-t", "15", "-w", "200").succeed()
	var m struct{ Run struct{ Start time.Time } }
	readJSON(t, filepath.Join(r.path, "manifest.json"), &m)
	i, all := r.account(), r.posts("ucp")
	if len(all) == 0 || i.Operations["ucp"]["put"].Count <= uint64(len(all)) {
		t.Fatalf("%d events of %v", len(all), i.Operations["ucp"])
	}
	// Nothing comes before its time, whatever the load; the end is noticed by the calls.
	if first, last := all[0].Sub(m.Run.Start), all[len(all)-1].Sub(m.Run.Start); first < delay || last > delay+duration+late {
		t.Errorf("recorded from %v to %v", first, last)
	}
	names := epochNames(i)
	slices.Sort(names) // the window's is the first where it was open when the program began
	if !slices.Equal(names, []string{"outside window", "window"}) {
		t.Errorf("epochs %v", names)
	}
	r.epochsAddUp(i)
	for _, mode := range []string{"simple", "full"} {
		for _, most := range []int64{50, 5000} {
			r := newRun(t, bursts["ucp"])
			r.spec.mode, r.spec.options = mode, []string{"--set", fmt.Sprint("window.max_events=", most)}
			r.launch(built(t, "tests/burst-client"), "-l", "ucp", "-f", filepath.Join(r.dir, "published"), "-n", "20000").succeed()
			i := r.account()
			if i.Events.Total != most || i.Operations["ucp"]["put"].Count != 20000 || !i.Exact || i.Windowed == nil || i.Windowed.MaxEvents != 1 {
				t.Errorf("%s: %d events of %d, %v, exact %v, windowed %+v", mode, i.Events.Total, most, i.Operations["ucp"], i.Exact, i.Windowed)
			}
		}
	}
}

// Epochs of an interval begin at its multiples by the wall clock, for all ranks; those of a mark are shared by name. Both add up.
func TestEpochsOfRanks(t *testing.T) {
	notQuick(t)
	const interval = 50 * time.Millisecond
	for _, mode := range []string{"aggregate", "simple"} {
		r := newRun(t, spec{mode: mode, providers: "ucx", env: transports["shm"], options: []string{"--set", "epoch.interval=" + interval.String()}})
		r.launch(r.mpirun(4, built(t, "tests/mpi-app"), "-n", "1000")...).succeed()
		i := r.account()
		equal(t, "operations", r.info().layer("ucp"), sum(r.truth("ucp")))
		if len(i.Epochs) < 2 {
			t.Fatalf("epochs: %+v", i.Epochs)
		}
		shared := 0
		for _, e := range i.Epochs {
			if e.StartNS == nil || *e.StartNS%int64(interval) != 0 || e.Kind != "interval" {
				t.Errorf("epoch %+v", e)
			}
			if e.Processes == 4 {
				shared++
			}
		}
		if shared == 0 {
			t.Errorf("no epoch is of all ranks: %+v", i.Epochs)
		}
		r.epochsAddUp(i)
	}
	r := newRun(t, spec{mode: "simple", providers: "ucx", env: transports["shm"]})
	r.launch(r.mpirun(4, built(t, "tests/mpi-app"), "-n", "10", "-m")...).succeed()
	i := r.account()
	if names := epochNames(i); !slices.Equal(names, []string{"start", "rounds", "end"}) || i.Epochs[1].Processes != 4 || i.Epochs[2].Processes != 4 {
		t.Errorf("epochs: %+v", i.Epochs)
	}
	// The ring alone is 10 rounds of 6 messages a rank.
	if c := i.Epochs[1].Operations["ucp"]["tag_send"]; c.Count < 240 {
		t.Errorf("in the rounds: %+v", c)
	}
	equal(t, "operations", r.info().layer("ucp"), sum(r.truth("ucp")))
	m := r.epochsAddUp(i)
	if i.Events.ByName["app_mark"] != 8 {
		t.Errorf("%d marks", i.Events.ByName["app_mark"])
	}
	// export --epoch is the same as the epoch in the run's matrix.
	out := filepath.Join(r.dir, "rounds.json")
	if _, errs, status := execute(t, sigmatrace(t, "export", "--format", "matrix", "--epoch", "rounds", "-o", out, r.path)); status != 0 {
		t.Fatal(errs)
	}
	one := &merge.Matrix{}
	readJSON(t, out, one)
	if got, want := fmt.Sprint(one.Layers["ucp"].Rank), fmt.Sprint(m.Epochs[1].Layers["ucp"].Rank); got != want || one.Epoch != "rounds" {
		t.Errorf("%s\nwant %s", got, want)
	}
	if _, errs, status := execute(t, sigmatrace(t, "export", "--format", "matrix", "--epoch", "round", "-o", out, r.path)); status == 0 || !strings.Contains(errs, "info --epochs") {
		t.Errorf("an epoch that there is not: %d, %s", status, errs)
	}
}

// Marks and phases of sigmatrace.h in a program that knows what it did in them.
func TestMarksAndPhases(t *testing.T) {
	for _, mode := range needs.Modes() {
		t.Run(mode, func(t *testing.T) {
			r := newRun(t, bursts["ucp"])
			r.spec.mode = mode
			r.launch(built(t, "tests/burst-client"), "-l", "ucp", "-f", filepath.Join(r.dir, "published"), "-n", "10000", "-m", "4000", "-p").succeed()
			i := r.account()
			want := map[string]uint64{"start": 4000, "rest": 6000}
			if mode == "aggregate" { // phases are epochs: each request is in one of the two
				want = map[string]uint64{"start": 0, "block": 9000, "inner": 1000, "rest": 0}
			}
			got := map[string]uint64{}
			for _, e := range i.Epochs {
				got[e.Name] = e.Operations["ucp"]["put"].Count
			}
			if !maps.Equal(got, want) {
				t.Errorf("puts by epoch: %v, want %v", got, want)
			}
			r.epochsAddUp(i)
			phases := map[string]merge.PhaseInfo{}
			for _, x := range i.Phases {
				phases[x.Name] = x
			}
			if mode == "aggregate" {
				if len(phases) != 0 || i.Events.Total != 0 {
					t.Errorf("phases %v, %d events", phases, i.Events.Total)
				}
				return
			}
			for name, n := range map[string]uint64{"block": 10000, "inner": 1000} {
				x := phases[name]
				if x.Count != 100 || x.Traffic["ucp"] != (merge.Count{Count: n, Bytes: 64 * n}) || x.TimeNS <= 0 {
					t.Errorf("phase %s: %+v", name, x)
				}
			}
			if phases["inner"].TimeNS >= phases["block"].TimeNS {
				t.Errorf("what is inside took longer: %v", phases)
			}
			if i.Unfinished != 0 {
				t.Errorf("%d unfinished", i.Unfinished)
			}
		})
	}
}

// NVTX: every form of range and mark, in a thread and across, is recorded under its name and domain, and NVTX's own results are kept.
func TestNVTX(t *testing.T) {
	client := built(t, "tests/nvtx-client")
	r := newRun(t, spec{mode: "simple", providers: "ucx", noCount: true})
	r.launch(client).succeed()
	i := r.account()
	got := map[string]int64{}
	for _, x := range i.Phases {
		got[x.Domain+"/"+x.Name] = x.Count
	}
	want := map[string]int64{"/outer": 1, "/wïde": 3, "/across": 1, "library/registered": 1, "library/ascii": 1, "library/overlaps": 2}
	if !maps.Equal(got, want) || i.Events.ByName["app_mark"] != 3 || i.Unfinished != 0 {
		t.Errorf("phases %v, want %v; events %v", got, want, i.Events.ByName)
	}
	drawn := map[string]int64{}
	for _, row := range tracedSlices(t, r) {
		drawn[row]++
	}
	for name, n := range map[string]int64{"outer": 1, "wïde": 3, "across": 1, "library: registered": 1, "library: overlaps": 2, "mark": 1, "wide mark": 1, "library: ascii": 2} {
		if drawn[name] != n {
			t.Errorf("%d slices %q in the trace, want %d: %v", drawn[name], name, n, drawn)
		}
	}
	// In aggregate mode a thread's ranges are epochs; those that may end in another thread are none.
	r = newRun(t, spec{mode: "aggregate", providers: "ucx", noCount: true})
	r.launch(client).succeed()
	if names := epochNames(r.account()); !slices.Equal(names, []string{"start", "outer", "wïde", "library: registered", "library: ascii"}) {
		t.Errorf("epochs %q", names)
	}
	// A tool that is there already stays, and what it sees is not ours.
	for _, c := range []spec{
		{env: []string{"NVTX_INJECTION64_PATH=/nonexistent/tool.so"}},
		{options: []string{"--set", "record.nvtx=false"}},
	} {
		c.mode, c.providers, c.noCount = "simple", "ucx", true
		r := newRun(t, c)
		if r.launch(client); r.status != 3 || r.info().Processes.Total != 0 {
			t.Errorf("%+v: status %d\n%s", c, r.status, r.stderr)
		}
	}
}

// tracedSlices are the names of the slices of the Chrome JSON trace.
func tracedSlices(t *testing.T, r *run) (names []string) {
	t.Helper()
	out := filepath.Join(r.dir, "trace.json")
	if _, errs, status := execute(t, sigmatrace(t, "export", "--format", "json", "-o", out, r.path)); status != 0 {
		t.Fatal(errs)
	}
	var trace struct {
		TraceEvents []struct {
			Name, Ph string
			Args     json.RawMessage
		} `json:"traceEvents"`
	}
	readJSON(t, out, &trace)
	for _, e := range trace.TraceEvents {
		if e.Ph != "M" && e.Ph != "C" && e.Ph != "E" && e.Ph != "e" {
			names = append(names, e.Name)
		}
	}
	return names
}

// Ranks that the profile leaves out are not recorded and not missing.
func TestExcludedRanks(t *testing.T) {
	notQuick(t)
	for _, option := range []string{"ranks.exclude=1", "ranks.include=0,2-3"} {
		r := newRun(t, spec{mode: "full", providers: "ucx", env: transports["shm"], options: []string{"--set", option}})
		r.launch(r.mpirun(4, built(t, "tests/mpi-app"), "-n", "3")...).succeed()
		i := r.account()
		if i.Ranks.Excluded != 1 || i.Ranks.Complete != 3 || i.Ranks.Active != 3 || len(i.Ranks.Incomplete) != 0 || i.Processes.Total != 3 || !i.Exact {
			t.Errorf("%s: %+v, %+v, exact %v\n%s", option, i.Ranks, i.Processes, i.Exact, r.stderr)
		}
		// All ranks do the same: three quarters of what the counter saw, whose files are by pid.
		seen, truth := i.Operations["ucp"]["tag_send"], r.truth("ucp")
		others := uint64(0)
		for pid, x := range truth {
			if r.recorded(pid) {
				others += x["tag_send"].Count
			}
		}
		if len(truth) != 4 || seen.Count == 0 || seen.Count != others {
			t.Errorf("%s: %d sends, the counter saw %d of the recorded ranks", option, seen.Count, others)
		}
		r.besideTheExcluded(i, 1, seen)
	}
}

// besideTheExcluded holds what is told of the traffic between recorded ranks and one that is not: the recorded side of it, all of it, with
// an unknown other end; that it has no partner, and why; and nothing that the other rank sent, nor that anything is lost.
func (r *run) besideTheExcluded(i *merge.Info, excluded int64, sends merge.Count) {
	r.t.Helper()
	m := &merge.Matrix{}
	readJSON(r.t, filepath.Join(r.path, "matrix.json"), m)
	var sum, unknown merge.Count
	for _, row := range m.Layers["ucp"].Rank {
		for _, party := range []merge.Party{row.Source, row.Destination} {
			if party == float64(excluded) {
				r.t.Errorf("the matrix has rank %d: %+v", excluded, row)
			}
		}
		if row.Operation != "tag_send" {
			continue
		}
		sum = merge.Count{Count: sum.Count + row.Count, Bytes: sum.Bytes + row.Bytes}
		if row.Destination == nil {
			unknown = merge.Count{Count: unknown.Count + row.Count, Bytes: unknown.Bytes + row.Bytes}
		}
	}
	if sum != sends || unknown.Count == 0 || unknown.Count >= sum.Count {
		r.t.Errorf("the matrix has %+v of %+v sends, %+v to an unknown rank", sum, sends, unknown)
	}
	f := i.Flows
	if f.Matched == 0 || f.Unmatched[match.PeerNotTraced] == 0 || f.Unmatched[match.LostRecords] != 0 || i.Lost.Events != 0 {
		r.t.Errorf("flows %+v, lost %+v", f, i.Lost)
	}
	// Each send of a recorded rank has met a receive of one, or went to the rank that is not recorded.
	if got := uint64(f.Matched + f.Unmatched[match.PeerNotTraced]); got != sends.Count {
		r.t.Errorf("%d matched and %v to nobody, of %d sends", f.Matched, f.Unmatched, sends.Count)
	}
	var summary bytes.Buffer
	if i.Summary(&summary); strings.Contains(summary.String(), "lost") || !strings.Contains(summary.String(), "1 excluded") {
		r.t.Errorf("the summary\n%s", summary.String())
	}
}

// recorded tells whether a process left a capture.
func (r *run) recorded(pid int) bool {
	names, err := filepath.Glob(filepath.Join(r.path, "capture", "*", fmt.Sprintf("%d.*.capture", pid)))
	if err != nil {
		r.t.Fatal(err)
	}
	return len(names) > 0
}

// Programs that the profile leaves out by name or path leave nothing, the shells and interpreters around a rank among them.
func TestExcludedProcesses(t *testing.T) {
	client := built(t, "tests/burst-client")
	for _, c := range []struct {
		exclude  string
		captures int
	}{{"burst-*", 0}, {"*/tests/burst-client", 0}, {"bash,python*,sh,dash", 1}, {"/nowhere/burst-client", 1}, {"burst", 1}} {
		r := newRun(t, bursts["ucp"])
		r.spec.mode, r.spec.options = "simple", []string{"--set", "processes.exclude=" + c.exclude}
		r.spec.env = append(slices.Clone(r.spec.env), "RANK=0", "WORLD_SIZE=1")
		r.launch("bash", "-c", `"$@"; exit`, "bash", client, "-l", "ucp", "-f", filepath.Join(r.dir, "published"), "-n", "1000").succeed()
		i := r.account()
		if i.Processes.Total != c.captures || i.Ranks.Complete != c.captures || len(i.Ranks.Incomplete) != 0 || !i.Exact {
			t.Errorf("%s: %+v, %+v\n%s", c.exclude, i.Ranks, i.Processes, r.stderr)
		}
		if c.captures == 0 && i.Ranks.Excluded+i.Ranks.Idle != 1 {
			t.Errorf("%s: %+v", c.exclude, i.Ranks)
		}
	}
}

// A rank that calls nothing recorded is idle where the command succeeded; where it did not, nobody knows.
func TestIdleRanks(t *testing.T) {
	for _, c := range []struct {
		command string
		idle    int
	}{{"true", 1}, {"exit 7", 0}} {
		r := newRun(t, spec{mode: "simple", providers: "ucx", noCount: true, env: []string{"RANK=0", "WORLD_SIZE=1"}})
		r.launch("bash", "-c", c.command)
		i := r.account()
		if i.Ranks.Idle != c.idle || len(i.Ranks.Incomplete) != 1-c.idle || !i.Exact {
			t.Errorf("%s: %+v, exact %v", c.command, i.Ranks, i.Exact)
		}
	}
}
