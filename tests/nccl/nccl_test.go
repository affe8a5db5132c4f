// Package nccl tests the profiler plugin with a client that does what NCCL does around one (client.c, load.c), with requests on the software HCA. What each request was for stands in its
// id, which NCCL's own would not tell, so that what is said of it can be held against that.
package nccl

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/tests/needs"
)

// said is what a process of the client says of itself.
type said struct {
	Rank, Version, Mask, Result    int
	Plugin                         string
	Collectives, P2P, Posts, Bytes uint64
}

// saw is what the other plugin says that it got.
type saw struct {
	Bad, Left, States, Inits, Finalized, Group, Coll, P2P, Op, Step, Ctrl uint64
	GroupAPI                                                              uint64 `json:"group_api"`
	CollAPI                                                               uint64 `json:"coll_api"`
}

type job struct {
	mode, name string // of the profile; the client's case
	newest     int    // version that NCCL knows
	set        []string
	env        []string
	bare       bool     // without the recorder
	by         []string // what runs the client
}

type result struct {
	said  []said
	saw   []saw
	run   string
	info  *merge.Info
	wrote merge.Count // what the adapter carried out
}

func lines[T any](t *testing.T, text []byte) (all []T) {
	t.Helper()
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		var x T
		if !strings.HasPrefix(s.Text(), "{") {
			continue
		}
		if err := json.Unmarshal(s.Bytes(), &x); err != nil {
			t.Fatalf("%s: %v", s.Text(), err)
		}
		all = append(all, x)
	}
	return all
}

