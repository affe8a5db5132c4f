package ibverbs

import (
	"bufio"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

func compile(t *testing.T, out string, args ...string) string {
	t.Helper()
	args = append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o", out}, args...)
	if b, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc %s: %v\n%s", strings.Join(args, " "), err, b)
	}
	return out
}

func client(t *testing.T) string {
	t.Helper()
	return compile(t, filepath.Join(t.TempDir(), "client"), "testdata/client.c", "-libverbs", "-lpthread", "-ldl")
}

// values reads the `name value` lines that a client prints.
func values(t *testing.T, out string) map[string]uint64 {
	t.Helper()
	m := map[string]uint64{}
	for s := bufio.NewScanner(strings.NewReader(out)); s.Scan(); {
		var name string
		var v uint64
		if _, err := fmt.Sscan(s.Text(), &name, &v); err == nil {
			m[name] = v
		}
	}
	return m
}

// find returns the definition of that name whose field has the value.
func (rec *recorded) find(t *testing.T, name, field string, value uint64) map[string]any {
	t.Helper()
	for _, d := range rec.defs[name] {
		if d[field] == value {
			return d
		}
	}
	t.Fatalf("no definition %s with %s = %d", name, field, value)
	return nil
}

func (rec *recorded) named(name string) []capture.Event {
	var out []capture.Event
	for _, ev := range rec.list {
		if catalogue.Default.Event(ev.ID).Name == name {
			out = append(out, ev)
		}
	}
	return out
}

// Every field of every kind of record holds what the program passed, and the definitions say how the queues hang together.
func TestFields(t *testing.T) {
	r := newRig(t, "full")
	v := values(t, r.run(client(t), "fields"))
	rec := r.compare("full")

	mr := rec1(t, rec, "verbs_mr")
	device := rec.defs["verbs_device"][0]
	a, b, u := rec.find(t, "verbs_qp", "qpn", v["a"]), rec.find(t, "verbs_qp", "qpn", v["b"]), rec.find(t, "verbs_qp", "qpn", v["u"])
	cq, ah := rec.defs["verbs_cq"][0]["object"].(uint64), rec.defs["verbs_ah"][0]["object"].(uint64)
	id := func(d map[string]any) uint64 { return d["object"].(uint64) }
	if mr["address"] != v["buffer"] || mr["length"] != uint64(65536) || mr["access"] != uint64(15) {
		t.Errorf("region: %v", mr)
	}
	key := mr["remote_key"].(uint64)
	if key == v["rkey"] || key == 0 {
		t.Errorf("the region's key is stored as it is: %d", key)
	}
	for _, d := range []map[string]any{a, b, u} {
		if d["device"] != device["object"] || d["send_cq"] != cq || d["recv_cq"] != cq || d["pd"] != mr["pd"] {
			t.Errorf("queue pair hangs wrongly: %v", d)
		}
	}
	if device["device"] != "mlx5_0" || device["ports"] != uint64(1) || device["node_guid"] == uint64(0) {
		t.Errorf("device: %v", device)
	}
	port := rec.find(t, "verbs_port", "device", id(device))
	if port["port"] != uint64(1) || port["lid"] != v["lid"] || port["state"] != uint64(4) || port["mtu"] != uint64(4096) {
		t.Errorf("port: %v", port)
	}
	gid := rec.find(t, "verbs_gid", "device", id(device))["gid"]
	rtr := rec.find(t, "verbs_qp_modify", "dest_qpn", v["b"])
	if rtr["queue_pair"] != id(a) || rtr["state"] != uint64(2) || rtr["dgid"] != gid || rtr["dlid"] != v["lid"] || rtr["path_mtu"] != uint64(1024) || rtr["port"] != uint64(1) {
		t.Errorf("connection of a: %v", rtr)
	}
	if d := rec.defs["verbs_ah"][0]; d["dgid"] != gid || d["port"] != uint64(1) {
		t.Errorf("address handle: %v", d)
	}
	if n := len(rec.defs["object_end"]); n != 8 {
		t.Errorf("%d of the program's 8 objects end", n)
	}

	buffer := v["buffer"]
	check := func(name string, i int, want map[string]uint64) {
		t.Helper()
		list := rec.named(name)
		if i >= len(list) {
			t.Errorf("%s: %d of them", name, len(list))
			return
		}
		for f, w := range want {
			if got := field(&list[i], f); got != w {
				t.Errorf("%s %d: %s = %#x, want %#x", name, i, f, got, w)
			}
		}
	}
	check("verbs_recv", 0, map[string]uint64{"queue": id(b), "wr_id": 70, "bytes": 100, "sges": 1, "local_address": buffer + 40000, "local_key": key, "call": 0})
	check("verbs_recv", 1, map[string]uint64{"queue": id(b), "wr_id": 71, "bytes": 3100, "sges": 2, "local_address": buffer + 40000, "call": 1})
	check("verbs_sge", 0, map[string]uint64{"queue_pair": id(b), "index": 1, "local_address": buffer + 41000, "local_key": key, "bytes": 3000})
	check("verbs_send", 0, map[string]uint64{"queue_pair": id(a), "wr_id": 0x1122334455667788, "bytes": 10, "opcode": 3, "flags": 4, "sges": 1, "local_address": buffer + 1,
		"local_key": key, "remote_address": 0, "remote_key": 0, "immediate": 0xabcd1234, "call": 0})
	check("verbs_write", 0, map[string]uint64{"queue_pair": id(a), "wr_id": 2, "bytes": 48, "opcode": 0, "flags": 8, "sges": 3, "local_address": buffer + 1,
		"remote_address": buffer + 32768, "remote_key": key, "immediate": 0, "call": 1})
	check("verbs_sge", 1, map[string]uint64{"queue_pair": id(a), "index": 1, "local_address": buffer + 100, "bytes": 8})
	check("verbs_sge", 2, map[string]uint64{"queue_pair": id(a), "index": 2, "local_address": buffer + 1000, "bytes": 30})
	check("verbs_atomic", 0, map[string]uint64{"queue_pair": id(a), "wr_id": 3, "bytes": 8, "opcode": 5, "flags": 3, "local_address": buffer + 100, "local_key": key,
		"remote_address": buffer + 50000, "remote_key": key, "compare_add": 5, "swap": 6, "call": 1})
	check("verbs_read", 0, map[string]uint64{"queue_pair": id(b), "wr_id": 4, "bytes": 10, "opcode": 4, "flags": 2, "remote_address": buffer + 32768, "remote_key": key, "call": 0})
	check("verbs_datagram", 0, map[string]uint64{"queue_pair": id(u), "wr_id": 5, "bytes": 10, "opcode": 2, "flags": 2, "address_handle": ah, "remote_qpn": v["u"], "call": 0})
	check("verbs_completion", 0, map[string]uint64{"queue_pair": id(b), "wr_id": 70, "completion_queue": cq, "status": 0, "opcode": 128, "bytes": 10, "immediate": 0xabcd1234, "source_qpn": 0})
	check("verbs_completion", 1, map[string]uint64{"queue_pair": id(a), "wr_id": 3, "opcode": 3, "bytes": 8})
	check("verbs_completion", 2, map[string]uint64{"queue_pair": id(b), "wr_id": 4, "opcode": 2, "bytes": 10})
	var received bool
	for _, ev := range rec.named("verbs_completion")[3:] {
		if field(&ev, "opcode") == 128 {
			received = field(&ev, "bytes") == 50 && field(&ev, "source_qpn") == v["u"] && field(&ev, "queue_pair") == id(u)
		}
	}
	if !received {
		t.Error("the datagram's receive completion is not as it was")
	}
	check("verbs_notify", 0, map[string]uint64{"completion_queue": cq, "solicited_only": 1})
}

