package ibverbs

import (
	"os"
	"strings"
	"testing"
)

// Everything that a program can do with verbs, checked byte for byte by the program itself.
// F47, F48: inlined calls through the context's table, and the ibv_wr_* interface.
func TestF47F48VerbsClient(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, mode)
			r.run(built(t, "tests/verbs-client"))
			rec := r.compare(mode)
			if rec.files != 1 {
				t.Errorf("%d captures of one process", rec.files)
			}
		})
	}
}

// A program that looks its functions up with dlvsym, as NCCL does.
// F46, F47: a program that binds by dlopen and dlvsym only.
func TestF46F47DlvsymClient(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, mode)
			r.run(built(t, "tests/dlv-client"))
			r.compare(mode)
			if got := r.recorded().tables["write"]; got != (tally{200, 409600}) {
				t.Errorf("writes: %v", got)
			}
		})
	}
}

// Two processes with immediate data and unsignalled requests in both directions, which check what arrives.
func TestPeerClient(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, mode)
			r.pair(built(t, "tests/peer-client"), "-n", "30")
			rec := r.compare(mode)
			for op, n := range map[string]uint64{"send": 120, "write": 60, "write_imm": 60, "read": 60, "recv": 180, "completion": 190} {
				if got := rec.tables[op].Count; got != n {
					t.Errorf("%s: %d, want %d", op, got, n)
				}
			}
		})
	}
}

func TestPrograms(t *testing.T) {
	programs := []struct {
		name string
		args string
		want totals // of both processes, where the command line says it
	}{
		{"write_bw", "ib_write_bw -n 500 -s 4096", totals{"write": {500, 2048000}, "completion": {Count: 5}}},
		{"write_bw_old", "ib_write_bw -n 500 -s 4096 --use_old_post_send", totals{"write": {500, 2048000}, "completion": {Count: 5}}},
		{"write_bw_4_queues", "ib_write_bw -n 500 -q 4 -s 1024", totals{"write": {2000, 2048000}}},
		{"write_lat", "ib_write_lat -n 500", totals{"write": {1000, 2000}}},
		{"send_bw", "ib_send_bw -n 1000 -s 4096", totals{"send": {1000, 4096000}}},
		{"send_bw_events", "ib_send_bw -n 1000 -e", totals{"send": {1000, 65536000}}},
		{"send_bw_srq", "ib_send_bw -n 500 --use-srq -q 4", totals{"send": {2000, 131072000}}},
		{"send_bw_ud", "ib_send_bw -c UD -n 500 -s 1024", totals{"send": {500, 512000}}},
		{"send_lat_ud_old", "ib_send_lat -c UD -n 500 --use_old_post_send", totals{"send": {1000, 2000}}},
		{"read_bw", "ib_read_bw -n 500", totals{"read": {500, 32768000}}},
		{"atomic_bw", "ib_atomic_bw -n 500", totals{"atomic": {500, 4000}}},
		{"atomic_bw_cas", "ib_atomic_bw -n 500 -A CMP_AND_SWAP --use_old_post_send", totals{"atomic": {500, 4000}}},
		{"rc_pingpong", "ibv_rc_pingpong", totals{"send": {2000, 8192000}}},
		{"rc_pingpong_new_send", "ibv_rc_pingpong -N", totals{"send": {2000, 8192000}}},
		{"rc_pingpong_events", "ibv_rc_pingpong -e", totals{"send": {2000, 8192000}}},
		{"rc_pingpong_time_stamps", "ibv_rc_pingpong -t", totals{"send": {2000, 8192000}}},
		{"srq_pingpong", "ibv_srq_pingpong", nil},
		{"ud_pingpong", "ibv_ud_pingpong -s 2048", totals{"send": {2000, 4096000}}},
	}
	for _, p := range programs {
		args := strings.Fields(p.args)
		if strings.HasPrefix(args[0], "ib_") { // perftest ends with 1 where load keeps it from measuring the CPU's frequency, unless told not to care
			args = append(args, "-F")
		}
		t.Run(p.name, func(t *testing.T) {
			need(t, args[0])
			for _, mode := range modes {
				if testing.Short() && mode != "full" {
					continue
				}
				t.Run(mode, func(t *testing.T) {
					r := newRig(t, mode)
					r.pair(args...)
					rec := r.compare(mode)
					for op, want := range p.want {
						got := rec.tables[op]
						if op == "completion" {
							got.Bytes = 0
						}
						if got != want {
							t.Errorf("%s: %v, want %v", op, got, want)
						}
					}
				})
			}
		})
	}
}

