package doorbell

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/tests/needs"
	"github.com/sigmatrace/sigmatrace/tests/tp"
)

// search is what a search over GPUs says that it did.
type search struct {
	barriers map[int]map[int][2]int64 // by number and GPU: between which times it rang for its arrival
	sent     map[[2]int]traffic       // data, from GPU to GPU
}

const gpus = 3

// recordSearch runs a level-synchronous search on GPUs under the recorder, and returns the run and what the program says of itself.
func recordSearch(t *testing.T, mode string) (run string, s search) {
	t.Helper()
	dir := t.TempDir()
	run = filepath.Join(dir, "run")
	lib := filepath.Dir(needs.Built(t, "softhca/libibverbs.so.1")) + ":" + filepath.Dir(needs.Built(t, "standin/libcuda.so.1"))
	cmd := exec.CommandContext(t.Context(), needs.Built(t, "bin/sigmatrace"), "launch", "-p", mode, "--set", "providers=ibverbs,mlx5dv,cuda", "-o", run, "--", needs.Built(t, "softhca/bfs"))
	cmd.Env = append(os.Environ(), "SOFTHCA_DEVX=1", "SOFTHCA_SHM="+filepath.Join(dir, "hca"), "LD_LIBRARY_PATH="+lib, fmt.Sprint("STANDIN_GPUS=", gpus))
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ok bfs\n") {
		t.Fatalf("bfs: %v\n%s", err, out)
	}
	s = search{map[int]map[int][2]int64{}, map[[2]int]traffic{}}
	for line := range strings.Lines(string(out)) {
		var a, b int
		var x, y int64
		if n, _ := fmt.Sscanf(line, "barrier %d %d %d %d", &a, &b, &x, &y); n == 4 {
			if s.barriers[a] == nil {
				s.barriers[a] = map[int][2]int64{}
			}
			s.barriers[a][b] = [2]int64{x, y}
		}
		if n, _ := fmt.Sscanf(line, "sent %d %d %d %d", &a, &b, &x, &y); n == 4 {
			s.sent[[2]int{a, b}] = traffic{x, y}
		}
	}
	if len(s.barriers) < 4 || len(s.sent) != gpus*(gpus-1) {
		t.Fatalf("what the program says: %s", out)
	}
	return run, s
}

