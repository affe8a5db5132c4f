// Package e2e runs the built sigmatrace on real parallel programs, as a user would, and holds what it says of them against what
// others saw: counting preloads in the same processes (tests/count), clients that know what they sent (tests/clients), the software
// HCA's own statistics, and Perfetto's trace_processor. It needs what `make tests` builds.
package e2e

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
	"syscall"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/tests/ports"
)

// limit is for one command, on a machine that has much else to do.
const limit = 3 * time.Minute

// built returns the absolute path of something that the Makefile makes.
func built(t testing.TB, path string) string {
	t.Helper()
	p, err := filepath.Abs(filepath.Join("../../build", path))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("not built (run `make tests`): %v", err)
	}
	return p
}

func need(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%s is not installed", program)
	}
}

// spec says how a program is traced.
type spec struct {
	mode      string
	providers string
	hca       bool     // on the software HCA
	ahead     bool     // the counters stand before the recorder in LD_PRELOAD, not behind it
	noCount   bool     // no counters
	options   []string // of sigmatrace launch
	env       []string
}

// run is a traced program that has ended.
type run struct {
	t              *testing.T
	spec           spec
	dir            string // scratch folder
	path           string // run directory
	stdout, stderr string
	status         int
}

// newRun prepares a run without starting anything.
func newRun(t *testing.T, s spec) *run {
	t.Helper()
	dir := t.TempDir()
	if s.hca {
		if _, err := os.Stat("/dev/infiniband/uverbs0"); err != nil && strings.Contains(s.providers, "ucx") {
			t.Skip("UCX looks for the device node /dev/infiniband/uverbs0: tests/softhca/setup.sh makes it")
		}
		s.env = append(slices.Clone(s.env), "LD_LIBRARY_PATH="+filepath.Dir(built(t, "softhca/libibverbs.so.1")),
			"SOFTHCA_SHM="+filepath.Join(dir, "hca"), "SOFTHCA_STATS="+filepath.Join(dir, "stats"), "UCX_NET_DEVICES=mlx5_0:1")
	}
	return &run{t: t, spec: s, dir: dir, path: filepath.Join(dir, "run")}
}

func (r *run) counters() string {
	list := built(r.t, "tests/count-ucp.so") + ":" + built(r.t, "tests/count-uct.so")
	if r.spec.hca {
		list += ":" + built(r.t, "tests/count-verbs.so")
	}
	return list
}

// inFront starts a program with the counters before the recorder.
const inFront = `LD_PRELOAD=$COUNTERS:$LD_PRELOAD exec "$@"`

// plain is the command line of a program under sigmatrace launch.
func (r *run) plain(argv ...string) []string {
	if r.spec.ahead && !r.spec.noCount {
		return append([]string{"sh", "-c", inFront, "sh"}, argv...)
	}
	return argv
}

// mpirun is the command line of an Open MPI program over UCX.
func (r *run) mpirun(ranks int, argv ...string) []string {
	need(r.t, "mpirun")
	line := []string{"mpirun", "--allow-run-as-root", "--oversubscribe", "-np", strconv.Itoa(ranks), "--mca", "plm", "isolated", "--mca", "pml", "ucx",
		"--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any", "--mca", "btl", "^openib", "--mca", "osc", "ucx"}
	for _, v := range r.spec.env {
		name, _, _ := strings.Cut(v, "=")
		line = append(line, "-x", name)
	}
	switch {
	case r.spec.noCount:
	case r.spec.ahead:
		line = append(line, "-x", "COUNT_OUT", "-x", "SENT_OUT", "-x", "COUNTERS", "sh", "-c", inFront, "sh")
	default:
		line = append(line, "-x", "COUNT_OUT", "-x", "SENT_OUT", "-x", "LD_PRELOAD="+r.counters())
	}
	return append(line, argv...)
}

// pair is a shell script: server and client of a program that is both, as perftest and rdma-core's examples are.
const pair = `port=$1; shift
"$@" -p $port & server=$!
at=":$(printf %04X $port) [0-9A-F]*:0000 0A"
n=0
until grep -qs "$at" /proc/net/tcp /proc/net/tcp6; do
	n=$((n + 1))
	if [ $n = 600 ]; then kill $server; echo "nothing listens on port $port" >&2; exit 99; fi
	sleep 0.05
done
"$@" -p $port 127.0.0.1; client=$?
wait $server; server=$?
exit $((client > server ? client : server))`

func (r *run) pair(argv ...string) []string {
	need(r.t, argv[0])
	return append(r.plain("bash", "-c", pair, "pair", strconv.Itoa(ports.Of(r.t))), argv...)
}

// command is `sigmatrace launch` of a command line, not started.
func (r *run) command(argv ...string) *exec.Cmd {
	line := append([]string{"launch", "-p", r.spec.mode, "--providers", r.spec.providers, "-o", r.path}, r.spec.options...)
	cmd := sigmatrace(r.t, append(append(line, "--"), argv...)...)
	cmd.Env = append(os.Environ(), "COUNT_OUT="+filepath.Join(r.dir, "count"), "SENT_OUT="+filepath.Join(r.dir, "sent"), "COUNTERS="+r.counters())
	if !r.spec.ahead && !r.spec.noCount && argv[0] != "mpirun" {
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+r.counters())
	}
	cmd.Env = append(cmd.Env, r.spec.env...)
	cmd.Dir = r.dir
	return cmd
}

