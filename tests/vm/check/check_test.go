//go:build vm

// Package check merges on the host what the guests of tests/vm recorded, and holds it against what is true independently of the recorder:
// the counters that sat beside it in each process, the programs' own command lines, and the guests' kernels.
package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/tests/tp"
)

// tally counts operations and their payload.
type tally struct{ Count, Bytes uint64 }

// totals are tallies by "layer operation"; completions are "verbs completion", without bytes.
type totals map[string]tally

func (a totals) add(key string, count, bytes uint64) {
	if count > 0 {
		a[key] = tally{a[key].Count + count, a[key].Bytes + bytes}
	}
}

func (a totals) String() string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(a)) {
		fmt.Fprintf(&b, "\n    %s %d %d", k, a[k].Count, a[k].Bytes)
	}
	return b.String()
}

func same(t *testing.T, what string, got, want totals) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("%s:%v\n  want:%v", what, got, want)
	}
}

// result is one run of a guest script, merged.
type result struct {
	*testing.T
	dir    string // in the script's output folder
	info   merge.Info
	matrix merge.Matrix
}

func build(elem ...string) string {
	b := os.Getenv("B")
	if b == "" {
		b = filepath.Join("..", "..", "..", "build")
	}
	return filepath.Join(append([]string{b}, elem...)...)
}

// load merges the run NAME of a guest script with the built command, which must call it complete.
func load(t *testing.T, script, name string) *result {
	t.Helper()
	r := &result{T: t, dir: build("vm", "out", script, name)}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(build("bin", "sigmatrace"), "merge", "--json", filepath.Join(r.dir, "run"))
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Errorf("merging: %v\n%s%s", err, stdout.String(), stderr.String())
	}
	if err := json.Unmarshal(stdout.Bytes(), &r.info); err != nil {
		t.Fatalf("the merge's account: %v", err)
	}
	r.read(filepath.Join("run", "matrix.json"), &r.matrix)
	if i := &r.info; !i.Exact || i.Lost.Events != 0 || len(i.Damaged) != 0 || len(i.Blind) != 0 || len(i.Ranks.Incomplete) != 0 || i.Surplus != 0 {
		t.Errorf("not whole: exact %v, lost %+v, damaged %v, blind %v, incomplete %v, surplus %d", i.Exact, i.Lost, i.Damaged, i.Blind, i.Ranks.Incomplete, i.Surplus)
	}
	if !r.matrix.Exact {
		t.Error("the matrix is not exact")
	}
	return r
}

func (r *result) read(name string, into any) {
	r.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, name))
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		r.Fatalf("%s: %v", name, err)
	}
}

// operation is what the recorder calls a counter's name, by layer; "" for what is no operation of the catalogue.
var operation = map[string]string{
	"verbs send": "verbs send", "verbs send_imm": "verbs send", "verbs send_inv": "verbs send", "verbs write": "verbs write",
	"verbs write_imm": "verbs write_imm", "verbs read": "verbs read", "verbs atomic": "verbs atomic", "verbs recv": "verbs recv",
	"verbs srq_recv": "verbs recv", "verbs cqe": "verbs completion", "verbs cqe_error": "verbs completion", "verbs other": "",
	"ucp put": "ucp put", "ucp get": "ucp get", "ucp tag_send": "ucp tag_send", "ucp tag_recv": "ucp tag_recv", "ucp stream_send": "ucp stream_send",
	"uct put": "uct put", "uct get": "uct get", "uct am_send": "uct am_send", "uct atomic": "uct atomic", "uct flush": "",
	"ofi send": "ofi send", "ofi recv": "ofi recv", "ofi tagged_send": "ofi tagged_send", "ofi tagged_recv": "ofi tagged_recv",
	"ofi write": "ofi write", "ofi read": "ofi read", "ofi atomic": "ofi atomic", "ofi completion": "ofi completion",
	"ucp stream_recv": "", "ucp am_send": "ucp am_send", "ucp atomic": "ucp atomic", "ucp flush": "ucp flush",
}

