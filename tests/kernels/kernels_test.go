// Package kernels tests what is recorded of launches and kernels, with the stand-in CUDA driver and CUPTI (tests/standin): what the run says is held against what a
// program knows that launched in every form, and whose kernels looked at the clock.
package kernels

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/tests/needs"
	"github.com/sigmatrace/sigmatrace/tests/tp"
)

// What client.c does.
const (
	launches      = 7 // without those that only make a graph
	captured      = 2
	graphLaunches = 2
	ofGraphs      = 4 // kernels
)

// ran is a kernel by its own account.
type ran struct {
	name       string
	start, end int64
}

type outcome struct {
	dir  string
	info *merge.Info
	ran  []ran
	text string
}

type options struct {
	mode, way, kernels string
	cupti              bool
	arguments          []string
	env                []string
}

func record(t *testing.T, o options) outcome {
	t.Helper()
	r := outcome{dir: filepath.Join(t.TempDir(), "run")}
	program := needs.Built(t, "kernels/client")
	if o.way == "linked" {
		program = needs.Built(t, "kernels/linked")
	}
	libraries := filepath.Dir(needs.Built(t, "standin/libcuda.so.1"))
	if o.cupti {
		libraries += ":" + filepath.Dir(needs.Built(t, "standin/cupti/libcupti.so.13"))
	}
	args := []string{"launch", "-p", o.mode, "--set", "providers=cuda", "--set", "gpu.kernels=" + o.kernels, "-o", r.dir, "--", program, o.way}
	cmd := exec.CommandContext(t.Context(), needs.Built(t, "bin/sigmatrace"), append(args, o.arguments...)...)
	cmd.Env = append(append(os.Environ(), "LD_LIBRARY_PATH="+libraries), o.env...)
	cmd.WaitDelay = 10 * time.Second
	var out, log strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil || !strings.HasSuffix(out.String(), "ok\n") {
		t.Fatalf("%+v: %v\n%s%s", o, err, out.String(), log.String())
	}
	r.text = log.String()
	for lines := bufio.NewScanner(strings.NewReader(out.String())); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) == 4 && f[0] == "ran" {
			start, _ := strconv.ParseInt(f[2], 10, 64)
			end, _ := strconv.ParseInt(f[3], 10, 64)
			r.ran = append(r.ran, ran{f[1], start, end})
		}
	}
	if len(r.ran) != launches+ofGraphs {
		t.Fatalf("%d kernels ran", len(r.ran))
	}
	text, err := exec.CommandContext(t.Context(), needs.Built(t, "bin/sigmatrace"), "info", "--json", r.dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	r.info = &merge.Info{}
	if err := json.Unmarshal(text, r.info); err != nil {
		t.Fatal(err)
	}
	return r
}