// Empty polls are counted, none lost and none made up, each run on its queue and none longer than the time between two events of it.
func TestEmptyPolls(t *testing.T) {
	r := newRig(t, "full")
	v := values(t, r.run(client(t), "polls"))
	rec := r.compare("full")
	counts := map[uint64]uint64{}
	runs := map[uint64]int{}
	for _, ev := range rec.named("verbs_empty_polls") {
		counts[field(&ev, "completion_queue")] += field(&ev, "count")
		runs[field(&ev, "completion_queue")]++
		if field(&ev, "count") > 1 && field(&ev, "duration") == 0 {
			t.Errorf("%d polls took no time", field(&ev, "count"))
		}
	}
	first, second := rec.defs["verbs_cq"][0]["object"].(uint64), rec.defs["verbs_cq"][1]["object"].(uint64)
	if counts[first] != v["empty"] || counts[second] != v["elsewhere"] || len(counts) != 2 {
		t.Errorf("empty polls %v, the program had %d on %d and %d on %d", counts, v["empty"], first, v["elsewhere"], second)
	}
	// A run ends with each completion; the other queue's goes on until it is armed, or has lasted its longest.
	if runs[first] < 3 || runs[second] < 1 {
		t.Errorf("runs: %v", runs)
	}
	if n := len(rec.named("verbs_completion")); n != 3 || v["found"] != 3 {
		t.Errorf("%d completions, the program found %d", n, v["found"])
	}
}

func TestInterleavedBatches(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, mode)
			r.run(client(t), "interleaved")
			rec := r.compare(mode)
			for op, want := range map[string]tally{"write": {35, 10*1000 + 25*7}, "read": {50, 50 * 111}} {
				if got := rec.tables[op]; got != want {
					t.Errorf("%s: %v, want %v", op, got, want)
				}
			}
		})
	}
}

