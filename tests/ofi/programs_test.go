package ofi

import (
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
	"github.com/sigmatrace/sigmatrace/tests/ondisk"
	"github.com/sigmatrace/sigmatrace/tests/ports"
)

var modes = []string{"full", "simple", "aggregate"}

// variants are providers and endpoint types of Debian's libfabric that need no device.
var variants = []struct {
	name string
	args []string
}{
	{"tcp-rdm", []string{"-p", "tcp"}},
	{"shm-rdm", []string{"-p", "shm"}},
	{"tcp-msg", []string{"-p", "tcp", "-e", "msg"}},
	{"rxm", []string{"-p", "tcp;ofi_rxm"}},
	{"sockets", []string{"-p", "sockets"}},
	{"threads", []string{"-p", "tcp", "-t", "4"}},
}

// Every form of every operation, in every mode: counts, bytes and completions are those the client knows of and those the counting
// preload saw; in mode full every message is matched, and nothing is left open.
func TestClient(t *testing.T) {
	for n, v := range variants {
		for k, mode := range modes {
			if testing.Short() && (n > 2 || k > 0) {
				continue
			}
			t.Run(v.name+"/"+mode, func(t *testing.T) {
				place := behind
				if (n+k)%2 == 0 {
					place = ahead
				}
				r := start(t, mode, place, append([]string{built(t, "tests/ofi-client"), "-s", strconv.Itoa(11 + n)}, v.args...)...)
				i, saw := r.check("sent")
				r.check("count.ofi")
				sent := map[string]uint64{}
				for key, x := range r.ranks() {
					op, ends, _ := strings.Cut(key, " ")
					if ends != "0 1" && ends != "1 0" {
						t.Errorf("matrix: %s %v", key, x)
					}
					sent[op] += x.Bytes
				}
				for op, x := range saw {
					if !strings.HasSuffix(op, "recv") && sent[op] != x.Bytes {
						t.Errorf("matrix: %d bytes of %s, want %d", sent[op], op, x.Bytes)
					}
				}
				if mode != "full" {
					return
				}
				messages := saw["send"].Count + saw["tagged_send"].Count
				if i.Flows.Matched != messages || i.Unfinished != 0 || i.Surplus != 0 || i.Flows.Ambiguous != 0 {
					t.Errorf("%d messages: %+v, unfinished %d, surplus %d", messages, i.Flows, i.Unfinished, i.Surplus)
				}
			})
		}
	}
}

// A program that nobody here wrote.
func TestPingpong(t *testing.T) {
	need(t, "fi_pingpong")
	const script = `fi_pingpong -p "$1" -e $2 -I 100 -S 64 -B $3 >/dev/null & server=$!
at=":$(printf %04X $3) [0-9A-F]*:0000 0A"
n=0
until grep -qs "$at" /proc/net/tcp /proc/net/tcp6; do
	n=$((n + 1))
	if [ $n = 1200 ] || ! kill -0 $server; then kill $server; echo "nothing listens on port $3" >&2; exit 99; fi
	sleep 0.05
done
fi_pingpong -p "$1" -e $2 -I 100 -S 64 -P $3 127.0.0.1 >/dev/null || { status=$?; kill $server; exit $status; }
wait $server`
	for n, c := range [][2]string{{"tcp", "rdm"}, {"tcp", "msg"}, {"shm", "rdm"}, {"tcp;ofi_rxm", "rdm"}} {
		if testing.Short() && n > 0 {
			continue
		}
		t.Run(c[0]+"-"+c[1], func(t *testing.T) {
			r := start(t, "full", []string{behind, ahead}[n%2], "bash", "-c", script, "pingpong", c[0], c[1], strconv.Itoa(ports.Of(t)))
			i, saw := r.check("count.ofi")
			if saw["send"].Count < 200 || i.Flows.Matched != saw["send"].Count || i.Flows.Ambiguous != 0 || i.Processes.Total != 2 {
				t.Errorf("%v: %+v", saw, i)
			}
		})
	}
}

