// Package check tests what of tests/gpu needs no GPU: the checker of runs, with runs of the stand-in CUDA driver; the graph and its search; what the scripts say on machines
// that cannot run them.
package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/tests/needs"
)

// folder is tests/gpu.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// record runs gpu_check's one_by_one as the only rank of a job: 1000 writes of 64 bytes, from the beginning of its memory to its middle.
func record(t *testing.T, mode string, env ...string) (run, stats string) {
	t.Helper()
	dir := t.TempDir()
	run, stats = filepath.Join(dir, "run"), filepath.Join(dir, "stats")
	args := []string{"launch", "-p", mode, "--set", "providers=ibverbs,cuda", "-o", run, "--", "sh", "-c", `export LD_PRELOAD="${BEFORE:+$BEFORE:}$LD_PRELOAD"; exec "$@"`, "sh",
		needs.Built(t, "softhca/gpu_check"), "one_by_one"}
	cmd := exec.CommandContext(t.Context(), needs.Built(t, "bin/sigmatrace"), args...)
	cmd.Env = append(os.Environ(), "RANK=0", "WORLD_SIZE=1", "SOFTHCA_DEVX=1", "SOFTHCA_SHM="+filepath.Join(dir, "hca"), "SOFTHCA_STATS="+stats,
		"LD_LIBRARY_PATH="+filepath.Dir(needs.Built(t, "softhca/libibverbs.so.1"))+":"+filepath.Dir(needs.Built(t, "standin/libcuda.so.1")))
	cmd.Env = append(cmd.Env, env...)
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "ok one_by_one\n") {
		t.Fatalf("one_by_one: %v\n%s", err, out)
	}
	return run, stats
}