// operations are those of layer gpu, with the names that the run gives to functions and streams.
func (r *outcome) operations(t *testing.T) (*merge.Merged, []ops.Op) {
	t.Helper()
	dir, err := rundir.Open(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := merge.Open(t.Context(), dir, merge.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	var all []ops.Op
	for i := range m.Run().Partitions {
		err := m.Partition(t.Context(), i, func(block []ops.Op) error {
			all = append(all, block...)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return m, all
}

// Each launch is seen once, whichever way a program found the driver's functions: by its exported symbols, by dlsym, or by asking the driver, for the function
// itself (F54) or others, by version and flags. Of names that have had other meanings a program gets just the one that it asked for (F55).
func TestF54F55LaunchesFoundInEveryWay(t *testing.T) {
	for _, way := range []string{"linked", "dlsym", "v1", "v2", "itself", "threads"} {
		t.Run(way, func(t *testing.T) {
			r := record(t, options{mode: "simple", way: way, kernels: "launches"})
			g := r.info.GPUs
			if g == nil || g.Launches != launches || g.GraphLaunches != graphLaunches || g.Kernels != 0 {
				t.Fatalf("got %+v", g)
			}
			if n := r.info.Events.ByName; n["gpu_launch"] != launches+captured || n["gpu_graph_launch"] != graphLaunches {
				t.Errorf("events %v", n)
			}
			if len(g.Devices) != 1 || g.Devices[0].UUID != "GPU-5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a00" || g.Devices[0].PCI != "0000:18:00.0" {
				t.Errorf("devices %+v", g.Devices)
			}
			if g.ExportTables["c693336e-1121-df11-a8c3-68f355d89593"] != 1 {
				t.Errorf("export tables %v", g.ExportTables)
			}
			_, alone := g.LeftAlone["cuLaunchKernel, version 14000, flags 0"]
			_, old := g.LeftAlone["cuMemHostRegister, version 4000, flags 0"]
			if alone != (way == "v2") || old != (way == "v2") {
				t.Errorf("left alone %v", g.LeftAlone)
			}
			if len(r.info.Blind) != 0 {
				t.Errorf("not seen: %+v", r.info.Blind)
			}
			m, all := r.operations(t)
			var shapes, streams []string
			for _, op := range all {
				if op.Event != catalogue.EventGpuLaunch {
					continue
				}
				f := op.Fields
				names := m.Run().Processes[op.Process].Objects
				shapes = append(shapes, names[uint32(f[catalogue.GpuLaunchFunction])]+" "+strconv.FormatUint(f[catalogue.GpuLaunchGridX]*f[catalogue.GpuLaunchGridY]*f[catalogue.GpuLaunchGridZ], 10)+
					" of "+strconv.FormatUint(f[catalogue.GpuLaunchBlockX]*f[catalogue.GpuLaunchBlockY]*f[catalogue.GpuLaunchBlockZ], 10)+" form "+strconv.FormatUint(f[catalogue.GpuLaunchForm], 10))
				streams = append(streams, names[uint32(f[catalogue.GpuLaunchStream])])
			}
			want := []string{"short_one 24 of 32 form 0", "short_one 24 of 32 form 0", "short_one 24 of 32 form 0", "short_one 24 of 32 form 0", "long_one 5 of 128 form 0", "short_one 1 of 1024 form 1",
				"long_one 1 of 1 form 0", "short_one 1 of 1 form 2", "short_one 1 of 1 form 2"}
			if !slices.Equal(shapes, want) {
				t.Errorf("launches:\n%s\nwant\n%s", strings.Join(shapes, "\n"), strings.Join(want, "\n"))
			}
			def := "GPU 0 default stream"
			if way == "threads" {
				def += " of a thread"
			}
			if len(streams) > 6 && (streams[6] != def || streams[0] == def || streams[0] != streams[5]) {
				t.Errorf("streams %q", streams)
			}
		})
	}
}

// Aggregate counts, full records, off does nothing: no capture is made of what nothing is recorded of.
func TestLaunchesByMode(t *testing.T) {
	if r := record(t, options{mode: "aggregate", way: "v2", kernels: "times", cupti: true}); r.info.GPUs == nil || r.info.GPUs.Launches != launches || r.info.GPUs.GraphLaunches != graphLaunches || r.info.Events.Total != 0 {
		t.Errorf("aggregate: %+v, %d events", r.info.GPUs, r.info.Events.Total)
	}
	if r := record(t, options{mode: "full", way: "linked", kernels: "off", cupti: true}); r.info.GPUs != nil || r.info.Processes.Total != 0 {
		t.Errorf("off: %+v, %d processes", r.info.GPUs, r.info.Processes.Total)
	}
}

// Kernels are where their own looks at the clock say, to within the bound that the run gives, and each is led to from its launch.
func TestKernelTimes(t *testing.T) {
	for name, o := range map[string]options{
		"plain":   {mode: "full", way: "v2"},
		"simple":  {mode: "simple", way: "threads"},
		"numbers": {mode: "full", way: "dlsym", env: []string{"STANDIN_CUPTI_FIRST=0x7ffffffe"}}, // of a program with two billion calls behind it
		"linked":  {mode: "full", way: "linked"},
		"CUDA 12": {mode: "full", way: "linked", env: []string{"STANDIN_CUPTI_VERSION=26"}},
	} {
		t.Run(name, func(t *testing.T) {
			o.kernels, o.cupti = "times", true
			r := record(t, o)
			g := r.info.GPUs
			if g == nil || g.Kernels != launches+ofGraphs || g.Lost != 0 || g.Unplaced != 0 || g.ClockErrorNS == nil || len(r.info.Blind) != 0 {
				t.Fatalf("got %+v, not seen %+v", g, r.info.Blind)
			}
			m, all := r.operations(t)
			slack := int64(*g.ClockErrorNS+*r.info.Clock.Nodes[0].ErrorNS) + 2000
			of := map[uint64]*ops.Op{}
			var kernels []ops.Op
			for i := range all {
				switch op := &all[i]; op.Event {
				case catalogue.EventGpuLaunch, catalogue.EventGpuGraphLaunch:
					if op.Flow != 0 {
						of[op.Flow] = op
					}
				case catalogue.EventGpuKernel:
					kernels = append(kernels, *op)
				}
			}
			if len(of) != launches+graphLaunches {
				t.Errorf("flows from %d launches", len(of))
			}
			led := map[uint64]int{}
			for _, own := range r.ran {
				i := -1 // the shortest that holds it: kernels of two streams overlap
				for j, k := range kernels {
					name := m.Run().Processes[k.Process].Objects[uint32(k.Fields[catalogue.GpuKernelFunction])]
					if name != "" && strings.HasPrefix(own.name, name) && k.Post-slack <= own.start && own.end <= k.Done+slack && (i < 0 || k.Done-k.Post < kernels[i].Done-kernels[i].Post) {
						i = j
					}
				}
				if i < 0 {
					t.Errorf("no kernel holds %+v: %+v", own, kernels)
					continue
				}
				k := kernels[i]
				kernels = slices.Delete(kernels, i, i+1)
				l := of[k.Flow]
				if l == nil || l.Post > k.Post+slack {
					t.Errorf("%+v has no launch before it", own)
					continue
				}
				led[k.Flow]++
				if l.Event == catalogue.EventGpuLaunch && (l.Fields[catalogue.GpuLaunchGridX] != k.Fields[catalogue.GpuKernelGridX] || l.Fields[catalogue.GpuLaunchFunction] != k.Fields[catalogue.GpuKernelFunction] ||
					l.Fields[catalogue.GpuLaunchStream] != k.Fields[catalogue.GpuKernelStream]) {
					t.Errorf("%+v is led to from a launch of another", own)
				}
			}
			for flow, l := range of {
				want := 1
				if l.Event == catalogue.EventGpuGraphLaunch {
					want = 2
				}
				if led[flow] != want {
					t.Errorf("%d kernels of a launch of %d", led[flow], want)
				}
			}
		})
	}
}

// Where CUPTI cannot be had, or is somebody else's, launches alone are recorded, and the run says so once.
func TestNoKernelTimes(t *testing.T) {
	for name, c := range map[string]struct {
		o       options
		reason  string
		kernels int64
	}{
		"absent":            {options{}, "no libcupti.so.13 or libcupti.so.12", 0},
		"unknown version":   {options{cupti: true, env: []string{"STANDIN_CUPTI_VERSION=150000"}}, "records of this version of CUPTI are not known", 0},
		"another client":    {options{cupti: true, env: []string{"STANDIN_CUPTI_BUSY=1"}}, "another client has subscribed to CUPTI", 0},
		"injected":          {options{cupti: true, env: []string{"CUDA_INJECTION64_PATH=/tool.so"}}, "CUDA_INJECTION64_PATH names another tool", 0},
		"a client half way": {options{cupti: true, arguments: []string{"cuptiSubscribe"}}, "the program uses CUPTI itself from here on", 4},
		"a newer client":    {options{cupti: true, arguments: []string{"cuptiSubscribe_v2"}}, "the program uses CUPTI itself from here on", 4},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.mode, c.o.way, c.o.kernels = "full", "v2", "times"
			r := record(t, c.o)
			if g := r.info.GPUs; g == nil || g.Launches != launches || g.Kernels != c.kernels {
				t.Errorf("got %+v", g)
			}
			if len(r.info.Blind) != 1 || !strings.HasSuffix(r.info.Blind[0].Reason, c.reason) {
				t.Errorf("not seen: %+v", r.info.Blind)
			}
		})
	}
}

// A program becomes a client of CUPTI while its threads launch, or as they begin to: CUPTI is its own from then on, with its own buffers alone, and each kernel is told to one of both.
// A child that is forked meanwhile launches what it can without waiting for a thread that it does not have.
func TestClientOfCUPTIWhileThreadsLaunch(t *testing.T) {
	for _, way := range []string{"cuptiSubscribe", "cuptiSubscribe_v2", "cuptiActivityRegisterCallbacks", "fork"} {
		for _, launched := range []string{"0", "3000"} {
			t.Run(way+"/"+launched, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "run")
				cmd := exec.CommandContext(t.Context(), needs.Built(t, "bin/sigmatrace"), "launch", "-p", "simple", "--set", "providers=cuda", "--set", "gpu.kernels=times", "-o", dir, "--",
					needs.Built(t, "kernels/busy"), way, launched)
				cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(needs.Built(t, "standin/libcuda.so.1"))+":"+filepath.Dir(needs.Built(t, "standin/cupti/libcupti.so.13")))
				if launched == "0" {
					cmd.Env = append(cmd.Env, "STANDIN_CUPTI_SLOW=300000")
				}
				out, err := cmd.Output()
				if err != nil || !strings.HasSuffix(string(out), "ok\n") {
					t.Fatalf("%v\n%s", err, out)
				}
				var all, own uint64
				if _, err := fmt.Sscanf(string(out), "kernels %d %d", &all, &own); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				text, err := exec.CommandContext(t.Context(), needs.Built(t, "bin/sigmatrace"), "info", "--json", dir).Output()
				if err != nil {
					t.Fatal(err)
				}
				var info merge.Info
				if err := json.Unmarshal(text, &info); err != nil {
					t.Fatal(err)
				}
				if g := info.GPUs; g == nil || uint64(g.Launches) != all || uint64(g.Kernels)+own > all || launched != "0" && g.Kernels == 0 {
					t.Errorf("%d launched, %d told to the program: %+v", all, own, g)
				}
			})
		}
	}
}