// Open MPI over libfabric: every message of its tagged interface, between ranks that are known by their endpoints' names.
func TestOpenMPI(t *testing.T) {
	need(t, "mpirun")
	for n, mode := range modes {
		if testing.Short() && n > 0 {
			continue
		}
		t.Run(mode, func(t *testing.T) {
			r := &run{t: t, dir: t.TempDir()}
			c := r.command(mode, "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "4", "--mca", "plm", "isolated", "--mca", "pml", "cm",
				"--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "tcp", "--mca", "btl", "^openib", "-x", "COUNT_OUT", "-x", "SENT_OUT", "-x", "COUNTERS",
				"sh", "-c", behind, "sh", built(t, "tests/mpi-app"), "-n", "5")
			if out, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			i, saw := r.check("count.ofi")
			own, _ := r.read("sent")
			if got := saw["tagged_send"]; own["mpi_send"].Count != 120 || got.Count <= own["mpi_send"].Count || got.Bytes <= own["mpi_send"].Bytes {
				t.Errorf("the program's own messages %v are not among %v", own, saw)
			}
			if len(r.ranks()) == 0 || i.Processes.Total != 4 {
				t.Errorf("%d processes, matrix %v", i.Processes.Total, r.ranks())
			}
			if mode == "full" && (i.Flows.Matched != saw["tagged_send"].Count || i.Unfinished != 0 || i.Surplus != 0) {
				t.Errorf("%+v, unfinished %d, surplus %d of %v", i.Flows, i.Unfinished, i.Surplus, saw)
			}
		})
	}
}

// compile makes a program of C files.
func compile(t *testing.T, args ...string) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "program")
	if out, err := exec.Command("gcc", append([]string{"-std=gnu11", "-Wall", "-Wextra", "-g", "-O1", "-o", exe}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return exe
}

// talked runs testdata/user.c and holds the account to what it says of itself.
func talked(t *testing.T, processes int, argv ...string) {
	t.Helper()
	r := &run{t: t, dir: t.TempDir()}
	c := r.command("full", argv...)
	var errs strings.Builder
	c.Stderr = &errs
	out, err := c.Output()
	n, noNumber := strconv.ParseUint(strings.TrimSpace(string(out)), 10, 64)
	if err != nil || noNumber != nil {
		t.Fatalf("%v: %s%s", err, out, &errs)
	}
	i := r.info()
	want := tally{n, n * 32}
	if ops := i.Operations["ofi"]; ops["tagged_send"] != want || ops["tagged_recv"] != want || i.Processes.Total != processes || i.Completions["ofi"] != 2*n {
		t.Errorf("%d messages: %+v", n, i)
	}
	if i.Flows.Matched != n || i.Flows.Ambiguous != 0 || i.Unfinished != 0 || i.Surplus != 0 || i.Lost.Events != 0 {
		t.Errorf("%d messages: %+v", n, i)
	}
}

// A program that opens the library itself, and forks; also while other threads record.
func TestDlopenAndFork(t *testing.T) {
	exe := compile(t, "testdata/user.c", "-ldl", "-lpthread")
	t.Run("Once", func(t *testing.T) { talked(t, 2, exe) })
	t.Run("WhileThreadsSend", func(t *testing.T) { talked(t, 21, exe, "20") })
}

// sent is how many messages each process has sent, as far as its tables are on the disk.
func (r *run) sent() []uint64 {
	return ondisk.Counted(filepath.Join(r.dir, "run", "capture"), catalogue.EventOfiSend)
}

// What was recorded of a killed process is there.
func TestKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	r := &run{t: t, dir: t.TempDir()}
	c := r.command("full", built(t, "tests/ofi-client"), "-n", "100000", "-s", "5")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if n := r.sent(); len(n) == 2 && slices.Min(n) >= 20 {
			break
		} else if time.Now().After(end) {
			t.Fatalf("sent after a minute: %v", n)
		}
	}
	procs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	killed := 0
	for _, p := range procs {
		env, err := os.ReadFile(p)
		pid, _ := strconv.Atoi(strings.Split(p, "/")[2])
		exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err == nil && strings.Contains(string(env), "SENT_OUT="+r.dir+"/sent\x00") && exe == built(t, "tests/ofi-client") {
			if syscall.Kill(pid, syscall.SIGKILL) == nil {
				killed++
			}
		}
	}
	if err := c.Wait(); err == nil || killed == 0 {
		t.Fatalf("%d processes killed: %v", killed, err)
	}
	i := r.info()
	ops := i.Operations["ofi"]
	if i.Processes.Total != 2 || ops["send"].Count < 10 || i.Flows.Matched+4 < ops["send"].Count || i.Lost.Events != 0 {
		t.Errorf("%+v", i)
	}
}
