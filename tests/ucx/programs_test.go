package ucx

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/tests/ports"
)

var modes = []string{"full", "simple", "aggregate"}

// Programs that nobody here wrote: counts and bytes of every operation equal what a counting preload beside us saw.
func TestPerftest(t *testing.T) {
	if _, err := exec.LookPath("ucx_perftest"); err != nil {
		t.Skip(err)
	}
	const tcp, shm = "tcp,self", "posix,sysv,self"
	tests := []struct {
		name  string
		args  []string
		tls   []string
		modes []string
	}{
		{"tag_lat", nil, []string{tcp, shm}, modes},
		{"ucp_put_bw", []string{"-s", "4096"}, []string{tcp, shm}, modes},
		{"ucp_am_bw", []string{"-s", "1000"}, []string{tcp, shm}, modes},
		{"ucp_get", []string{"-s", "8192"}, []string{tcp, shm}, modes[:1]},
		{"ucp_add", nil, []string{tcp}, modes[:1]},
		{"ucp_fadd", nil, []string{shm}, modes[:1]},
		{"ucp_cswap", nil, []string{tcp}, modes[:1]},
		{"stream_bw", []string{"-s", "500"}, []string{tcp, shm}, modes[:1]},
		{"tag_bw", []string{"-s", "100000", "-n", "300", "-w", "30"}, []string{tcp, shm}, modes[:1]},
		{"tag_sync_lat", []string{"-C"}, []string{shm}, modes[:1]},
		{"tag_sync_bw", []string{"-s", "8,4000,8", "-D", "iov"}, []string{tcp}, modes[:1]},
		{"tag_lat", []string{"-T", "2", "-M", "multi", "-n", "500"}, []string{tcp}, modes[:1]},
	}
	for i, c := range tests {
		for j, tls := range c.tls {
			for k, mode := range c.modes {
				if testing.Short() && (i > 2 || j > 0 || k > 0) || j > 0 && k > 0 {
					continue
				}
				t.Run(fmt.Sprintf("%d-%s-%s-%s", i, c.name, tls, mode), func(t *testing.T) { perftest(t, c.name, tls, mode, c.args) })
			}
		}
	}
}

func perftest(t *testing.T, name, tls, mode string, extra []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	s := newSession(t, mode, true)
	port := ports.Of(t)
	args := append([]string{"-t", name, "-n", "2000", "-w", "200", "-p", strconv.Itoa(port)}, extra...)
	env := []string{"UCX_TLS=" + tls}
	server := s.command(ctx, env, "ucx_perftest", args...)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	listening(t, port)
	client := s.command(ctx, env, "ucx_perftest", append([]string{"127.0.0.1"}, args...)...)
	err := client.Run()
	finish(t, client, err)
	finish(t, server, server.Wait())
	all := s.compare(t, mode)
	if len(all) != 2 {
		t.Fatalf("%d captures of two processes", len(all))
	}
	for i, p := range all {
		reachable(t, p, all[1-i])
	}
}

// reachable tells that one endpoint of p leads to a worker of peer: the bytes read at its address begin with an address of that worker.
func reachable(t *testing.T, p, peer *process) {
	t.Helper()
	if len(p.endpoints) == 0 {
		t.Errorf("no endpoint of pid %d", p.header.Pid)
	}
	for _, e := range p.endpoints {
		found := false
		for _, addresses := range peer.addresses {
			for _, a := range addresses {
				n := min(len(a), len(e.address))
				found = found || n > 0 && bytes.Equal(a[:n], e.address[:n])
			}
		}
		if !found || e.worker == 0 || !e.ended || e.source != 1 {
			t.Errorf("endpoint %+v of pid %d leads to no worker of pid %d", *e, p.header.Pid, peer.header.Pid)
		}
	}
}