// UCX's verbs transports: their plugin opens libibverbs privately, polls extended queues by poll_cq, and uses shared receive queues.
func TestUCX(t *testing.T) {
	need(t, "ucx_perftest")
	for _, tls := range []string{"rc_v", "ud_v"} {
		for _, test := range []string{"tag_lat", "ucp_put_bw", "ucp_am_bw"} {
			for _, mode := range modes {
				if testing.Short() && mode != "full" {
					continue
				}
				t.Run(tls+"/"+test+"/"+mode, func(t *testing.T) {
					r := newRig(t, mode)
					r.env = append(r.env, "LD_PRELOAD="+r.preload("ibverbs"), "UCX_TLS="+tls, "UCX_NET_DEVICES=mlx5_0:1", "UCX_LOG_LEVEL=warn")
					r.pair("ucx_perftest", "-t", test, "-n", "500", "-w", "50", "-s", "8192")
					rec := r.compare(mode)
					if n := rec.tables["send"].Count + rec.tables["write"].Count; n < 500 {
						t.Errorf("only %d requests", n)
					}
				})
			}
		}
	}
}

// With no other preload between us and UCX's plugin, whose libibverbs is not in the global scope.
func TestUCXAlone(t *testing.T) {
	need(t, "ucx_perftest")
	r := newRig(t, "full")
	r.env = append(r.env, "LD_PRELOAD="+strings.TrimPrefix(r.preload("ibverbs"), built(t, "tests/count-verbs.so")+":"), "UCX_TLS=rc_v", "UCX_NET_DEVICES=mlx5_0:1")
	r.pair("ucx_perftest", "-t", "ucp_put_bw", "-n", "500", "-w", "50", "-s", "8192")
	rec := r.recorded()
	if got := rec.tables["write"]; got != rec.events["write"] || got.Count < 500 || got.Bytes%8192 != 0 {
		t.Errorf("writes: tables %v, events %v", got, rec.events["write"])
	}
}

// Another preload behind us that looks for the functions behind its own in a library of the plugin's, and must not get ours: they would call
// each other without end.
func TestUCXOtherPreloadBehind(t *testing.T) {
	need(t, "ucx_perftest")
	r := newRig(t, "full")
	counter := built(t, "tests/count-verbs.so")
	r.env = append(r.env, "LD_PRELOAD="+strings.TrimPrefix(r.preload("ibverbs"), counter+":")+":"+counter, "UCX_TLS=rc_v", "UCX_NET_DEVICES=mlx5_0:1")
	r.pair("ucx_perftest", "-t", "ucp_put_bw", "-n", "500", "-w", "50", "-s", "8192")
	r.compare("full")
}

// Open MPI over UCX over verbs with both providers: what each rank does at the verbs layer, beside the same messages at the UCP layer.
func TestOpenMPI(t *testing.T) {
	need(t, "mpirun")
	for _, mode := range modes {
		if testing.Short() && mode != "full" {
			continue
		}
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, mode)
			r.env = append(r.env, "LD_PRELOAD=", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "UCX_TLS=rc_v,self", "UCX_NET_DEVICES=mlx5_0:1")
			args := strings.Fields("mpirun --oversubscribe -np 4 --mca plm isolated --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any --mca btl ^openib --mca osc ucx")
			for _, name := range []string{"UCX_TLS", "UCX_NET_DEVICES", "SIGMATRACE_CONFIG", "LD_LIBRARY_PATH", "SOFTHCA_SHM", "SOFTHCA_STATS", "COUNT_OUT", "LD_PRELOAD=" + r.preload("ucx", "ibverbs")} {
				args = append(args, "-x", name)
			}
			out := r.run(append(args, built(t, "tests/mpi-app"), "-n", "5")...)
			if !strings.Contains(out, "mpi-app ok 4 5") {
				t.Errorf("the program did not verify:\n%s", out)
			}
			rec := r.compare(mode)
			if rec.files != 4 {
				t.Errorf("%d captures of 4 ranks", rec.files)
			}
			if rec.tables["send"].Count == 0 || rec.tables["read"].Bytes == 0 {
				t.Errorf("no traffic over verbs: %v", rec.tables)
			}
		})
	}
}

// With no device there is nothing to record: no capture, and the same output and status as without us.
func TestNoDevice(t *testing.T) {
	for _, args := range [][]string{{"ibv_devices"}, {"ibv_devinfo"}, {"ib_write_bw", "-n", "5"}, {built(t, "tests/verbs-client")}, {built(t, "tests/dlv-client")}, {"true"}} {
		t.Run(args[0][strings.LastIndex(args[0], "/")+1:], func(t *testing.T) {
			need(t, args[0])
			r := newRig(t, "full")
			if _, err := os.Stat("/sys/class/infiniband"); err == nil {
				t.Skip("this machine has RDMA devices")
			}
			r.env = append(r.env, "LD_LIBRARY_PATH=")
			traced := r.command(args...)
			traced.Env = append(traced.Env, "LD_PRELOAD="+ours(t))
			plain := limited(t, limit, args...)
			plain.Dir = r.dir
			got, err := traced.CombinedOutput()
			want, werr := plain.CombinedOutput()
			if string(got) != string(want) || (err == nil) != (werr == nil) || err != nil && err.Error() != werr.Error() {
				t.Errorf("traced: %v\n%s\nuntraced: %v\n%s", err, got, werr, want)
			}
			if rec := r.recorded(); rec.files != 0 {
				t.Errorf("%d captures", rec.files)
			}
		})
	}
}
