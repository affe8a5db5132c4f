//go:build slurm

package slurm

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// place is what a task prints of the run that it is recorded into, behind the name of the case: "off" where it is in none.
const printPlace = `sh -c '[ "$SIGMATRACE" = off ] && SIGMATRACE_CONFIG=off/x; echo "$CASE $SLURM_PROCID ${SIGMATRACE_CONFIG%/*}"'`

// placesOf are the runs that the tasks of each case have said, by rank.
func placesOf(text string) map[string][]string {
	places := map[string][]string{}
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	for _, line := range lines {
		if w := strings.Fields(line); len(w) == 3 && strings.HasPrefix(w[0], "case-") {
			places[w[0]] = append(places[w[0]], w[2])
		}
	}
	return places
}

// requeue starts a job again that waits for it, having made the file once-.
func (j *job) requeue(id string) {
	j.t.Helper()
	for range 600 {
		if _, err := os.Stat(filepath.Join(j.dir, "once-")); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	root := &job{t: j.t, user: "root", dir: j.dir}
	root.ok("scontrol", "requeue", id)
	// A requeued job waits two minutes for its turn unless it is given one; in the second in which its first life's credential was revoked a node
	// would refuse its second. It is pending, all its components, when no node has anything of its first any more.
	root.ok("timeout", "90", "sh", "-c", "until [ \"$(squeue -h -j "+id+" -o %T | sort -u)\" = PENDING ]; do sleep 0.2; done")
	time.Sleep(2 * time.Second)
	for range 200 {
		root.run("scontrol", "update", "jobid="+id, "StartTime=now")
		if _, err := os.Stat(filepath.Join(j.dir, "once-1")); err == nil {
			break
		}
		time.Sleep(300 * time.Millisecond)
	}
	j.ended(id)
}

// In a heterogeneous job a step of one component, of several by either way of writing it, and of none that is traced: the tasks of all components
// are told the same, whichever the plugin was called for, and never fall back to what the script inherits.
func TestStepsOfAHeterogeneousJob(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	step := func(name string, argv ...string) string {
		return "CASE=case-" + name + " srun --sigmatrace-set=mode=simple " + strings.ReplaceAll(strings.Join(argv, " "), "TASK", printPlace)
	}
	out := j.batch([]string{"--sigmatrace=full", "-n1", ":", "-n2"},
		step("first", "TASK"), step("second", "--het-group=1 TASK"), step("list", "--het-group=0,1 TASK"), step("range", "--het-group 0-1 TASK"),
		step("colon", "--het-group=0 TASK : --het-group=1 TASK"), step("off", "--sigmatrace=off --het-group=0,1 TASK"),
		step("off-colon", "--sigmatrace=off --het-group=0 TASK : --het-group=1 TASK"),
		"CASE=case-environment SIGMATRACE=off srun --het-group=0,1 "+printPlace,
		"CASE=case-arguments srun "+printPlace+" --het-group 0,1 --export=SIGMATRACE_CONFIG")
	id := regexp.MustCompile(`/sigmatrace-(\d+)\.0`).FindStringSubmatch(out)
	if id == nil {
		t.Fatalf("no task has a run\n%s", out)
	}
	run := func(step string, tasks int) []string {
		return slices.Repeat([]string{j.dir + "/sigmatrace-" + id[1] + "." + step}, tasks)
	}
	off := slices.Repeat([]string{"off"}, 3)
	got := placesOf(out)
	for name, want := range map[string][]string{
		"first": run("0", 1), "second": run("1", 2), "list": run("2", 3), "range": run("3", 3), "colon": run("4", 3),
		"off": off, "off-colon": off, "environment": off, "arguments": run("8", 1),
	} {
		if !slices.Equal(got["case-"+name], want) {
			t.Errorf("%s: the tasks' runs %q, want %q", name, got["case-"+name], want)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
}

// The captures of all components are in one run, the job's second life has runs of its own, and the directory may have placeholders.
func TestRestartedHeterogeneousStep(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	j.environ = overUCX
	client := built(t, "tests/ucp-client") + " -n 2 -o put"
	id := j.submit([]string{"--requeue", "--sigmatrace=full", "-n1", ":", "-n2"}, "srun --het-group=0,1 "+client,
		"srun --sigmatrace-output=%u%%-%j/%s/%u --het-group=0 "+client+" : --het-group=1 "+client, "touch once-$SLURM_RESTART_COUNT",
		"[ -n \"$SLURM_RESTART_COUNT\" ] || sleep 60")
	j.requeue(id)
	placed := "ann%-" + id + "/1/ann/sigmatrace-" + id
	for _, name := range []string{"sigmatrace-" + id + ".0", "sigmatrace-" + id + ".r1.0", placed + ".1", placed + ".r1.1"} {
		if _, err := os.Stat(filepath.Join(j.dir, name)); err != nil {
			t.Error(err)
			continue
		}
		dir := j.dirOf(name)
		if got := captured(t, dir); len(got) != 6 { // the client is two processes
			t.Errorf("%s has captures of %v, want those of three tasks", name, got)
		}
		if m := manifest(t, dir); m.Run.ExpectedRanks == nil || *m.Run.ExpectedRanks != 3 || len(m.Result) == 0 || m.Run.Untraced != nil {
			t.Errorf("%s: expected ranks %v, result of %d bytes, untraced %v", name, m.Run.ExpectedRanks, len(m.Result), m.Run.Untraced)
		}
	}
	if got := j.runs(); len(got) != 2 {
		t.Errorf("runs %v beside those in the directory with placeholders", got)
	}
	if t.Failed() {
		t.Log(j.read("out"))
	}
}

// A run that has the name already is not added to: not even by the components that srun could not tell of it.
func TestOlderRunOfTheNameOfAHeterogeneousStep(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	show := " " + strings.ReplaceAll(printPlace, "$CASE", "case-older")
	out := j.batch([]string{"--sigmatrace=full", "-n1", ":", "-n2"}, "exec 2>&1", "older=sigmatrace-$SLURM_JOB_ID.0; mkdir -p $older/tasks",
		"cp $SIGMATRACE_CONFIG $older; touch -d '1 hour ago' $older/*", "srun --het-group=0,1"+show, "ls $older/tasks")
	if got, want := placesOf(out)["case-older"], []string{"off", "off", "off"}; !slices.Equal(got, want) {
		t.Errorf("the tasks' runs %q, want %q", got, want)
	}
	if !strings.Contains(out, "sigmatrace: warning: the step is not traced: ") {
		t.Errorf("nothing is said of it\n%s", out)
	}
}

// A heterogeneous srun without a job around it knows its job's number last of all.
func TestHeterogeneousStepWithPlaceholders(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	j.environ = []string{"CASE=case-alone"}
	task := strings.TrimSuffix(strings.TrimPrefix(printPlace, "sh -c '"), "'")
	r := j.ok("srun", "--sigmatrace", "--sigmatrace-output=%j/%s%%s/%%j", "-n1", "sh", "-c", task, ":", "-n2", "sh", "-c", task)
	found, err := filepath.Glob(filepath.Join(j.dir, "*/0%s/%j/sigmatrace-*.0"))
	if err != nil || len(found) != 1 {
		t.Fatalf("run directories %v, %v\n%s", found, err, r.stderr)
	}
	id := jobOf(j.dirOf(strings.TrimPrefix(found[0], j.dir+"/")))
	if want := j.dir + "/" + id + "/0%s/%j/sigmatrace-" + id + ".0"; found[0] != want || !slices.Equal(placesOf(r.stdout)["case-alone"], slices.Repeat([]string{want}, 3)) {
		t.Errorf("the run is %s, the tasks printed\n%s\nwant %s", found[0], r.stdout, want)
	}
}