// ucp-client makes every form of every operation but nbr.
func TestClientOfEveryForm(t *testing.T) {
	for _, tls := range []string{"tcp,self", "posix,sysv,self"} {
		for _, mode := range modes {
			for seed := 1; seed <= 3; seed++ {
				if testing.Short() && seed > 1 {
					continue
				}
				t.Run(fmt.Sprintf("%s-%s-%d", tls, mode, seed), func(t *testing.T) {
					ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
					defer cancel()
					s := newSession(t, mode, true)
					c := s.command(ctx, []string{"UCX_TLS=" + tls}, build(t)+"/tests/ucp-client", "-s", strconv.Itoa(seed))
					err := c.Run()
					finish(t, c, err)
					s.compare(t, mode)
				})
			}
		}
	}
}

// Four ranks of Open MPI, whose component loads libucp by itself, out of the global scope.
func TestOpenMPI(t *testing.T) {
	if _, err := exec.LookPath("mpirun"); err != nil {
		t.Skip(err)
	}
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
			defer cancel()
			s := newSession(t, mode, true)
			args := []string{"--allow-run-as-root", "--oversubscribe", "-np", "4", "--mca", "plm", "isolated", "--mca", "pml", "ucx", "--mca", "osc", "ucx",
				"--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any", "--mca", "btl", "^openib", "-x", "UCX_TLS=posix,sysv,self,tcp"}
			for _, v := range append(s.env, "LD_PRELOAD="+strings.Join(s.preload, ":")) {
				args = append(args, "-x", v)
			}
			c := exec.CommandContext(ctx, "mpirun", append(args, build(t)+"/tests/mpi-app", "-n", "5")...)
			out, err := c.CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v\n%s", c, err, out)
			}
			all := s.compare(t, mode)
			if len(all) != 4 {
				t.Errorf("%d captures of 4 ranks", len(all))
			}
			ranks := map[int64]bool{}
			sends, received := uint64(0), uint64(0)
			for _, p := range all {
				ranks[p.header.Rank] = true
				sends += p.totals["tag_send"].Bytes
				received += p.completed.Bytes
			}
			if len(ranks) != 4 || sends != received {
				t.Errorf("ranks %v; sent %d bytes, received %d", ranks, sends, received)
			}
		})
	}
}

// What a program may do with the real library that its own tests do not.
func TestRealLibrary(t *testing.T) {
	build(t)
	client := filepath.Join(t.TempDir(), "real")
	compile(t, "gcc", "-O1", "-o", client, "testdata/real.c", "-lucp", "-lucs", "-lpthread")
	for _, scenario := range []string{"threads", "fork", "odd_ends", "callbacks", "sockaddr"} {
		for _, tls := range []string{"tcp,self", "posix,sysv,self"} {
			if scenario == "fork" && tls == "tcp,self" || scenario == "sockaddr" && tls != "tcp,self" {
				continue // UCX itself: its thread for tcp does not follow a fork; connections by address need tcp
			}
			t.Run(scenario+"-"+tls, func(t *testing.T) {
				s := newSession(t, "full", false)
				all := edge(t, s, []string{"UCX_TLS=" + tls}, client, scenario)
				if scenario != "sockaddr" {
					return
				}
				var sources []string
				for _, e := range all[0].endpoints {
					sources = append(sources, fmt.Sprint(e.source, strings.HasPrefix(e.name, "127.0.0.1:") && len(e.name) > 10, e.worker != 0))
				}
				slices.Sort(sources)
				if fmt.Sprint(sources) != "[2 true true 3 true true]" {
					t.Errorf("endpoints: %v", sources)
				}
			})
		}
	}
}

// A program that does not communicate leaves nothing and sees nothing: not even the names.
func TestProgramWithoutUCX(t *testing.T) {
	s := newSession(t, "full", false)
	c := s.command(context.Background(), nil, "/bin/sh", "-c", "echo hello; ls / >/dev/null; exit 3")
	err := c.Run()
	var exit *exec.ExitError
	if !asExit(err, &exit) || exit.ExitCode() != 3 || c.Stdout.(*bytes.Buffer).String() != "hello\n" {
		t.Errorf("%v: %s", err, c.Stdout)
	}
	if all := readRun(t, s.dir+"/capture"); len(all) != 0 {
		t.Errorf("%d captures", len(all))
	}
}