// counted reads what the counters left: "host:pid" -> what that process did.
func (r *result) counted() map[string]totals {
	r.Helper()
	names, err := filepath.Glob(filepath.Join(r.dir, "count.*"))
	if err != nil {
		r.Fatal(err)
	}
	all := map[string]totals{}
	for _, path := range names {
		part := strings.Split(filepath.Base(path), ".") // count.HOST.LAYER.PID
		if len(part) != 4 {
			r.Fatalf("%s: not count.HOST.LAYER.PID", path)
		}
		var counts map[string]tally
		r.read(filepath.Base(path), &counts)
		who := part[1] + ":" + part[3]
		if all[who] == nil {
			all[who] = totals{}
		}
		for name, c := range counts {
			to, known := operation[part[2]+" "+name]
			if !known {
				r.Errorf("%s counts %q", path, name)
			}
			if to != "" {
				all[who].add(to, c.Count, c.Bytes)
			}
		}
	}
	if len(all) == 0 {
		r.Error("nothing was counted")
	}
	return all
}

// operations is the account's totals.
func (r *result) operations() totals {
	sum := totals{}
	for layer, operations := range r.info.Operations {
		for name, c := range operations {
			sum.add(layer+" "+name, c.Count, c.Bytes)
		}
	}
	for layer, n := range r.info.Completions {
		if layer == "verbs" || layer == "ofi" { // nothing counts the others beside us
			sum.add(layer+" completion", n, 0)
		}
	}
	return sum
}

// likeCounters holds the account, and the matrix process by process, against the counters, which it returns summed up. A process that
// did nothing but make its queue pairs left a capture, and no counts.
func (r *result) likeCounters(processes int) totals {
	r.Helper()
	counted := r.counted()
	sum, perProcess := totals{}, map[string]totals{}
	for _, c := range counted {
		for k, v := range c {
			sum.add(k, v.Count, v.Bytes)
		}
	}
	same(r.T, "the account", r.operations(), sum)
	if r.info.Processes.Total != processes || r.info.Processes.Complete != processes {
		r.Errorf("%+v, want %d complete ones", r.info.Processes, processes)
	}
	add := func(layer string, e *merge.End, row *merge.EndpointRow) {
		if e == nil {
			r.Errorf("layer %s: %s of nobody: %+v", layer, row.Operation, row)
			return
		}
		who := fmt.Sprintf("%s:%d", e.Host, e.Pid)
		if perProcess[who] == nil {
			perProcess[who] = totals{}
		}
		perProcess[who].add(layer+" "+row.Operation, row.Count, row.Bytes)
	}
	for name, layer := range r.matrix.Layers {
		for i := range layer.Endpoint {
			add(name, layer.Endpoint[i].Source, &layer.Endpoint[i])
		}
		for i := range layer.Received {
			add(name, layer.Received[i].Destination, &layer.Received[i])
		}
	}
	for who, want := range counted {
		delete(want, "verbs completion")
		delete(want, "ofi completion")
		same(r.T, "the matrix's "+who, perProcess[who], want)
		delete(perProcess, who)
	}
	if len(perProcess) != 0 {
		r.Errorf("the matrix has processes that nothing was counted in: %v", perProcess)
	}
	return sum
}

// messages is what is known of a program's messages.
type messages struct {
	matched   bool  // nothing was lost: each was put together with its receive
	unpolled  int64 // so many at most, at layer verbs, were received and never polled for, as the program ends
	unsure    bool  // some, at layer verbs, may belong to a neighbour
	cancelled int64 // receives of libfabric that the program took back
	shared    int64 // so many messages of libfabric at most went into the buffer of the message before them
	taken     bool  // libfabric's writes with data, verbs' write_imm, take a receive each
}