// launch runs a command line to its end, whatever its status.
func (r *run) launch(argv ...string) *run {
	r.t.Helper()
	r.stdout, r.stderr, r.status = execute(r.t, r.command(argv...))
	return r
}

// succeed fails the test where the launch did not end with 0.
func (r *run) succeed() *run {
	r.t.Helper()
	if r.status != 0 {
		r.t.Fatalf("launch ended with %d\n%s\n%s", r.status, r.stdout, r.stderr)
	}
	return r
}

// sigmatrace is a command of ours, not started.
func sigmatrace(t *testing.T, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, built(t, "bin/sigmatrace"), args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it takes its child along
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// execute runs a command and returns its status, 128+n for a signal.
func execute(t *testing.T, cmd *exec.Cmd) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	return out.String(), errs.String(), statusOf(t, cmd, err)
}

func statusOf(t *testing.T, cmd *exec.Cmd, err error) int {
	t.Helper()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", strings.Join(cmd.Args, " "), err)
	}
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return cmd.ProcessState.ExitCode()
}

type tally struct{ Count, Bytes uint64 }

// totals by operation, as the layer names them; "completion" for completions.
type totals map[string]tally

func (a totals) add(name string, v tally) {
	if v.Count > 0 {
		a[name] = tally{a[name].Count + v.Count, a[name].Bytes + v.Bytes}
	}
}

func (a totals) String() string {
	var s []string
	for _, name := range slices.Sorted(maps.Keys(a)) {
		s = append(s, fmt.Sprintf("%s %d (%d B)", name, a[name].Count, a[name].Bytes))
	}
	return strings.Join(s, ", ")
}

// counterNames are the names of the counting preloads where they are not those of the layer; "" where the layer has no such operation.
var counterNames = map[string]string{"stream_recv": "", "send_imm": "send", "send_inv": "send", "srq_recv": "recv", "cqe": "completion", "cqe_error": "completion"}

// truth is what the counting preload of a layer saw, by pid.
func (r *run) truth(layer string) map[int]totals {
	r.t.Helper()
	return r.read("count." + layer + ".")
}

// read sums files of counts, PREFIX<pid>.
func (r *run) read(prefix string) map[int]totals {
	r.t.Helper()
	names, err := filepath.Glob(filepath.Join(r.dir, prefix+"*"))
	if err != nil {
		r.t.Fatal(err)
	}
	all := map[int]totals{}
	for _, name := range names {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(name), prefix))
		if err != nil {
			r.t.Fatal(err)
		}
		var counted totals
		readJSON(r.t, name, &counted)
		all[pid] = totals{}
		for op, v := range counted {
			if to, other := counterNames[op]; !other {
				all[pid].add(op, v)
			} else if to != "" {
				all[pid].add(to, v)
			}
		}
	}
	return all
}

func sum(all map[int]totals) totals {
	s := totals{}
	for _, one := range all {
		for op, v := range one {
			s.add(op, v)
		}
	}
	return s
}

func readJSON(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// hcaStats are the software HCA's own counts, over all processes.
type hcaStats struct {
	Requests, Bytes     map[string]uint64
	SendCQEs, RecvCQEs  uint64
	Errors, RecvsPosted uint64
}

func (r *run) hca() hcaStats {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, "stats"))
	if err != nil {
		r.t.Fatal(err)
	}
	all := hcaStats{Requests: map[string]uint64{}, Bytes: map[string]uint64{}}
	for line := range strings.Lines(string(text)) {
		var s struct {
			Requests, Bytes map[string]uint64
			SendCQEs        uint64 `json:"send_cqes"`
			RecvCQEs        uint64 `json:"recv_cqes"`
			ErrorCQEs       uint64 `json:"error_cqes"`
			RecvPosted      uint64 `json:"recv_posted"`
			SRQRecvPosted   uint64 `json:"srq_recv_posted"`
		}
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			r.t.Fatalf("%v: %s", err, line)
		}
		for op, n := range s.Requests {
			all.Requests[op] += n
			all.Bytes[op] += s.Bytes[op]
		}
		all.SendCQEs += s.SendCQEs
		all.RecvCQEs += s.RecvCQEs
		all.Errors += s.ErrorCQEs
		all.RecvsPosted += s.RecvPosted + s.SRQRecvPosted
	}
	return all
}

// snapshot is every file below a folder: name, mode, time and content.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		all[path] = fmt.Sprint(info.Mode(), info.ModTime(), string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func same(t *testing.T, what string, before, after map[string]string) {
	t.Helper()
	for path := range before {
		if after[path] != before[path] {
			t.Errorf("%s: %s was changed or removed", what, path)
		}
	}
	for path := range after {
		if _, ok := before[path]; !ok {
			t.Errorf("%s: %s is new", what, path)
		}
	}
}
