package doorbell

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/tests/needs"
)

// bells runs a case of bell_check. how: BELL's value.
func bells(t *testing.T, mode, name, how string, more recording) (string, *merge.Info, map[string]traffic) {
	t.Helper()
	more.program, more.mode = "softhca/bell_check", mode
	if how != "" {
		more.env = append(more.env, "BELL="+how)
	}
	return more.run(t, name)
}

// accounted holds that every element that the adapter executed was decoded or counted as lost, none twice; lossless: that none was lost.
func accounted(t *testing.T, info *merge.Info, want int64, lossless bool) {
	t.Helper()
	got, lost := int64(info.Operations["doorbell"]["write"].Count), int64(info.Lost.Events)
	if got+lost != want {
		t.Errorf("%d decoded and %d lost of %d", got, lost, want)
	}
	if lossless && lost != 0 {
		t.Errorf("%d of %d lost", lost, want)
	}
	if info.Exact != (lost == 0) {
		t.Errorf("exact: %v with %d lost", info.Exact, lost)
	}
}

// A program that leaves as many elements of its queue free as the threshold is loses none, however long any thread waits for a processor: in one doorbell an element, in doorbells
// that cover many, in those that come faster than they are looked at, in a ring that goes round and round, with memory of GPUs and hosts. A threshold of more than half a
// queue is half of it.
func TestNoneLost(t *testing.T) {
	for _, c := range []struct {
		how       string
		threshold int
		driver    string // STANDIN_TO_HOST
	}{
		{"30000,10,1,512", 128, ""},
		{"20000,10,1,512", 128, "2000"},
		{"5000,9,1,256", 128, "20000"}, // far more is rung for while a copy goes on than the ring holds, if no doorbell waits for it
		{"30000,10,1,1024", 0, ""},
		{"20000,10,1,896", 1, ""},
		{"30000,10,1,512", 512, ""},
		{"100000,10,48,480", 128, ""},
		{"20000,10,300,600", 128, ""},
		{"30000,6,1,32", 512, ""},
		{"30000,10,1,1024,host", 128, ""},
		{"30000,6,16,64,host", 128, ""},
	} {
		t.Run(fmt.Sprintf("%s/%d", c.how, c.threshold), func(t *testing.T) {
			_, info, want := bells(t, "simple", "stream", c.how, recording{set: []string{fmt.Sprintf("doorbell.batch_threshold=%d", c.threshold)}, env: []string{"STANDIN_TO_HOST=" + c.driver}})
			if want["write"].Count == 0 {
				t.Fatal("the adapter counted nothing")
			}
			accounted(t, info, want["write"].Count, true)
		})
	}
}

// A program that keeps its queue full, and a driver that copies late, lose what was passed on before it was read: once. From then on the queue's elements are read first.
func TestFullQueueLosesOnce(t *testing.T) {
	_, info, want := bells(t, "simple", "refill", "10,8,60,0", recording{env: []string{"STANDIN_TO_HOST=50000"}})
	accounted(t, info, want["write"].Count, false)
	if lost := info.Lost.Events; lost == 0 || lost > 60 {
		t.Errorf("%d of %d lost", lost, want["write"].Count)
	}
}

// A kernel that is launched for the first time comes when the elements were read that were rung for by then: it may write over them at once, and drivers load it first, and copy
// nothing meanwhile.
func TestNewKernelComesAfterWhatWasRung(t *testing.T) {
	const runs = 5
	none := 0 // runs that lost none: a launch waits for 10 ms at most, which a busy machine may need for a copy of 3
	for range runs {
		_, info, want := bells(t, "simple", "next_kernel", "100,8,100,100", recording{env: []string{"STANDIN_TO_HOST=3000"}})
		if want["write"].Count != 100+256 {
			t.Fatalf("the adapter counted %d", want["write"].Count)
		}
		accounted(t, info, want["write"].Count, false)
		if info.Lost.Events == 0 {
			none++
		}
	}
	if none <= runs/2 {
		t.Errorf("%d of %d runs lost none", none, runs)
	}
}

