package ibverbs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// withFakeMlx5 puts a libmlx5.so.1 before the software HCA's in which every call succeeds.
func (r *rig) withFakeMlx5() {
	r.t.Helper()
	lib := r.t.TempDir()
	script := filepath.Join(lib, "map")
	if err := os.WriteFile(script, []byte("MLX5_1.2 { global: mlx5dv_init_obj; local: *; };\nMLX5_1.7 { global: mlx5dv_devx_*; };\n"), 0o600); err != nil {
		r.t.Fatal(err)
	}
	compile(r.t, filepath.Join(lib, "libmlx5.so.1"), "-shared", "-fPIC", "testdata/fake_mlx5.c", "-Wl,-soname,libmlx5.so.1", "-Wl,--version-script,"+script)
	r.env = append(r.env, "LD_LIBRARY_PATH="+lib+":"+filepath.Dir(built(r.t, "softhca/libibverbs.so.1")))
}

// A queue pair whose rings the program has asked for is named: its requests pass no call.
// F50: what bypasses verbs is named.
func TestF50BlindQueuePair(t *testing.T) {
	r := newRig(t, "full")
	r.withFakeMlx5()
	out := r.run(client(t), "blind")
	if !strings.HasSuffix(strings.TrimSpace(out), " 0") {
		t.Fatalf("mlx5dv_init_obj failed: %s", out)
	}
	rec := r.recorded()
	if d := rec1(t, rec, "verbs_blind"); d["queue_pair"] != rec1(t, rec, "verbs_qp")["object"] || d["reason"] == "" {
		t.Errorf("%v", d)
	}
}

// So is one that was made by a command to the device, of which libibverbs knows nothing.
func TestDevxQueuePair(t *testing.T) {
	r := newRig(t, "full")
	r.withFakeMlx5()
	r.run(client(t), "devx")
	rec := r.recorded()
	qp := rec1(t, rec, "verbs_qp")
	if qp["qpn"] != uint64(0x123456) || qp["type"] != uint64(4) || qp["device"] != rec1(t, rec, "verbs_device")["object"] {
		t.Errorf("queue pair: %v", qp)
	}
	if d := rec1(t, rec, "verbs_blind"); d["queue_pair"] != qp["object"] {
		t.Errorf("%v", d)
	}
	// The client makes and ends a completion queue too.
	cqs, ends := rec.defs["verbs_cq"], rec.defs["object_end"]
	if len(ends) != 2 || ends[0]["object"] != qp["object"] || ends[1]["object"] != cqs[len(cqs)-1]["object"] {
		t.Errorf("%v ended, of completion queues %v", ends, cqs)
	}
}

// How it is connected stands in the commands, so its peer is known: two processes, each with a queue of the other's.
func TestDevxConnection(t *testing.T) {
	r := newRig(t, "full")
	r.env = append(r.env, "SOFTHCA_DEVX=1")
	r.run(built(t, "softhca/devx_check"), "between")
	rec := r.recorded()
	qps := rec.defs["verbs_qp"]
	if len(qps) != 2 {
		t.Fatalf("%d queue pairs, want 2: %v", len(qps), qps)
	}
	// Both captures count their objects anew, and each has one queue pair.
	var peers []any
	for _, m := range rec.defs["verbs_qp_modify"] {
		switch m["state"] {
		case uint64(1):
			if m["port"] != uint64(1) {
				t.Errorf("port: %v", m)
			}
		case uint64(3):
		case uint64(2):
			if m["dlid"] != uint64(1) || m["service_level"] != uint64(3) || m["path_mtu"] != uint64(4096) {
				t.Errorf("path: %v", m)
			}
			peers = append(peers, m["dest_qpn"])
		default:
			t.Errorf("state: %v", m)
		}
	}
	if len(rec.defs["verbs_qp_modify"]) != 6 || len(peers) != 2 || peers[0] != qps[1]["qpn"] || peers[1] != qps[0]["qpn"] {
		t.Errorf("queue pairs %v with peers %v", qps, peers)
	}
	for _, q := range qps {
		if q["send_entries"] != uint64(64) {
			t.Errorf("queue of 64 blocks: %v", q)
		}
	}
}