// memory is where the program's registered memory lies, as the run has it.
func memory(t *testing.T, run string) uint64 {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), needs.Built(t, "bin/sigmatrace"), "dump", "--json", "--definitions", run).Output()
	if err != nil {
		t.Fatal(err)
	}
	at := regexp.MustCompile(`"name":"verbs_mr".*"iova":"0x([0-9a-f]+)"`).FindSubmatch(out)
	if at == nil {
		t.Fatal("no memory region in the run")
	}
	n, err := strconv.ParseUint(string(at[1]), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

type object struct {
	Name    string `json:"name"`
	Address uint64 `json:"address"`
	Bytes   uint64 `json:"bytes"`
}

type issued struct {
	Operation string `json:"operation"`
	Peer      int    `json:"peer"`
	Object    string `json:"object"`
	Offset    uint64 `json:"offset"`
	Bytes     uint64 `json:"bytes"`
	Count     uint64 `json:"count"`
}

type account struct {
	Rank    int      `json:"rank"`
	Objects []object `json:"objects"`
	Issued  []issued `json:"issued"`
}

const half = 1 << 21

// counts is the account of one_by_one's kernel, as it is written in gpu_check.c.
func counts(at uint64) account {
	return account{0, []object{{"buffer", at, 2 * half}}, []issued{{"write", 0, "buffer", half, 64, 1000}}}
}

// judge runs issued.py.
func judge(t *testing.T, run, stats string, a *account) (string, error) {
	t.Helper()
	args := []string{filepath.Join(folder(t), "issued.py"), needs.Built(t, "bin/sigmatrace"), run, stats}
	if a != nil {
		prefix := filepath.Join(t.TempDir(), "issued")
		text, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(fmt.Sprintf("%s.%d", prefix, a.Rank), text, 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, prefix)
	}
	out, err := exec.CommandContext(t.Context(), "python3", args...).CombinedOutput()
	return string(out), err
}

// A run that has what the kernels counted passes, in every mode.
func TestIssuedHolds(t *testing.T) {
	for _, mode := range []string{"aggregate", "simple", "full"} {
		run, stats := record(t, mode)
		var a account
		if mode == "full" {
			a = counts(memory(t, run))
		} else {
			a = counts(0)
		}
		out, err := judge(t, run, stats, &a)
		if err != nil || out != "1000 elements in "+mode+" mode, 1000 as the kernels counted, the others of the library's own\n" {
			t.Errorf("%s: %v\n%s", mode, err, out)
		}
	}
}

// Each difference between a run, the adapter's account and the kernels' is found and named.
func TestIssuedFinds(t *testing.T) {
	run, stats := record(t, "full")
	at := memory(t, run)
	for _, c := range []struct {
		name string
		bad  func(*issued)
	}{
		{"too often: 1", func(i *issued) { i.Count-- }},
		{"missing: 1", func(i *issued) { i.Count++ }},
		{"missing: 1000", func(i *issued) { i.Bytes /= 2 }},
		{"missing: 1000", func(i *issued) { i.Offset += 8 }},
		{"missing: 1000", func(i *issued) { i.Operation = "read" }},
		{"write from 0 to 0: count: the kernels counted 1001, the matrix has 1000", func(i *issued) { i.Count++ }},
	} {
		a := counts(at)
		c.bad(&a.Issued[0])
		if out, err := judge(t, run, stats, &a); err == nil || !strings.Contains(out, c.name+"\n") {
			t.Errorf("%+v: %v, wants %q\n%s", a.Issued[0], err, c.name, out)
		}
	}
	text, err := os.ReadFile(stats)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][3]string{
		{`"requests":{"write":1000`, `"requests":{"write":1001`, "the adapter counted 1001, the run has 1000"},
		{`"bytes":{"write":64000`, `"bytes":{"write":64064`, "the adapter counted 64064, the run has 64000"},
		{`"write":[1000,64000]`, `"write":[999,64000]`, "too often: 1"},
	} {
		other := filepath.Join(t.TempDir(), "stats")
		changed := bytes.Replace(text, []byte(c[0]), []byte(c[1]), 1)
		if bytes.Equal(changed, text) {
			t.Fatalf("no %s in the adapter's account:\n%s", c[0], text)
		}
		if err := os.WriteFile(other, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := judge(t, run, other, nil); err == nil || !strings.Contains(out, c[2]) {
			t.Errorf("%s: %v, wants %q\n%s", c[1], err, c[2], out)
		}
	}
}

// Which queues the recorder comes to know of is chosen by letters; without its queue, and without its page, nothing is recorded and all works.
func TestChoose(t *testing.T) {
	for letters, want := range map[string]string{"r": "1000 elements", "f": "nothing in layer doorbell", "n": "nothing in layer doorbell"} {
		pages := filepath.Join(t.TempDir(), "pages")
		run, stats := record(t, "full", "BEFORE="+needs.Built(t, "gpu/choose.so"), "CHOOSE="+letters, "CHOOSE_FLAGS=1", "CHOOSE_LOG="+pages)
		out, err := judge(t, run, stats, nil)
		if !strings.Contains(out, want) || (err == nil) != (letters == "r") {
			t.Errorf("%s: %v\n%s", letters, err, out)
		}
		logs, err := filepath.Glob(pages + ".*")
		if err != nil || len(logs) != 1 {
			t.Fatalf("logs: %v (%v)", logs, err)
		}
		text, err := os.ReadFile(logs[0])
		if err != nil || strings.Count(string(text), `"letter":"`+letters+`"`) != 2 {
			t.Errorf("pages of %s: %s (%v)", letters, text, err)
		}
	}
}

// The graph is what it is said to be, its parts make up the whole, and distances are those of a breadth-first search.
func TestGraph(t *testing.T) {
	program := filepath.Join(t.TempDir(), "graph")
	if out, err := exec.CommandContext(t.Context(), "g++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-I"+folder(t), "-o", program, "testdata/graph.cc").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := exec.CommandContext(t.Context(), program).CombinedOutput(); err != nil || string(out) != "ok\n" {
		t.Errorf("%v\n%s", err, out)
	}
}

// The kernel of bfs.cu, run by processors between three processes, finds the distances, with all blocks and with some of them sending, and counts what it issues: a place in the
// other's inbox is taken for each chunk that is put there, and chunks fill inboxes without a gap.
func TestSearch(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "bfs")
	if out, err := exec.CommandContext(t.Context(), "g++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-pthread", "-Iemulated", "-I"+folder(t), "-o", program,
		"testdata/bfs.cc").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const ranks = 3
	for _, queues := range []string{"1", "3"} {
		job := filepath.Join(dir, queues)
		cmd := exec.CommandContext(t.Context(), filepath.Join(folder(t), "ranks.sh"), fmt.Sprint(ranks), "120", job+".log", program, job+".id", "9", queues, queues)
		cmd.Env = append(os.Environ(), "HEAP="+job+".heap", "ISSUED="+job+".issued")
		if out, err := cmd.CombinedOutput(); err != nil {
			log, _ := os.ReadFile(job + ".log.0")
			t.Fatalf("%v\n%s%s", err, out, log)
		}
		type of struct {
			operation, object string
			peer              int
		}
		count, ends, bytes := map[of]uint64{}, map[int]uint64{}, map[int]uint64{}
		for rank := range ranks {
			log, err := os.ReadFile(fmt.Sprintf("%s.log.%d", job, rank))
			if err != nil || strings.Count(string(log), "\nok ") != 4 {
				t.Fatalf("%v\n%s", err, log)
			}
			text, err := os.ReadFile(fmt.Sprintf("%s.issued.%d", job, rank))
			if err != nil {
				t.Fatal(err)
			}
			var a account
			if err := json.Unmarshal(text, &a); err != nil {
				t.Fatal(err)
			}
			for _, i := range a.Issued {
				if i.Peer == rank {
					t.Errorf("%+v is of rank %d itself", i, rank)
				}
				count[of{i.Operation, i.Object, rank*ranks + i.Peer}] += i.Count
				if i.Object == "inbox" {
					ends[i.Peer] = max(ends[i.Peer], i.Offset+i.Bytes)
					bytes[i.Peer] += i.Bytes * i.Count
				}
			}
		}
		for from := range ranks {
			for to := range ranks {
				pair := from*ranks + to
				if puts := count[of{"write", "inbox", pair}]; from != to && (puts == 0 || puts != count[of{"atomic", "arrived", pair}]) {
					t.Errorf("%d puts from %d to %d, %d places taken", puts, from, to, count[of{"atomic", "arrived", pair}])
				}
			}
			if searches := uint64(queues[0] - '0'); ends[from] == 0 || bytes[from] != searches*ends[from] {
				t.Errorf("%d bytes into the inbox of %d, which ends at %d in each of %d searches", bytes[from], from, ends[from], searches)
			}
		}
	}
}

// Where there is no GPU the scripts say so and exit with 2; their syntax is right.
func TestNoGPU(t *testing.T) {
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "nvidia-smi"), []byte("#!/bin/sh\necho 'No devices were found'\nexit 6\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	for _, args := range [][]string{{"run.sh", "libraries", "results"}, {"bench.sh", "libraries"}} {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		out, err := exec.CommandContext(ctx, filepath.Join(folder(t), args[0]), args[1:]...).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || string(out) != args[0]+": there is no NVIDIA GPU here\n" {
			t.Errorf("%s: %v\n%s", args[0], err, out)
		}
	}
	scripts, err := filepath.Glob(filepath.Join(folder(t), "*.sh"))
	if err != nil || len(scripts) < 5 {
		t.Fatalf("scripts: %v (%v)", scripts, err)
	}
	for _, s := range scripts {
		if out, err := exec.CommandContext(t.Context(), "bash", "-n", s).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", s, err, out)
		}
	}
}