// everySendMatched: at each layer, each message was put together with its receive, and what receives are left over never had a message.
func (r *result) everySendMatched(m messages) {
	r.Helper()
	o, total := r.operations(), int64(0)
	for layer, names := range map[string][2][]string{
		"verbs": {{"send", "write_imm"}, {"recv"}}, "ucp": {{"tag_send"}, {"tag_recv"}}, "ofi": {{"send", "tagged_send"}, {"recv", "tagged_recv"}},
	} {
		var sends, posted int64
		for i, sum := range []*int64{&sends, &posted} {
			for _, name := range names[i] {
				*sum += int64(o[layer+" "+name].Count)
			}
		}
		f, m := r.info.Flows.Layers[layer], m
		if layer != "verbs" {
			m.unpolled, m.unsure = 0, false
		}
		if layer != "ofi" {
			m.cancelled, m.shared = 0, 0
		} else if m.taken {
			posted -= int64(o["verbs write_imm"].Count)
		}
		unpolled := sends - f.Matched
		if unpolled < 0 || unpolled > m.unpolled || (f.Ambiguous != 0 && !m.unsure) {
			r.Errorf("layer %s: %d messages matched, %d of them not surely; %d were sent", layer, f.Matched, f.Ambiguous, sends)
		}
		var causes int64
		for cause, n := range f.Unmatched {
			if cause != "unfinished" && (cause != "no receive recorded" || n > unpolled) && (cause != "error" || n != m.cancelled) {
				r.Errorf("layer %s: unmatched %v", layer, f.Unmatched)
			}
			causes += n
		}
		// What was not polled for is missing on both sides: as a send, and as a receive that was not seen to end.
		if left := posted - f.Matched; causes < left || causes > left+unpolled+m.shared {
			r.Errorf("layer %s: unmatched %v: %d receives were posted, %d messages matched of %d", layer, f.Unmatched, posted, f.Matched, sends)
		}
		total += sends
	}
	if total == 0 {
		r.Error("no messages")
	}
}

// kernelQP is a queue pair as the kernel tells of it.
type kernelQP struct {
	host     string
	qpn, far uint32
	pid      uint32
}

// kernelQPs reads what the guests saw of their kernels: at least n connected queue pairs.
func (r *result) kernelQPs(n int) []kernelQP {
	r.Helper()
	names, err := filepath.Glob(filepath.Join(r.dir, "qps.*"))
	if err != nil {
		r.Fatal(err)
	}
	var all []kernelQP
	for _, path := range names {
		text, err := os.ReadFile(path)
		if err != nil {
			r.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) < 4 || (f[2] != "RTS" && f[2] != "RTR") || f[1] == "0" {
				continue
			}
			q := kernelQP{host: strings.TrimPrefix(filepath.Ext(path), ".")}
			for i, to := range []*uint32{0: &q.qpn, 1: &q.far, 3: &q.pid} {
				if to == nil {
					continue
				}
				v, err := strconv.ParseUint(f[i], 10, 32)
				if err != nil {
					r.Fatalf("%s: %q: %v", path, line, err)
				}
				*to = uint32(v)
			}
			all = append(all, q)
		}
	}
	if len(all) < n {
		r.Fatalf("the kernels told of %d connected queue pairs, want %d", len(all), n)
	}
	return all
}

// run opens the merged run itself.
func (r *result) run() *ops.Run {
	r.Helper()
	return r.open(merge.Options{}).Run()
}

func (r *result) open(o merge.Options) *merge.Merged {
	r.Helper()
	dir, err := rundir.Open(filepath.Join(r.dir, "run"))
	if err != nil {
		r.Fatal(err)
	}
	o.TempDir = r.TempDir()
	m, err := merge.Open(context.Background(), dir, o)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { m.Close() })
	return m
}

