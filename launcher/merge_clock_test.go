package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/capture/capturetest"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// twoNodes makes a run of two ranks on nodes n0 and n1, whose wall clock is 30 s ahead and gains 20 ppm, that send each other a hundred messages
// of 1 to 3 us each way. Ticks are nanoseconds.
func twoNodes(t *testing.T) *rundir.Dir {
	t.Helper()
	dir, err := rundir.Create(filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	var nodes []*capturetest.Writer
	var threads []*capturetest.Thread
	for i := range 2 {
		h := capture.Header{Pid: 7, Hostname: fmt.Sprint("n", i), Rank: int64(i), World: 2, Mode: catalogue.ModeFull, StartTime: 5, ClockHz: 1e9, ClockFlags: 1}
		copy(h.BootID[:], fmt.Sprint("boot", i))
		w, err := capturetest.Create(dir.Capture(), h, catalogue.Default)
		if err != nil {
			t.Fatal(err)
		}
		for at := uint64(100); at < 4e9; at += 1e9 {
			wall := uint64(1e18) + at + uint64(i)*(30e9+at/50_000)
			w.Define(at, catalogue.DefClockPair, catalogue.DomainTsc, at-10, at+10, wall, at)
		}
		w.Define(110, catalogue.DefUcpWorker, uint64(1), uint64(0))
		address := []byte(fmt.Sprintf("the address of worker %d, as handed out", i))
		w.Define(111, catalogue.DefUcpWorkerAddress, uint64(1), uint64(len(address)), uint64(1), address)
		other := []byte(fmt.Sprintf("the address of worker %d, as handed out", 1-i))
		w.Define(120, catalogue.DefUcpEndpoint, uint64(2), uint64(1), uint64(catalogue.UcpEndpointSourceWorkerAddress), other, "")
		nodes, threads = append(nodes, w), append(threads, w.Thread())
	}
	for k := range uint64(200) {
		from, at := int(k%2), 10_000+k*15_000_000
		tag, arrival := uint64(from)<<32|k, at+1000+k*37%2000
		threads[1-from].Event(at-500, catalogue.EventUcpTagRecv, []uint64{1, 8, tag, ^uint64(0), 0, 0, 0, k + 1, catalogue.UcpResultPending, 0, 10})
		threads[from].Event(at, catalogue.EventUcpTagSend, []uint64{2, 8, tag, 0, 0, 0, 0, 0, catalogue.UcpResultDone, 0, 10})
		threads[1-from].Event(arrival, catalogue.EventUcpCompletion, []uint64{1, k + 1, 8, tag, 0})
	}
	for _, w := range nodes {
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// --clock and --clock-repair do what they say, else the run's profile says; what README.md shows is what is printed.
func TestMergeClock(t *testing.T) {
	dir := twoNodes(t)
	run := dir.Path()
	account := func(args ...string) merge.ClockInfo {
		t.Helper()
		status, stdout, stderr := sigmatrace(append(append([]string{"merge", "--json"}, args...), run)...)
		info, err := merge.ParseInfo([]byte(stdout))
		if status != 0 || err != nil {
			t.Fatalf("%v: status %d, %v\n%s", args, status, err, stderr)
		}
		return info.Clock
	}
	if c := account(); *c.Source != "messages" || *c.ReceiveBeforeSend.Count != 0 || c.Nodes[1].ErrorNS == nil || c.Repaired != nil {
		t.Errorf("%+v", c)
	}
	if c := account("--clock", "system"); *c.Source != "system clock" || *c.ReceiveBeforeSend.Count != 100 || c.Nodes[1].ErrorNS != nil {
		t.Errorf("%+v", c)
	}
	if c := account("--clock=system", "--clock-repair"); *c.ReceiveBeforeSend.Count != 0 || c.Repaired == nil || c.Repaired.Count != 100 || *c.Nodes[0].CorrectionNS < 29e9 {
		t.Errorf("%+v", c)
	}
	if status, _, stderr := sigmatrace("merge", "--clock", "ptp", run); status != 2 || !strings.Contains(stderr, "auto, calibration, messages, system") {
		t.Errorf("status %d\n%s", status, stderr)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, _, stderr := sigmatrace("merge", run)
	for _, line := range regexp.MustCompile(`(?m)^    (sigmatrace: clock of n.*)$`).FindAllStringSubmatch(string(readme), -1) {
		if !strings.Contains(stderr, line[1]) {
			t.Errorf("README.md shows %q, and this is printed:\n%s", line[1], stderr)
		}
	}
	m := &rundir.Manifest{Version: rundir.ManifestVersion, Tool: "test", Profile: rundir.Profile{Name: "p", Files: []string{"p.toml"}, Values: map[string]rundir.ProfileValue{
		"clock.source": {Value: "system", Source: "p"}, "clock.repair": {Value: "true", Source: "p"}, "clock.warn_above": {Value: "1000ns", Source: "p"}}}}
	if err := dir.WriteManifest(m); err != nil {
		t.Fatal(err)
	}
	if c := account(); *c.Source != "system clock" || c.Repaired == nil || !c.Nodes[1].Above || len(c.Warnings) != 2 {
		t.Errorf("by the profile: %+v", c)
	}
	if c := account("--clock-repair=false"); c.Repaired != nil {
		t.Errorf("against the profile: %+v", c.Repaired)
	}
	status, stdout, _ := sigmatrace("info", "--clock", "messages", run)
	if status != 0 || !strings.Contains(stdout, "by messages") {
		t.Errorf("info keeps to the last merge: status %d\n%s", status, stdout)
	}
}