func (j job) do(t *testing.T) result {
	t.Helper()
	dir := t.TempDir()
	r := result{run: filepath.Join(dir, "run")}
	var args []string
	if !j.bare {
		args = []string{needs.Built(t, "bin/sigmatrace"), "launch", "-p", j.mode, "--set", "providers=ibverbs,nccl", "-o", r.run}
		for _, s := range j.set {
			args = append(args, "--set", s)
		}
		args = append(args, "--")
	}
	args = append(append(args, j.by...), needs.Built(t, "tests/nccl/nccl-client"), strconv.Itoa(j.newest), j.name)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	library := filepath.Dir(needs.Built(t, "softhca/libibverbs.so.1"))
	cmd.Env = append(os.Environ(), "SOFTHCA_SHM="+filepath.Join(dir, "hca"), "SOFTHCA_STATS="+filepath.Join(dir, "stats"), "PLUGIN_OUT="+filepath.Join(dir, "saw"), "LD_LIBRARY_PATH="+library)
	for _, v := range j.env {
		if rest, ok := strings.CutPrefix(v, "LD_LIBRARY_PATH+="); ok {
			v = "LD_LIBRARY_PATH=" + library + ":" + rest
		}
		cmd.Env = append(cmd.Env, v)
	}
	cmd.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || strings.Contains(stderr.String(), "plugin:") {
		t.Fatalf("%v: %v\n%s%s", args, err, out, stderr.String())
	}
	r.said = lines[said](t, out)
	if len(r.said) != 2 {
		t.Fatalf("%d processes said something\n%s%s", len(r.said), out, stderr.String())
	}
	if text, err := os.ReadFile(filepath.Join(dir, "saw")); err == nil {
		r.saw = lines[saw](t, text)
	}
	stats, err := os.ReadFile(filepath.Join(dir, "stats"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range lines[struct{ Requests, Bytes map[string]uint64 }](t, stats) {
		r.wrote.Count += s.Requests["write"]
		r.wrote.Bytes += s.Bytes["write"]
	}
	if j.bare {
		return r
	}
	text, err := exec.CommandContext(t.Context(), needs.Built(t, "bin/sigmatrace"), "info", "--json", r.run).Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &r.info); err != nil {
		t.Fatal(err)
	}
	return r
}

// group is what was summed up of a function, over all communicators.
func (r *result) group(t *testing.T, function string) merge.GroupInfo {
	t.Helper()
	sum := merge.GroupInfo{Traffic: map[string]merge.Count{}, Ambiguous: map[string]merge.Count{}}
	if r.info.NCCL == nil {
		t.Fatal("nothing of NCCL")
	}
	plus := func(to, from map[string]merge.Count) {
		for layer, c := range from {
			to[layer] = merge.Count{Count: to[layer].Count + c.Count, Bytes: to[layer].Bytes + c.Bytes}
		}
	}
	for _, g := range r.info.NCCL.Groups {
		if g.Function == function {
			sum.Count += g.Count
			sum.Bytes += g.Bytes
			sum.Proxies += g.Proxies
			sum.Unfinished += g.Unfinished
			if g.ProxyBytes != nil {
				n := *g.ProxyBytes
				if sum.ProxyBytes != nil {
					n += *sum.ProxyBytes
				}
				sum.ProxyBytes = &n
			}
			plus(sum.Traffic, g.Traffic)
			plus(sum.Ambiguous, g.Ambiguous)
		}
	}
	return sum
}

// requests calls fn for each write of the run, with what its id says that it is for.
func (r *result) requests(t *testing.T, fn func(op *ops.Op, run *ops.Run, collective bool, sequence, channel uint64, send bool)) {
	t.Helper()
	dir, err := rundir.Open(r.run)
	if err != nil {
		t.Fatal(err)
	}
	m, err := merge.Open(t.Context(), dir, merge.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for i := range m.Run().Partitions {
		err := m.Partition(t.Context(), i, func(all []ops.Op) error {
			for k := range all {
				if op := &all[k]; op.Event == catalogue.EventVerbsWrite {
					id := op.Fields[catalogue.VerbsRequestWrId]
					channel := id >> 1 & 0x7fff
					if id>>40 != 0 {
						channel = 0 // of a send or receive
					}
					fn(op, m.Run(), id>>40 == 0, id>>16&0xffffff, channel, id&1 != 0)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

const (
	rounds, channels, steps, chunk, ready = 10, 3, 4, 4096, 16
	allWrites                             = 2 * rounds * (channels + 1) * 2 * steps // of both processes, both directions
)

// Every version of the interface: each collective is recorded once by each process, with its bytes; all that was posted is for one of them, as much as the adapter carried out; and with
// each step's events each request has its channel from the second one of its queue on.
func TestEveryVersion(t *testing.T) {
	for version := 2; version <= 6; version++ {
		for _, events := range []string{"coll,p2p,proxy", "coll,p2p,steps"} {
			t.Run(strconv.Itoa(version)+"/"+events, func(t *testing.T) {
				r := job{mode: "full", name: "normal", newest: version, set: []string{"nccl.events=" + events}}.do(t)
				mask := 2 | 4 | 8
				stepped := strings.HasSuffix(events, "steps")
				if stepped {
					mask |= 16
				}
				for _, s := range r.said {
					if s.Plugin != "sigmatrace" || s.Version != version || s.Mask != mask || s.Result != 0 {
						t.Errorf("NCCL found %+v", s)
					}
				}
				want := merge.Plugin{Interface: uint64(version), Events: uint64(mask), Processes: 2}
				if n := r.info.NCCL; len(n.Plugins) != 1 || n.Plugins[0] != want || n.Communicators != 1 || n.Unrecorded != 0 || n.Unrelated != 0 {
					t.Errorf("plugins: %+v", n)
				}
				coll, p2p := r.group(t, "AllReduce"), r.group(t, "Send")
				if coll.Count != 2*rounds || coll.Bytes != 2*rounds*chunk || coll.Proxies != 2*rounds*channels*2 || p2p.Count != 2*rounds || p2p.Bytes != 2*rounds*chunk/4 || p2p.Proxies != 2*rounds*2 {
					t.Errorf("collectives %+v, sends %+v", coll, p2p)
				}
				if coll.Unfinished != 0 || p2p.Unfinished != 0 {
					t.Errorf("unfinished: %d and %d", coll.Unfinished, p2p.Unfinished)
				}
				x, y := coll.Traffic["verbs"], p2p.Traffic["verbs"]
				if x.Count+y.Count != r.wrote.Count || x.Bytes+y.Bytes != r.wrote.Bytes || r.wrote.Count != allWrites || len(coll.Ambiguous)+len(p2p.Ambiguous) != 0 {
					t.Errorf("requests for collectives %+v and sends %+v, the adapter carried out %+v", x, y, r.wrote)
				}
				if stepped || version < 4 {
					if coll.ProxyBytes == nil || *coll.ProxyBytes != 2*rounds*channels*steps*chunk {
						t.Errorf("proxies moved %v", coll.ProxyBytes)
					}
				} else if coll.ProxyBytes != nil {
					t.Errorf("proxies moved %d, which NCCL did not say", *coll.ProxyBytes)
				}
				r.held(t, stepped || version < 4)
			})
		}
	}
}

// held holds what is said of each request against its id.
func (r *result) held(t *testing.T, exact bool) {
	t.Helper()
	n, vague := 0, 0
	r.requests(t, func(op *ops.Op, run *ops.Run, collective bool, sequence, channel uint64, send bool) {
		n++
		x := op.For
		function := map[bool]string{true: "AllReduce", false: "Send"}[collective]
		if x.Candidates == 0 || run.Processes[op.Process].Names[x.Function] != function || collective && x.Sequence != sequence || x.Task == 0 || x.Communicator == 0 {
			t.Errorf("a request for %s %d on channel %d is said to be for %+v", function, sequence, channel, x)
		} else if c := run.Endpoints[x.Communicator-1]; c.Layer != "nccl" || !strings.Contains(c.Name, "world") || c.Process != op.Process {
			t.Errorf("communicator %+v of process %d", c, op.Process)
		}
		if x.Channel != 0 && uint64(x.Channel-1) != channel {
			t.Errorf("a request on channel %d is said to be on %d", channel, x.Channel-1)
		}
		if x.Candidates > 1 {
			vague++
		}
	})
	if n != allWrites {
		t.Errorf("%d requests", n)
	}
	// each queue's first one, with NCCL telling of each step
	if first := 2 * (channels + 1) * 2; exact && vague > first || !exact && vague == 0 {
		t.Errorf("%d of %d requests may be on one of several channels", vague, n)
	}
}