// A child goes on with patched tables, whether or not fork handlers ran, and what it does is in a capture of its own.
func TestFork(t *testing.T) {
	for _, how := range []string{"forked", "forked_raw"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t, "full")
			r.run(client(t), how)
			rec := r.recorded()
			if rec.files != 2 {
				t.Fatalf("%d captures of two processes", rec.files)
			}
			if want := (tally{25, 20*100 + 5*300}); rec.tables["write"] != want || rec.events["write"] != want {
				t.Errorf("writes: tables %v, events %v, want %v", rec.tables["write"], rec.events["write"], want)
			}
			if n := rec.queues[0]; n > 0 {
				t.Errorf("%d events of unknown queues", n)
			}
			if n := len(rec.defs["verbs_qp"]); n != 2 {
				t.Errorf("%d queue pairs defined, want one in each process", n)
			}
			if n := len(rec.defs["verbs_device"]); n != 2 {
				t.Errorf("%d devices defined, want one in each process", n)
			}
		})
	}
	t.Run("idle", func(t *testing.T) {
		r := newRig(t, "full")
		r.run(client(t), "forked_idle")
		if rec := r.recorded(); rec.files != 1 {
			t.Errorf("%d captures, but only the parent communicates", rec.files)
		}
	})
}

// 4,000 queue pairs at once, made and destroyed by four threads, twice.
func TestManyQueuePairs(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, mode)
			r.run(client(t), "storm", "4", "1000")
			rec := r.compare(mode)
			if want := (tally{8000, 128000}); rec.tables["write"] != want {
				t.Errorf("writes: %v, want %v", rec.tables["write"], want)
			}
			if n := len(rec.defs["verbs_qp"]); n != 8000 {
				t.Errorf("%d queue pairs defined, want 8000", n)
			}
			if n := len(rec.defs["object_end"]); n != 8000 {
				t.Errorf("%d objects ended, want the 8000 queue pairs", n)
			}
		})
	}
}

func rec1(t *testing.T, rec *recorded, name string) map[string]any {
	t.Helper()
	if len(rec.defs[name]) != 1 {
		t.Fatalf("%d definitions %s, want 1", len(rec.defs[name]), name)
	}
	return rec.defs[name][0]
}

// Return values and errno are those of the library, of calls that succeed and of calls that fail.
// F52: failures are the library's own.
func TestF52ErrnoAndResults(t *testing.T) {
	c := client(t)
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, mode)
			got := r.run(c, "errnos")
			plain := r.command(c, "errnos")
			plain.Env = append(plain.Env, "LD_PRELOAD=")
			want, err := plain.CombinedOutput()
			if err != nil {
				t.Fatalf("untraced: %v\n%s", err, want)
			}
			if got != string(want) {
				t.Errorf("traced:\n%s\nuntraced:\n%s", got, want)
			}
		})
	}
}

// A program that finds our functions without any RDMA library gets refusals.
func TestNoLibrary(t *testing.T) {
	r := newRig(t, "full")
	c := compile(t, filepath.Join(t.TempDir(), "absent"), "testdata/absent.c", "-ldl")
	r.env = append(r.env, "LD_PRELOAD="+ours(t))
	out := r.run(c)
	for line := range strings.Lines(out) {
		if !strings.HasSuffix(line, "(nil) 1\n") && line != "ibv_close_device 1\n" {
			t.Errorf("%q", line)
		}
	}
	if n := strings.Count(out, "\n"); n != 8 {
		t.Errorf("%d answers:\n%s", n, out)
	}
	if rec := r.recorded(); rec.files != 0 {
		t.Errorf("%d captures", rec.files)
	}
}

// Functions of the old interface, whose structures are others, are not ours; all others that a program may look up are.
// F46: a version is answered by that version.
func TestF46Versions(t *testing.T) {
	r := newRig(t, "full")
	c := compile(t, filepath.Join(t.TempDir(), "versions"), "testdata/versions.c", "-ldl")
	r.env = append(r.env, "LD_PRELOAD="+ours(t), "LD_LIBRARY_PATH=")
	owned := map[string]bool{"IBVERBS_1.0": false, "IBVERBS_1.1": true, "default": true, "IBVERBS_1.8": true, "IBVERBS_1.12": true}
	out := r.run(c)
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 3 {
			t.Fatalf("%q", line)
		}
		if filepath.Base(f[2]) == filepath.Base(ours(t)) != owned[f[1]] || f[2] == "none" {
			t.Errorf("%s of version %s is in %s", f[0], f[1], f[2])
		}
	}
	if n := strings.Count(out, "\n"); n != 9 {
		t.Errorf("%d answers:\n%s", n, out)
	}
}

// Another preload behind ours, whose symbols have no version, is still called.
func TestAnotherPreloadBehind(t *testing.T) {
	r := newRig(t, "full")
	r.env = append(r.env, "LD_PRELOAD="+ours(t)+":"+built(t, "tests/count-verbs.so"))
	r.run(built(t, "tests/verbs-client"))
	r.compare("full")
}
