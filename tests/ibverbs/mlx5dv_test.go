package ibverbs

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/tests/objects"
)

// linked is the client that is linked with libmlx5, and lookedUp the one that opens it.
func linked(t *testing.T) string {
	t.Helper()
	return compile(t, filepath.Join(t.TempDir(), "linked"), "-DLINKED", "testdata/mlx5dv.c", "-lmlx5", "-libverbs", "-ldl")
}

func lookedUp(t *testing.T) string {
	t.Helper()
	return compile(t, filepath.Join(t.TempDir(), "looked-up"), "testdata/mlx5dv.c", "-libverbs", "-ldl")
}

// Whatever way a program finds libmlx5's functions (linked with their versions, as NVSHMEM is; by dlvsym and dlsym, as NCCL does), what it makes is recorded as it was made: pages of doorbells,
// memory with the GPU that it is of, completion queues and queue pairs with their rings.
func TestQueuesOfPrograms(t *testing.T) {
	direct, looked := linked(t), lookedUp(t)
	for _, how := range []string{"linked", "dlvsym", "dlsym"} {
		for _, where := range []string{"host", "gpu", "hip"} {
			t.Run(how+"/"+where, func(t *testing.T) {
				r := newRig(t, "aggregate")
				r.env = append(r.env, "SOFTHCA_DEVX=1", "LD_LIBRARY_PATH="+filepath.Dir(built(t, "softhca/libibverbs.so.1"))+":"+filepath.Dir(built(t, "standin/libcuda.so.1"))+":"+filepath.Dir(built(t, "hip/libamdhip64.so.6")))
				args := []string{looked, how}
				if how == "linked" {
					args[0] = direct
				}
				if where != "host" {
					args = append(args, where)
				}
				r.checkQueues(values(t, r.run(args...)), where != "host")
			})
		}
	}
}

// checkQueues holds what was recorded of testdata/mlx5dv.c against the numbers that it printed.
func (r *rig) checkQueues(want map[string]uint64, gpu bool) {
	t := r.t
	t.Helper()
	rec := r.recorded()
	device := rec1(t, rec, "verbs_device")["object"]
	equal := func(what string, got map[string]any, want map[string]any) {
		t.Helper()
		for name, v := range want {
			if got[name] != v {
				t.Errorf("%s: %s is %v, want %v", what, name, got[name], v)
			}
		}
	}
	uar := rec1(t, rec, "mlx5_uar")
	equal("page", uar, map[string]any{"device": device, "number": want["uar"], "address": want["bell"]})
	umems := rec.defs["mlx5_umem"]
	if len(umems) != 2 {
		t.Fatalf("memories: %v", umems)
	}
	rings := map[string]any{"device": device, "number": want["rings"], "address": want["ring"], "length": uint64(65536), "of_gpu": uint64(0), "gpu": uint64(0), "context": uint64(0), "uuid": ""}
	if gpu {
		rings["of_gpu"], rings["gpu"], rings["context"], rings["uuid"] = uint64(1), uint64(1), want["context"], strings.Repeat("Z", 15)+"\x01"
	}
	equal("rings", umems[0], rings)
	equal("records", umems[1], map[string]any{"number": want["records"], "address": want["record"], "length": uint64(4096), "of_gpu": uint64(0)})
	cq, ring := rec.defs["verbs_cq"][0], rec.defs["mlx5_ring"]
	equal("completion queue", cq, map[string]any{"device": device, "entries": uint64(128)})
	if len(ring) != 2 {
		t.Fatalf("rings: %v", ring)
	}
	equal("its ring", ring[0], map[string]any{"queue": cq["object"], "number": want["cqn"], "memory": umems[0]["object"], "offset": uint64(8192), "entries": uint64(128), "entry_bytes": uint64(64),
		"record_memory": umems[1]["object"], "record_offset": uint64(64), "uar": uar["object"]})
	qps := rec.defs["verbs_qp"]
	if len(qps) != 3 {
		t.Fatalf("queue pairs: %v", qps)
	}
	equal("queue pair", qps[0], map[string]any{"device": device, "qpn": want["qpn"], "type": uint64(2), "send_cq": cq["object"], "recv_cq": uint64(0), "send_entries": uint64(32), "recv_entries": uint64(0)})
	equal("its ring", ring[1], map[string]any{"queue": qps[0]["object"], "number": want["qpn"], "memory": umems[0]["object"], "offset": uint64(4096), "entries": uint64(32), "entry_bytes": uint64(64),
		"record_memory": umems[1]["object"], "record_offset": uint64(128), "uar": uar["object"]})
	equal("of mlx5dv_create_qp", qps[1], map[string]any{"device": device, "qpn": want["dct"]})
	states := rec.defs["verbs_qp_modify"]
	if len(states) != 4 {
		t.Fatalf("changes of state: %v", states)
	}
	equal("its state", states[0], map[string]any{"queue_pair": qps[0]["object"], "state": uint64(1), "port": uint64(1)})
	equal("of verbs", qps[2], map[string]any{"device": device, "qpn": want["connected"]})
	for i, peer := range []uint64{0, want["qpn"], 0} { // to init, to receiving, to sending
		equal("its state", states[i+1], map[string]any{"queue_pair": qps[2]["object"], "state": uint64(i + 1), "dest_qpn": peer})
	}
	equal("what is not seen", rec1(t, rec, "verbs_blind"), map[string]any{"queue_pair": qps[0]["object"]})
	var ended []any
	for _, e := range rec.defs["object_end"] {
		ended = append(ended, e["object"])
	}
	for _, o := range []any{uar["object"], umems[0]["object"], umems[1]["object"], cq["object"], qps[0]["object"], qps[1]["object"], qps[2]["object"]} {
		if !slices.Contains(ended, o) {
			t.Errorf("object %v has not ended: %v", o, ended)
		}
	}
}