// peersAsInKernel: each queue pair that the kernels told of was found, and leads to the one whose numbers lead back. Guests' numbers
// begin alike, so on two machines each is there twice.
func (r *result) peersAsInKernel(n int) {
	r.Helper()
	run := r.run()
	find := func(host string, qpn, pid uint32) int {
		for i, e := range run.Endpoints {
			if p := &run.Processes[e.Process]; e.Kind == "qp" && p.Host == host && p.Pid == pid && numberOf(e.Name) == qpn {
				return i
			}
		}
		r.Errorf("queue pair %d of pid %d on %s was not recorded", qpn, pid, host)
		return -1
	}
	all := r.kernelQPs(n)
	for _, q := range all {
		at := slices.IndexFunc(all, func(x kernelQP) bool { return x.qpn == q.far && x.far == q.qpn && x != q })
		if at < 0 {
			r.Errorf("the kernels told of no partner of %+v among %+v", q, all)
			continue
		}
		own, far := find(q.host, q.qpn, q.pid), find(all[at].host, all[at].qpn, all[at].pid)
		if own >= 0 && far >= 0 && run.Endpoints[own].Peer != uint32(far)+1 {
			r.Errorf("the peer of %+v is endpoint %d, want %d (%s)", q, int(run.Endpoints[own].Peer)-1, far, run.Endpoints[far].Name)
		}
	}
}

// numberOf takes the number out of an endpoint's name, "QP 0x11 -> rank 3".
func numberOf(name string) uint32 {
	var n uint32
	fmt.Sscanf(name, "QP 0x%x", &n)
	return n
}

// rows are the traffic between two parties, as "SOURCE -> DESTINATION OPERATION".
func rows(list []merge.PartyRow) totals {
	sum := totals{}
	for _, p := range list {
		sum.add(fmt.Sprintf("%v -> %v %s", p.Source, p.Destination, p.Operation), p.Count, p.Bytes)
	}
	return sum
}

// nodes is a layer's matrix of nodes, without the boot ids.
func (r *result) nodes(layer string) totals {
	r.Helper()
	l := r.matrix.Layers[layer]
	if l == nil {
		r.Fatalf("no matrix of layer %s", layer)
	}
	sum := totals{}
	name := func(p merge.Party) string {
		s, _ := p.(string)
		host, boot, ok := strings.Cut(s, ".")
		if !ok || len(boot) != 8 {
			return fmt.Sprint(p)
		}
		return host
	}
	for _, p := range l.Node {
		sum.add(fmt.Sprintf("%s -> %s %s", name(p.Source), name(p.Destination), p.Operation), p.Count, p.Bytes)
	}
	return sum
}

// importsCleanly: Perfetto's own trace_processor has nothing to say against the trace.
func (r *result) importsCleanly() string {
	r.Helper()
	tp.Need(r)
	trace := filepath.Join(r.dir, "run", "trace.pftrace")
	if err := tp.Check(trace); err != nil {
		r.Error(err)
	}
	return trace
}

// sentLikeCounted: the tests' own clients say of themselves what the counters saw, name by name.
func (r *result) sentLikeCounted(clients int, layer string) {
	r.Helper()
	names, err := filepath.Glob(filepath.Join(r.dir, "sent.*"))
	if err != nil || len(names) != clients {
		r.Fatalf("%d clients told what they sent, want %d (%v)", len(names), clients, err)
	}
	for _, path := range names {
		counter := "count." + strings.Join(strings.Split(filepath.Base(path), ".")[1:], "."+layer+".")
		var own, seen map[string]tally
		r.read(filepath.Base(path), &own)
		r.read(counter, &seen)
		if !maps.Equal(own, seen) {
			r.Errorf("%s: %v, its counter: %v", filepath.Base(path), own, seen)
		}
	}
}

// exists tells whether a guest script left a file.
func exists(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the guest left no %s", path)
	} else if err != nil {
		t.Fatal(err)
	}
	return text
}

// headers are those of every capture of a run.
func headers(t *testing.T, script, name string) []capture.Header {
	t.Helper()
	var all []capture.Header
	for _, path := range captures(t, script, name) {
		f, err := capture.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, *f.Header())
		f.Close()
	}
	return all
}

func captures(t *testing.T, script, name string) []string {
	t.Helper()
	paths, err := filepath.Glob(build("vm", "out", script, name, "run", "capture", "*", "*"+capture.Extension))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no capture: %v", err)
	}
	return paths
}