func query(t *testing.T, run, module, sql string) [][]string {
	t.Helper()
	rows, err := tp.QueryWith(filepath.Join(run, "trace.pftrace"), "sigmatrace", "../../merge/perfetto/sql/sigmatrace", "INCLUDE PERFETTO MODULE sigmatrace."+module+"; "+sql)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// gpuOf is the number of a GPU by its name; each process has the one of its rank.
func gpuOf(t *testing.T, name string) (n int) {
	t.Helper()
	if _, err := fmt.Sscanf(name, "GPU %d of ", &n); err != nil {
		t.Fatalf("the name of a GPU: %q", name)
	}
	return n
}

// The clock that the program reads may be so far from the trace's, which is fitted to it.
const clocks = int64(time.Millisecond)

// What a search over GPUs did is in its matrix, in every mode, and in its trace; with every element in it, so are barriers.
func TestSearch(t *testing.T) {
	tp.Need(t)
	for _, mode := range needs.Modes() {
		t.Run(mode, func(t *testing.T) {
			run, s := recordSearch(t, mode)
			matrixByGPU(t, run, s)
			if mode != "aggregate" {
				doorbells(t, run, s)
			}
			if mode == "full" {
				flows(t, run, s)
				barriers(t, run, s)
			}
		})
	}
}

// barriers finds each GPU's arrival at each barrier at the time at which the program rang for it, in the order in which it did, by the module's query alone.
func barriers(t *testing.T, run string, s search) {
	if err := tp.Check(filepath.Join(run, "trace.pftrace")); err != nil {
		t.Error(err)
	}
	rows := query(t, run, "barriers", fmt.Sprintf("SELECT barrier, place, gpu, ts, behind_ns, seen FROM sigmatrace_barriers(%d, NULL, NULL)", gpus-1))
	if len(rows) != len(s.barriers)*gpus {
		t.Fatalf("%d arrivals at %d barriers: %v", len(rows), len(s.barriers), rows)
	}
	type arrival struct {
		gpu int
		ts  int64
	}
	order := map[int][]arrival{}
	for _, r := range rows {
		barrier, gpu, ts := int(number(t, r[0])), gpuOf(t, r[2]), number(t, r[3])
		order[barrier] = append(order[barrier], arrival{gpu, ts})
		if want := s.barriers[barrier][gpu]; ts < want[0]-clocks || ts > want[1]+clocks {
			t.Errorf("barrier %d, GPU %d: arrived at %d, the program says between %d and %d", barrier, gpu, ts, want[0], want[1])
		}
		if number(t, r[1]) != int64(len(order[barrier])) || number(t, r[4]) != ts-order[barrier][0].ts || r[5] != fmt.Sprint(gpus-1) {
			t.Errorf("barrier %d: %v is arrival %d, first at %d", barrier, r, len(order[barrier]), order[barrier][0].ts)
		}
	}
	apart := 0
	for barrier, all := range order {
		for i := 1; i < len(all); i++ {
			before, after := s.barriers[barrier][all[i-1].gpu], s.barriers[barrier][all[i].gpu]
			if before[0] > after[1]+clocks {
				t.Errorf("barrier %d: GPU %d is told before GPU %d, which it came behind", barrier, all[i-1].gpu, all[i].gpu)
			}
			if before[1]+clocks < after[0] {
				apart++
			}
		}
	}
	if apart == 0 {
		t.Error("no two arrivals can be told apart by what the program says: nothing was tested")
	}
	for _, r := range query(t, run, "barriers", fmt.Sprintf("SELECT barrier, gpus, first_gpu, last_gpu, spread_ns FROM sigmatrace_barrier_spread(%d, NULL, NULL)", gpus-1)) {
		all := order[int(number(t, r[0]))]
		if number(t, r[1]) != gpus || gpuOf(t, r[2]) != all[0].gpu || gpuOf(t, r[3]) != all[gpus-1].gpu || number(t, r[4]) != all[gpus-1].ts-all[0].ts {
			t.Errorf("%v of a barrier with arrivals %v", r, all)
		}
	}
}

// doorbells holds what was rung for, and bandwidth, against what the program did; data and control are apart.
func doorbells(t *testing.T, run string, s search) {
	data, control := traffic{}, int64(len(s.barriers)*gpus*(gpus-1))
	for _, x := range s.sent {
		data.Count += x.Count
		data.Bytes += x.Bytes
	}
	rows := query(t, run, "doorbells", "SELECT control, sum(elements), sum(bytes), count() FROM sigmatrace_doorbells GROUP BY control ORDER BY control")
	// a barrier's arrival is rung for by itself, and so are the two tellings of a level, with the vertices before the first
	want := [][]string{{"0", fmt.Sprint(data.Count), fmt.Sprint(data.Bytes), fmt.Sprint(control)}, {"1", fmt.Sprint(control), fmt.Sprint(8 * control), fmt.Sprint(control)}}
	if fmt.Sprint(rows) != fmt.Sprint(want) {
		t.Errorf("doorbells: %v, not %v", rows, want)
	}
	// nothing of the recorder's own
	rows = query(t, run, "doorbells", "SELECT DISTINCT key FROM slice JOIN args USING (arg_set_id) WHERE category GLOB 'doorbell*' AND key IN ('debug.thread', 'debug.form')")
	if len(rows) != 0 {
		t.Errorf("arguments that say nothing of what a GPU did: %v", rows)
	}
	// what each GPU's counter says, for as long as it says it, is what it sent
	rows = query(t, run, "doorbells", "SELECT gpu, sum(bytes_per_second * dur / 1e9) FROM sigmatrace_bandwidth WHERE gpu IS NOT NULL GROUP BY gpu")
	if len(rows) != gpus {
		t.Errorf("bandwidth: %v", rows)
	}
	for _, r := range rows {
		gpu, bytes := gpuOf(t, r[0]), int64(0)
		for pair, x := range s.sent {
			if pair[0] == gpu {
				bytes += x.Bytes
			}
		}
		if got, err := strconv.ParseFloat(r[1], 64); err != nil || got < float64(bytes)*0.99 || got > float64(bytes)*1.01 {
			t.Errorf("%s: %s bytes by its bandwidth, it sent %d", r[0], r[1], bytes)
		}
	}
}

// flows follows the arrows from elements to the GPUs that they go to.
func flows(t *testing.T, run string, s search) {
	rows := query(t, run, "doorbells", `SELECT e.gpu, g.name, count() FROM flow f JOIN slice o ON o.id = f.slice_out JOIN slice i ON i.id = f.slice_in
		JOIN sigmatrace_elements e ON e.id = o.parent_id JOIN track t ON t.id = i.track_id JOIN track g ON g.id = t.parent_id WHERE i.name = 'addressed' GROUP BY 1, 2`)
	if len(rows) != len(s.sent) {
		t.Errorf("flows: %v", rows)
	}
	for _, r := range rows {
		if want := s.sent[[2]int{gpuOf(t, r[0]), gpuOf(t, r[1])}].Count + int64(len(s.barriers)); number(t, r[2]) != want {
			t.Errorf("%s flows from %s to %s, the program sent %d elements", r[2], r[0], r[1], want)
		}
	}
}

// matrixByGPU holds the matrix against what the program sent, data and control apart.
func matrixByGPU(t *testing.T, run string, s search) {
	text, err := os.ReadFile(filepath.Join(run, "matrix.json"))
	if err != nil {
		t.Fatal(err)
	}
	var m merge.Matrix
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	// the stand-in's identifiers end with the number of the GPU
	gpu := func(p merge.Party) int {
		id, ok := p.(string)
		n, err := strconv.ParseUint(id[max(0, len(id)-2):], 16, 8)
		if !ok || err != nil || !strings.Contains(id, " GPU-") {
			t.Fatalf("a GPU of the matrix: %v", p)
		}
		return int(n)
	}
	data, control := map[[2]int]traffic{}, map[[2]int]int64{}
	for _, r := range m.Layers["doorbell"].GPU {
		pair := [2]int{gpu(r.Source), gpu(r.Destination)}
		if r.Control {
			control[pair] += int64(r.Count)
		} else {
			data[pair] = traffic{data[pair].Count + int64(r.Count), data[pair].Bytes + int64(r.Bytes)}
		}
	}
	if fmt.Sprint(data) != fmt.Sprint(s.sent) {
		t.Errorf("data: %v, the program sent %v", data, s.sent)
	}
	for pair := range s.sent {
		if control[pair] != int64(len(s.barriers)) {
			t.Errorf("control elements %v: %d of %d barriers", pair, control[pair], len(s.barriers))
		}
	}
}