// A program linked with libmlx5 asks for its functions by version, and gets ours of that version.
func TestLinkedVersions(t *testing.T) {
	f, err := elf.Open(linked(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	asked := map[string]string{}
	for _, s := range symbols {
		if s.Library == "libmlx5.so.1" {
			asked[s.Name] = s.Version
		}
	}
	ours, err := elf.Open(built(t, "lib/sigmatrace/provider-mlx5dv.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	exported, err := ours.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	given := 0
	for _, s := range exported {
		if v, ok := asked[s.Name]; ok && s.Section != elf.SHN_UNDEF {
			given++
			if v != s.Version || v == "" {
				t.Errorf("%s is asked for as of %q, ours is of %q", s.Name, v, s.Version)
			}
		}
	}
	if given != 11 || asked["mlx5dv_is_supported"] != "MLX5_1.8" { // which is not hooked
		t.Errorf("%d of %v are ours", given, asked)
	}
}

// A version is answered by that version: what another version's callers mean is the library's, and what the library has not stays missing.
func TestF46VersionsOfMlx5(t *testing.T) {
	r := newRig(t, "full")
	own, library := filepath.Base(ours(t)), "libmlx5.so"
	want := []string{"mlx5dv_init_obj MLX5_1.0 " + library, "mlx5dv_init_obj MLX5_1.2 " + own, "mlx5dv_init_obj default " + own, "mlx5dv_is_supported MLX5_1.8 " + library,
		"mlx5dv_devx_umem_reg_ex MLX5_1.19 " + own, "mlx5dv_devx_umem_reg_ex MLX5_1.7 missing", "mlx5dv_reg_dmabuf_mr MLX5_1.25 missing", "mlx5dv_get_data_direct_sysfs_path MLX5_1.25 missing",
		"mlx5dv_reg_dmabuf_mr default missing"}
	var got []string
	for line := range strings.Lines(r.run(lookedUp(t), "resolve")) {
		f := strings.Fields(line)
		got = append(got, f[0]+" "+f[1]+" "+filepath.Base(f[2]))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

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

// It is named where people look: in the manifest, and in the trace.
func TestF50NamedInManifestAndTrace(t *testing.T) {
	r := newRig(t, "full")
	r.withFakeMlx5()
	r.env = append(r.env, "SIGMATRACE_CONFIG=", "LD_PRELOAD=")
	out := r.run(built(t, "bin/sigmatrace"), "launch", "-p", "simple", "--providers", "mlx5dv", "-o", "run", "--", client(t), "blind")
	name, reason := fmt.Sprintf("QP %#x", values(t, out)["blind"]), "asked for with mlx5dv_init_obj"
	text, err := os.ReadFile(filepath.Join(r.dir, "run", "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest rundir.Manifest
	if err := json.Unmarshal(text, &manifest); err != nil {
		t.Fatal(err)
	}
	info, err := merge.ParseInfo(manifest.Result)
	if err != nil {
		t.Fatal(err)
	}
	if b := info.Blind; len(b) != 1 || b[0].Name != name || !strings.Contains(b[0].Reason, reason) {
		t.Errorf("the manifest names %+v", b)
	}
	f, err := os.Open(filepath.Join(r.dir, "run", "trace.pftrace"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	trace, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"not_seen_1", name + ": its rings were " + reason} {
		if !bytes.Contains(trace, []byte(want)) {
			t.Errorf("%q is not in the trace", want)
		}
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

// Preloaded without the provider whose objects it records on, which no profile does, it hands every call through.
func TestMlx5dvWithoutIbverbs(t *testing.T) {
	r := newRig(t, "full")
	libs := objects.Apart(filepath.Dir(built(t, "lib/sigmatrace/libsigmatrace.so")), "mlx5dv")
	r.env = append(r.env, "SOFTHCA_DEVX=1", "LD_PRELOAD="+strings.Join(libs, ":"))
	if out := r.run(linked(t), "linked"); !strings.Contains(out, "\ndct ") {
		t.Errorf("the client says %s", out)
	}
	if rec := r.recorded(); rec.files != 0 {
		t.Errorf("%d captures", rec.files)
	}
}

// In objects of their own the two work as in one.
func TestMlx5dvApart(t *testing.T) {
	r := newRig(t, "full")
	libs := objects.Apart(filepath.Dir(built(t, "lib/sigmatrace/libsigmatrace.so")), "mlx5dv", "ibverbs")
	r.env = append(r.env, "SOFTHCA_DEVX=1", "LD_PRELOAD="+strings.Join(libs, ":"))
	r.checkQueues(values(t, r.run(linked(t), "linked")), false)
}