// And no later than that: a launch does not wait for a driver that takes its time, as a doorbell does, nor does that of a kernel that was launched before, whatever else was.
func TestLaunchesWaitForLittle(t *testing.T) {
	out, _, _ := bells(t, "simple", "launches", "900,9,1,512", recording{env: []string{"STANDIN_TO_HOST=1500000"}})
	var first, again int
	_, said, _ := strings.Cut(out, "new ")
	if _, err := fmt.Sscanf(said, "%d again %d", &first, &again); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if first > 500000 || again > 5000000 { // a copy takes 1.5 s; 1,000 launches that wait as that of a new kernel may, 10 s
		t.Errorf("launching a new kernel took %d us, known ones %d us", first, again)
	}
}

// Doorbells that come one by one do not each have a copy: an element waits for others, but for a millisecond at most.
func TestFewCopiesOfDoorbellsOneByOne(t *testing.T) {
	const doorbells, runs = 400, 5
	for range runs {
		out, info, want := bells(t, "simple", "one_by_one", "400,10,1,1", recording{})
		if want["write"].Count != doorbells+1 {
			t.Fatalf("the adapter counted %d", want["write"].Count)
		}
		accounted(t, info, want["write"].Count, true)
		var copies, us int
		_, said, _ := strings.Cut(out, "copies ")
		if _, err := fmt.Sscanf(said, "%d in %d us", &copies, &us); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if copies > max(doorbells/4, us/1000+2) {
			t.Errorf("%d copies for %d doorbells in %d us", copies, doorbells, us)
		}
	}
}

// A ring that goes round over elements that were rung for and not copied yet: a driver that takes its time. None is taken for another.
func TestIndexOvertake(t *testing.T) {
	_, info, want := bells(t, "full", "stream", "5000,9,1,512", recording{set: []string{"doorbell.batch_threshold=512"}, env: []string{"STANDIN_TO_HOST=30000"}})
	accounted(t, info, want["write"].Count, false)
	if info.Lost.Events == 0 {
		t.Error("none was lost")
	}
}

// And one that goes round and further before it is rung: what is left is read, the rest is lost.
func TestRingWrap(t *testing.T) {
	for _, how := range []string{"80,6,1,1", "80,6,1,1,host"} {
		_, info, _ := bells(t, "full", "overtaken", how, recording{})
		if got := info.Operations["doorbell"]["write"].Count; got != 64 || info.Lost.Events != 16 {
			t.Errorf("%d decoded and %d lost, want 64 and 16", got, info.Lost.Events)
		}
		if x := info.Ranks.Incomplete; len(x) != 1 || !strings.HasPrefix(x[0].Reason, "lost events: elements of queues that GPUs ring could not be read") {
			t.Errorf("why: %+v", x)
		}
	}
}

// A doorbell gets through whatever the driver does, and then what could not be read is lost.
func TestDriverThatWaits(t *testing.T) {
	for _, driver := range []string{"waits", "fails"} {
		_, info, want := bells(t, "full", "stream", "3000,9,1,512", recording{env: []string{"STANDIN_TO_HOST=" + driver}})
		accounted(t, info, want["write"].Count, false)
		if info.Lost.Events == 0 {
			t.Errorf("%s: none was lost", driver)
		}
	}
}

// Two queues ring at one page in turn, which the second comes to when a kernel has its address: both go to their end, and each element is decoded or counted as lost.
func TestSharedPage(t *testing.T) {
	for _, how := range []string{"40000,10,1,20", "40000,10,1,20,host", "10000,10,1,256"} {
		_, info, want := bells(t, "aggregate", "pair", how, recording{})
		accounted(t, info, want["write"].Count, false)
	}
}

