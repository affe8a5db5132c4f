// Package check tests what of tests/gpu needs no GPU: the checker of runs, with runs of the stand-in CUDA driver; the graph and its search; what the scripts say on machines
// that cannot run them.
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
	args := []string{"launch", "-p", mode, "--set", "providers=ibverbs,mlx5dv,cuda", "-o", run, "--", "sh", "-c", `export LD_PRELOAD="${BEFORE:+$BEFORE:}$LD_PRELOAD"; exec "$@"`, "sh",
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
	for _, mode := range needs.Modes() {
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
		run, stats := record(t, "full", "BEFORE="+needs.Built(t, "gpu/choose.so"), "CHOOSE="+letters, "CHOOSE_FLAGS=0x80000000", "CHOOSE_LOG="+pages)
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

// launches are how programs start kernels, each on a line of its own.
var launches = regexp.MustCompile(`(\w+)<<<(.+), (.+)>>>\((.*)\);`)

// emulated compiles a program for processors (emulated/): kernels are functions there, which threads run.
func emulated(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder(t), name+".cu"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	source, program := filepath.Join(dir, name+".cc"), filepath.Join(dir, name)
	if err := os.WriteFile(source, launches.ReplaceAll(text, []byte("emulated::launch($2, $3, [=] { $1($4); });")), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-pthread", "-Iemulated", "-I" + folder(t), "-I" + dir, "-o", program}
	start := filepath.Join("testdata", "start_"+name+".cc") // of one that is started with an array of arguments
	if _, err := os.Stat(start); err != nil {
		start = source
	}
	args = append(args, start)
	if out, err := exec.CommandContext(t.Context(), "g++", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// job runs a program as so many ranks, and returns what each printed, and each one's account of what its kernels issued.
func job(t *testing.T, ranks int, program string, args ...string) (logs []string, accounts []account) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "job")
	cmd := exec.CommandContext(t.Context(), filepath.Join(folder(t), "ranks.sh"), append([]string{fmt.Sprint(ranks), "120", path + ".log", program, path + ".id"}, args...)...)
	cmd.Env = append(os.Environ(), "HEAP="+path+".heap", "ISSUED="+path+".issued")
	out, failed := cmd.CombinedOutput()
	for rank := range ranks {
		log, err := os.ReadFile(fmt.Sprintf("%s.log.%d", path, rank))
		if err != nil {
			t.Fatal(err)
		}
		logs = append(logs, string(log))
	}
	if failed != nil {
		t.Fatalf("%v\n%s%s", failed, out, logs)
	}
	for rank := range ranks {
		text, err := os.ReadFile(fmt.Sprintf("%s.issued.%d", path, rank))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		var a account
		if err := json.Unmarshal(text, &a); err != nil || a.Rank != rank {
			t.Fatalf("account of rank %d: %v\n%s", rank, err, text)
		}
		accounts = append(accounts, a)
	}
	return logs, accounts
}

// The kernel of bfs.cu, between three processes, finds the distances, with all blocks and with some of them sending, and counts what it issues: a place in the other's inbox is
// taken for each chunk that is put there, and chunks fill inboxes without a gap.
func TestSearch(t *testing.T) {
	program := emulated(t, "bfs")
	const ranks = 3
	for _, queues := range []uint64{1, 3} {
		logs, accounts := job(t, ranks, program, "9", fmt.Sprint(queues), fmt.Sprint(queues))
		type of struct {
			operation, object string
			from, to          int
		}
		count, ends, bytes := map[of]uint64{}, map[int]uint64{}, map[int]uint64{}
		if len(accounts) != ranks {
			t.Fatalf("%d accounts", len(accounts))
		}
		for rank, a := range accounts {
			if strings.Count(logs[rank], "\nok ") != 4 || strings.Count(logs[rank], `{"name":"search"`) != int(queues) {
				t.Errorf("rank %d:\n%s", rank, logs[rank])
			}
			for _, i := range a.Issued {
				count[of{i.Operation, i.Object, rank, i.Peer}] += i.Count
				if i.Object == "inbox" {
					ends[i.Peer] = max(ends[i.Peer], i.Offset+i.Bytes)
					bytes[i.Peer] += i.Bytes * i.Count
				}
			}
		}
		for from := range ranks {
			for to := range ranks {
				puts, places := count[of{"write", "inbox", from, to}], count[of{"atomic", "arrived", from, to}]
				if puts != places || (puts == 0) != (from == to) {
					t.Errorf("%d puts from %d to %d, %d places taken", puts, from, to, places)
				}
			}
			if ends[from] == 0 || bytes[from] != queues*ends[from] {
				t.Errorf("%d bytes into the inbox of %d, which ends at %d in each of %d searches", bytes[from], from, ends[from], queues)
			}
		}
	}
}

// nvshmem.cu between two processes: its checks hold, and its kernels count what they issue, a warp's stores at a time or each.
func TestNVSHMEM(t *testing.T) {
	program := emulated(t, "nvshmem")
	nvshmem(t, program, 512)
	t.Setenv("EMULATED_ROCE", "1")
	nvshmem(t, program, 16384)
}

func nvshmem(t *testing.T, program string, stores uint64) {
	t.Helper()
	logs, accounts := job(t, 2, program)
	// store, puts of five sizes, one with a signal, many stores, ten puts of 8 MB, stores each waited for, ping-pong; a signal, four atomics, additions to the first rank's word
	want := []map[string]uint64{{"write": 1 + 5 + 1 + stores + 10 + 1000 + 200, "read": 1, "atomic": 1 + 4 + 320}, {"write": 1 + 5 + 1 + stores + 200, "read": 1, "atomic": 1 + 4 + 320}}
	for rank, a := range accounts {
		got := map[string]uint64{}
		for _, i := range a.Issued {
			got[i.Operation] += i.Count
			if i.Peer != 1-rank && (i.Peer != 0 || i.Object != "counter") {
				t.Errorf("rank %d: %+v", rank, i)
			}
		}
		if !maps.Equal(got, want[rank]) {
			t.Errorf("rank %d issued %v, wants %v", rank, got, want[rank])
		}
		if n := strings.Count("\n"+logs[rank], "\nok "); n != 14 || strings.Contains(logs[rank], "FAIL") {
			t.Errorf("rank %d: %d checks\n%s", rank, n, logs[rank])
		}
	}
	if len(accounts) != 2 {
		t.Errorf("%d accounts", len(accounts))
	}
}

// put.cu between two processes: each queue's puts are measured.
func TestPut(t *testing.T) {
	logs, _ := job(t, 2, emulated(t, "put"), "3", "4", "10")
	for queue := range 3 {
		if !regexp.MustCompile(fmt.Sprintf(`{"name":"put and quiet","queue":%d,"pid":\d+,"bell":0,"puts":90,"median":[\d.]+,"p99":[\d.]+,"rounds":\[([\d.]+,){3}[\d.]+\]}\n`, queue)).MatchString(logs[0]) {
			t.Errorf("queue %d:\n%s", queue, logs[0])
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

// What a rank did when it died, or when its time was over, is in its log: the stack of each thread, and what is mapped.
func TestWhereRanksDied(t *testing.T) {
	for _, c := range []struct {
		program string
		status  int
		seconds string // its time
		want    []string
	}{
		{"import ctypes; ctypes.string_at(8)", 139, "60", []string{`crash: signal 11 at 0x8, process \d+, thread \d+`, `python3`, `r-xp`}},
		{"import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); print('ready', flush=True); time.sleep(60)", 124, "15",
			[]string{`ready`, `crash: process \d+ is told to end`, `(?s)thread \d+\n.*thread \d+\n`, `clock_nanosleep`, `r-xp`}},
	} {
		log := filepath.Join(t.TempDir(), "log")
		cmd := exec.CommandContext(t.Context(), filepath.Join(folder(t), "ranks.sh"), "1", c.seconds, log, "python3", "-c", c.program)
		cmd.Env = append(os.Environ(), "CRASH="+needs.Built(t, "gpu/crash.so"))
		var failed *exec.ExitError
		if err := cmd.Run(); !errors.As(err, &failed) || failed.ExitCode() != c.status {
			t.Errorf("%s: %v, not status %d", c.program, err, c.status)
		}
		text, err := os.ReadFile(log + ".0")
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range c.want {
			if !regexp.MustCompile(w).Match(text) {
				t.Errorf("%s: no %s in\n%s", c.program, w, text)
			}
		}
	}
}
