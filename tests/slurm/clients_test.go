//go:build slurm

package slurm

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
)

// sums adds up what processes say of one layer's operations: objects of {"put":{"count":2,"bytes":16}}.
func sums(t *testing.T, texts ...string) map[string]merge.Count {
	t.Helper()
	all := map[string]merge.Count{}
	for _, text := range texts {
		var one map[string]merge.Count
		if err := json.Unmarshal([]byte(text), &one); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		for op, v := range one {
			all[op] = merge.Count{Count: all[op].Count + v.Count, Bytes: all[op].Bytes + v.Bytes}
		}
	}
	return all
}

// files are the texts of the files of the job's folder that the pattern names.
func (j *job) files(pattern string) []string {
	j.t.Helper()
	names, err := filepath.Glob(filepath.Join(j.dir, pattern))
	if err != nil {
		j.t.Fatal(err)
	}
	var texts []string
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			j.t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	return texts
}

// operations checks that the run has exactly these operations at the layer, of one process on each of the two nodes, all of them complete.
func operations(t *testing.T, j *job, r result, layer string, want map[string]merge.Count) *merge.Info {
	t.Helper()
	dir := j.one(r)
	if got := captured(t, dir); !slices.Equal(got, []string{"n1", "n2"}) {
		t.Errorf("captures of %v, want one of each node", got)
	}
	var info merge.Info
	if err := json.Unmarshal(manifest(t, dir).Result, &info); err != nil {
		t.Fatalf("%s is not merged: %v", dir.Path(), err)
	}
	if completions, counted := want["completion"]; counted {
		if info.Completions[layer] != completions.Count {
			t.Errorf("%d completions, want %d", info.Completions[layer], completions.Count)
		}
		delete(want, "completion")
	}
	delete(want, "stream_recv") // layer ucp has no such operation
	got := maps.Clone(info.Operations[layer])
	maps.DeleteFunc(got, func(_ string, v merge.Count) bool { return v.Count == 0 })
	if len(want) == 0 || !maps.Equal(got, want) || !info.Exact {
		t.Errorf("operations of layer %s: %v, want %v", layer, got, want)
	}
	if info.Ranks.Expected == nil || *info.Ranks.Expected != 2 || info.Ranks.Complete != 2 || !info.Complete() {
		t.Errorf("ranks %+v", info.Ranks)
	}
	return &info
}

const step = "srun -w n1,n2 -N2 --sigmatrace=full "

// Programs that know what they sent, a process on each of two nodes: each operation is counted, of UCX and of libfabric, and messages are matched.
func TestClientsBetweenNodes(t *testing.T) {
	t.Parallel()
	site(t)
	for _, c := range []struct {
		name, layer, line string
	}{
		{"UCX", "ucp", step + built(t, "tests/ucp-client") + " -n 20 -s 11"},
		// Each process says to libfabric which network is its own.
		{"libfabric", "ofi", step + "--sigmatrace-set=providers=libfabric sh -c 'OFI_NODE=$(hostname) exec " + built(t, "tests/ofi-client") + " -s 5'"},
		{"libfabric with connections", "ofi", step + "sh -c 'OFI_NODE=$(hostname) exec " + built(t, "tests/ofi-client") + " -e msg'"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := newJob(t)
			j.environ = append(slices.Clone(overUCX), "PAIR_HOST=n1", "SENT_OUT="+j.dir+"/sent")
			r := j.ok("sh", "-c", c.line)
			want := sums(t, j.files("sent.*")...)
			messages := want["send"].Count + want["tagged_send"].Count + want["tag_send"].Count
			info := operations(t, j, r, c.layer, want)
			if uint64(info.Flows.Matched) != messages || messages == 0 {
				t.Errorf("%d of %d messages are matched", info.Flows.Matched, messages)
			}
		})
	}
}

// Programs that nobody here wrote, a server on one node and a client on another; a preload that counts, the user's own, is the second opinion.
func TestForeignProgramsBetweenNodes(t *testing.T) {
	t.Parallel()
	site(t)
	for _, c := range []struct {
		name, layer, counter, server, client string
		op                                   string
		least                                uint64
	}{
		{"ucx_perftest", "ucp", "tests/count-ucp.so", "ucx_perftest -p 18610 -t tag_lat -n 300 -w 30", "ucx_perftest n1 -p 18610 -t tag_lat -n 300 -w 30", "tag_send", 600},
		{"fi_pingpong", "ofi", "tests/count-ofi.so", "fi_pingpong -B 18610 -p tcp -e rdm -I 100 -S 1024", "fi_pingpong -P 18610 -p tcp -e rdm -I 100 -S 1024 n1", "send", 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := newJob(t)
			j.write("pair", "#!/bin/sh\nif [ $SLURM_PROCID = 0 ]; then\n(until ss -Htln 'sport = :18610' | grep -q .; do sleep 0.05; done; touch ready) &\nexec "+
				c.server+"\nfi\nuntil [ -e ready ]; do sleep 0.05; done\nexec "+c.client+"\n")
			j.environ = append(slices.Clone(overUCX), "LD_PRELOAD="+built(t, c.counter), "COUNT_OUT="+j.dir+"/count")
			r := j.ok("sh", "-c", step+"./pair")
			want := sums(t, j.files("count."+c.layer+".*")...)
			if want[c.op].Count < c.least {
				t.Errorf("%v counted, want %d of %s at least", want, c.least, c.op)
			}
			operations(t, j, r, c.layer, want)
		})
	}
}

// `sigmatrace launch -p simple -- srun` in a batch script gives one run, whatever the plugin was asked for, and without a plugin.
func TestLaunchInABatchScript(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]string{"unasked": nil, "asked": {"--sigmatrace=full"}, "off": {"--sigmatrace=off"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			site(t)
			launched(t, options)
		})
	}
}

func TestLaunchWithoutThePlugin(t *testing.T) {
	plugstack(t, "")
	launched(t, nil)
}

func launched(t *testing.T, options []string) {
	t.Helper()
	j := newJob(t)
	j.environ = overUCX
	out := j.batch(append([]string{"-N2", "-n4", "--ntasks-per-node=2"}, options...),
		built(t, "bin/sigmatrace")+" launch -p simple -o run -- srun --mpi=pmix "+built(t, "tests/mpi-app")+" -n 2")
	dir := j.dirOf("run")
	m := manifest(t, dir)
	if m.Profile.Name != "simple" || m.Run.Dialect != "srun" {
		t.Errorf("profile %s, dialect %s", m.Profile.Name, m.Run.Dialect)
	}
	var info merge.Info
	if err := json.Unmarshal(m.Result, &info); err != nil || !info.Complete() || info.Ranks.Expected == nil || *info.Ranks.Expected != 4 || info.Ranks.Complete != 4 {
		t.Errorf("ranks %+v, %v", info.Ranks, err)
	}
	if got := j.runs(); len(got) > 0 {
		t.Errorf("other runs %v\n%s", got, out)
	}
	if got := captured(t, dir); len(got) != 4 || len(slices.Compact(got)) != 2 {
		t.Errorf("captures of %v", got)
	}
}