// On a page that two queues are known to share when its address is asked for nothing is seen, and its queues are named.
func TestSharedPageIsLeftAlone(t *testing.T) {
	_, info, _ := bells(t, "full", "shared_before", "2000,10,1,64", recording{})
	shared := 0
	for _, b := range info.Blind {
		if strings.HasPrefix(b.Reason, "its page of doorbells is shared") {
			shared++
		}
	}
	if n := info.Operations["doorbell"]["write"].Count; n != 0 || shared != 2 {
		t.Errorf("%d decoded; not seen: %v", n, info.Blind)
	}
}

// Pages, queues, processes and numbers come and go.
func TestComingAndGoing(t *testing.T) {
	for name, more := range map[string]recording{
		"two_gpus": {}, "unregistered": {}, "forked": {}, "follow": {}, "many": {}, "silent": {},
		"reused": {env: []string{"SOFTHCA_FAULT=reuse_numbers=1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, info, want := bells(t, "full", name, "8000,10,1,32", more) // half of the smallest queue: nothing is lost
			accounted(t, info, want["write"].Count, true)
		})
	}
}

// The adapter is slow, loses doorbells, or fails requests.
func TestFaults(t *testing.T) {
	_, info, want := bells(t, "full", "stream", "300,10,1,64", recording{env: []string{"SOFTHCA_FAULT=delay_us=200"}})
	accounted(t, info, want["write"].Count, true)
	_, info, want = bells(t, "full", "lost_doorbells", "", recording{env: []string{"SOFTHCA_FAULT=lost_doorbell_every=3"}})
	accounted(t, info, want["write"].Count, true)
	out, info, _ := bells(t, "full", "error", "1000,10,1,1", recording{env: []string{"SOFTHCA_FAULT=error_every=100"}})
	var rung int64
	if _, err := fmt.Sscanf(out[strings.Index(out, "rung "):], "rung %d", &rung); err != nil || rung < 100 {
		t.Fatalf("%v in %s", err, out)
	}
	accounted(t, info, rung, true) // as rung: what the adapter made of them is its own
}

// Killed while a kernel rings: the capture is read, and lacks no more of what had completed than the threshold.
func TestKilled(t *testing.T) {
	out, info, _ := bells(t, "full", "killed", "20000,10,1,256", recording{dies: true})
	var completed uint64
	if _, err := fmt.Sscanf(out[strings.Index(out, "completed "):], "completed %d", &completed); err != nil || completed < 10000 {
		t.Fatalf("%v in %s", err, out)
	}
	got := info.Operations["doorbell"]["write"].Count + info.Lost.Events
	if got+128 < completed || len(info.Damaged) != 0 {
		t.Errorf("%d decoded or lost of %d that had completed; damaged: %v", got, completed, info.Damaged)
	}
}

// Where nothing is to be recorded, or pages are to be left alone, kernels ring at the device.
func TestLeftAlone(t *testing.T) {
	for name, more := range map[string]recording{
		"off in the program":  {before: []string{"env", "SIGMATRACE=off"}},
		"disabled":            {set: []string{"doorbell.enabled=false"}},
		"too few threads":     {set: []string{"doorbell.threads=1"}},
		"an excluded program": {set: []string{"processes.exclude=bell_check"}},
	} {
		_, info, _ := bells(t, "full", "stream", "500,10,1,64", more)
		if n := len(info.Operations["doorbell"]); n != 0 {
			t.Errorf("%s: %v", name, info.Operations)
		}
		if name == "off in the program" && (info.Processes.Total != 0 || info.Events.Total != 0) {
			t.Errorf("%s: %+v, %+v", name, info.Processes, info.Events)
		}
	}
}