// In Parquet, launches and kernels are rows of their layer, with the function's name, the stream, and what the record has.
func TestKernelsInParquet(t *testing.T) {
	r := record(t, options{mode: "full", way: "v2", kernels: "times", cupti: true})
	cmd := exec.CommandContext(t.Context(), needs.Built(t, "bin/sigmatrace"), "export", "--format", "parquet", r.dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	files, err := filepath.Glob(filepath.Join(r.dir, "events", "operations", "layer=gpu", "*.parquet"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%q, %v", files, err)
	}
	rows, err := parquet.ReadFile[struct {
		Operation    string  `parquet:"operation"`
		Kind         string  `parquet:"kind"`
		EndpointName string  `parquet:"endpoint_name"`
		Flow         *uint64 `parquet:"flow,optional"`
		BlockX       *uint64 `parquet:"block_x,optional"`
		Registers    *uint64 `parquet:"registers,optional"`
		Running      *uint64 `parquet:"running,optional"`
		Call         *int64  `parquet:"call_ns,optional"`
	}](files[0])
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, x := range rows {
		count[x.Kind+" "+x.Operation+" "+x.EndpointName]++
		if (x.Kind == "kernel") != (x.Registers != nil) || (x.Kind == "kernel") != (x.Running != nil) || (x.Kind == "launch") != (x.Call != nil) {
			t.Errorf("%+v", x)
		}
	}
	want := map[string]int{"kernel long_one GPU 0 stream 7": 1, "kernel short_one GPU 0 stream 7": 9, "kernel long_one GPU 0 stream 8": 1, "launch graph_launch launches of thread 1": 2,
		"launch long_one launches of thread 1": 2, "launch short_one launches of thread 1": 7}
	if !maps.Equal(count, want) {
		t.Errorf("rows %v", count)
	}
}

// In the trace, kernels lie on a track of their GPU and stream, launches on one of their thread, and arrows lead from these to those.
func TestKernelsInTrace(t *testing.T) {
	tp.Need(t)
	r := record(t, options{mode: "full", way: "v2", kernels: "times", cupti: true})
	trace := filepath.Join(r.dir, "trace.pftrace")
	if err := tp.Check(trace); err != nil {
		t.Fatal(err)
	}
	rows, err := tp.Query(trace, `SELECT t.name, s.name, COUNT(*) FROM slice s JOIN track t ON s.track_id = t.id WHERE s.category = 'gpu' GROUP BY 1, 2 ORDER BY 1, 2`)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, row := range rows {
		got = append(got, strings.Join(row, "|"))
	}
	want := []string{"GPU 0 stream 7|long_one|1", "GPU 0 stream 7|short_one|9", "GPU 0 stream 8|long_one|1", "launches of thread 1|graph_launch|2", "launches of thread 1|long_one|2", "launches of thread 1|short_one|7"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	rows, err = tp.Query(trace, `SELECT COUNT(*) FROM flow f JOIN slice a ON f.slice_out = a.id JOIN slice b ON f.slice_in = b.id
		WHERE a.name = 'posted' AND b.name = 'started'`)
	if err != nil || len(rows) != 1 || rows[0][0] != strconv.Itoa(launches+graphLaunches) {
		t.Errorf("flows from launches: %v, %v", rows, err)
	}
}