// Settings are what was written, however large or long: the threads of a process that may have any number, and a long list of processors.
func TestLargeSettings(t *testing.T) {
	var cpus []string
	for i := 0; i < 1024; i += 2 {
		cpus = append(cpus, strconv.Itoa(i))
	}
	list := strings.Join(cpus, ",")
	_, info, want := bells(t, "full", "stream", "500,10,1,64", recording{set: []string{"doorbell.threads=4294967296", "doorbell.cpus=" + list}})
	accounted(t, info, want["write"].Count, true)
	if w := info.Doorbells.Watches; len(w) != 1 || w[0].CPUs != list || w[0].Reason != "" {
		t.Errorf("doorbells were looked at by %+v", w)
	}
}

// A capture says how doorbells were looked at, and what of the profile was not possible.
func TestWhatIsNotPossibleIsSaid(t *testing.T) {
	dump := func(run string) {
		text, err := exec.CommandContext(t.Context(), needs.Built(t, "bin/sigmatrace"), "dump", "--definitions", "--json", run).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			`"doorbell_watch".*"threads":2,"threshold":512.*"reason":"[^"]*the process may not run on doorbell.cpus"`,
			`"doorbell_queue".*"blocks":64,.*"threshold":32\b`,
		} {
			if !regexp.MustCompile(want).Match(text) {
				t.Errorf("no %s in\n%s", want, text)
			}
		}
	}
	_, info, want := bells(t, "full", "stream", "500,6,1,16", recording{set: []string{"doorbell.batch_threshold=512", "doorbell.cpus=1023", "doorbell.poll=pause"}, look: dump})
	accounted(t, info, want["write"].Count, true)
	told := &merge.Doorbells{
		Watches: []merge.Watch{{Processes: 1, Poll: "pause", Threads: 2, Threshold: 512, CPUs: "", Reason: "the process may not run on doorbell.cpus"}},
		Queues:  []merge.RungQueue{{Queues: 1, Slots: 64, OfGPU: true, Threshold: 32, Asked: 512}},
	}
	if !reflect.DeepEqual(info.Doorbells, told) {
		t.Errorf("the account says %+v, not %+v", info.Doorbells, told)
	}
	var summary strings.Builder
	info.Summary(&summary)
	for _, want := range []string{"doorbells: looked at by pause in 1 processes: the process may not run on doorbell.cpus\n", "doorbells: 1 queues of 64 slots wait at 32 elements, not 512: half of a queue is the most\n"} {
		if !strings.Contains(summary.String(), want) {
			t.Errorf("no %q in\n%s", want, summary.String())
		}
	}
	_, info, want = bells(t, "full", "stream", "500,6,1,16", recording{set: []string{"doorbell.poll=yield", "doorbell.cpus=0-1"}, look: func(run string) {
		text, err := exec.CommandContext(t.Context(), needs.Built(t, "bin/sigmatrace"), "dump", "--definitions", "--json", run).Output()
		if err != nil || !regexp.MustCompile(`"doorbell_watch".*"poll":"yield".*"cpus":"0-1","reason":""`).Match(text) {
			t.Errorf("%v\n%s", err, text)
		}
	}})
	accounted(t, info, want["write"].Count, true)
}

// Traces have the counters of bandwidth, or not, as the profile says: those of the merge at the run's end, and later ones.
func TestCountersAreAsTheProfileSays(t *testing.T) {
	for value, want := range map[string]bool{"true": true, "false": false} {
		bells(t, "full", "stream", "500,10,1,64", recording{set: []string{"gpu.counters=" + value, "merge.exports=json"}, look: func(run string) {
			again := filepath.Join(t.TempDir(), "again.json")
			if out, err := exec.CommandContext(t.Context(), needs.Built(t, "bin/sigmatrace"), "export", "--format", "json", "-o", again, run).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, file := range []string{filepath.Join(run, "trace.json"), again} {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if got := strings.Contains(string(text), "initiated bytes per second"); got != want || !strings.Contains(string(text), "doorbell") {
					t.Errorf("gpu.counters=%s: %s has counters of bandwidth: %v", value, file, got)
				}
			}
		}})
	}
}
