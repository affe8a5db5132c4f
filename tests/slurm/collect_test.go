//go:build slurm

package slurm

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// nodeLocal makes a step's captures stay on its nodes until the last task of each has ended: in the disk of each node's own, local/.
func nodeLocal(more ...string) []string {
	return append([]string{"--sigmatrace=full", "--sigmatrace-set=record.scratch=" + cluster + "/local", "--sigmatrace-set=record.budget=1MiB"}, more...)
}

// program is an MPI program that calls UCX.
func (j *job) program(nodes string, options ...string) []string {
	j.environ = overUCX
	return append(append([]string{"srun", "--mpi=pmix", "-N" + nodes, "--ntasks-per-node=2"}, options...), built(j.t, "tests/mpi-app"), "-n", "5")
}

// placed checks where the nodes had their captures, and returns their accounts.
func placed(t *testing.T, dir *rundir.Dir, place string, nodes int) []rundir.Node {
	t.Helper()
	list := manifest(t, dir).Run.Nodes
	if len(list) != nodes {
		t.Fatalf("the manifest has %d nodes, want %d: %+v", len(list), nodes, list)
	}
	for _, n := range list {
		if n.Place != place || n.Bandwidth <= 0 || n.Bytes <= 0 || n.Reason == "" {
			t.Errorf("%+v, want place %s with its numbers", n, place)
		}
		if place != rundir.PlaceShared && (n.Collected == nil || n.Collected.Files == 0 || len(n.Collected.Left) > 0 || n.Collected.Packed == 0) {
			t.Errorf("%s: collected %+v", n.Part, n.Collected)
		}
	}
	return list
}

func TestCapturesInScratchAreCollected(t *testing.T) {
	site(t)
	j := newJob(t)
	r := j.ok(j.program("4", nodeLocal()...)...)
	dir := j.one(r)
	complete(t, dir, 8)
	placed(t, dir, rundir.PlaceScratch, 4)
	idle(t)
}

func TestCapturesInMemoryAreCollected(t *testing.T) {
	site(t)
	j := newJob(t)
	r := j.ok(j.program("2", "--sigmatrace=full", "--sigmatrace-set=record.place=memory", "--sigmatrace-set=record.budget=1MiB")...)
	dir := j.one(r)
	complete(t, dir, 4)
	for _, n := range placed(t, dir, rundir.PlaceMemory, 2) {
		if !strings.HasPrefix(n.Directory, "/dev/shm/") {
			t.Errorf("%s was in %s", n.Part, n.Directory)
		}
		nothingOn(t, n.Host, "/dev/shm", dir.Name())
	}
}

// What could not be moved in time is recorded into the run directory from the start, as is what has no place on the node.
func TestChoiceOfThePlace(t *testing.T) {
	site(t)
	for reason, options := range map[string][]string{
		"could not be moved in 4s":         nodeLocal("--sigmatrace-set=record.budget=1TiB"),
		"no such file or directory":        nodeLocal("--sigmatrace-set=record.scratch=/nowhere"),
		"free, and 2 ranks may write 4MiB": nodeLocal("--sigmatrace-set=record.scratch="+cluster+"/small", "--sigmatrace-set=record.budget=2MiB"),
	} {
		j := newJob(t)
		dir := j.one(j.ok(j.program("2", options...)...))
		complete(t, dir, 4)
		for _, n := range placed(t, dir, rundir.PlaceShared, 2) {
			if !strings.Contains(n.Reason, reason) || n.Collected != nil || n.Directory != "" {
				t.Errorf("%+v, want reason %q", n, reason)
			}
		}
	}
}

// Ranks that mpirun forks on the script's node, and those under its daemons on the others: two programs after each other.
func TestMpirunsCapturesAreCollected(t *testing.T) {
	site(t)
	j := newJob(t)
	j.environ = overUCX
	app := built(t, "tests/mpi-app")
	out := j.batch(append([]string{"-N3", "-n6", "--ntasks-per-node=2"}, nodeLocal()...), "mpirun "+app+" -n 3 && mpirun "+app+" -n 2 && echo well")
	if !strings.Contains(out, "well") {
		t.Fatalf("the script printed\n%s", out)
	}
	dir := j.dirOf(j.runs()[0])
	complete(t, dir, 6)
	var parts []string
	for _, n := range placed(t, dir, rundir.PlaceScratch, 5) {
		host, step, _ := strings.Cut(n.Part, "."+jobOf(dir)+".")
		parts = append(parts, host+" "+step)
		if n.Ranks < 2 {
			t.Errorf("%s: %d ranks, want at least the 2 there were", n.Part, n.Ranks)
		}
		nothingOn(t, n.Host, cluster+"/local", dir.Name())
	}
	if want := []string{"n1 batch", "n2 0", "n2 1", "n3 0", "n3 1"}; !slices.Equal(parts, want) {
		t.Errorf("parts %v, want %v", parts, want)
	}
	idle(t)
	nothingAlive(t)
}

// placing runs the command line behind, and returns when there are captures on both nodes. wait waits for its end.
func (j *job) placing(argv []string) (wait func(), dir *rundir.Dir) {
	j.t.Helper()
	line := append([]string{"run", "--user=" + j.user, "env", "-C", j.dir}, j.environ...)
	cmd := exec.Command("../../scripts/cluster", append(line, argv...)...)
	if err := cmd.Start(); err != nil {
		j.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	j.t.Cleanup(func() {
		(&job{t: j.t, user: "root", dir: j.dir}).run("scancel", "-u", "ann")
		select {
		case <-ended:
		case <-time.After(30 * time.Second):
			cmd.Process.Kill() //nolint:errcheck // it may have ended
		}
	})
	wait = func() {
		select {
		case err := <-ended:
			ended <- err
		case <-time.After(time.Minute):
			j.t.Error("srun has not ended within a minute")
		}
	}
	return wait, j.recordingOn(1, "n1", "n2")
}

// recordingOn waits until there are so many captures on each of the hosts, and returns the run directory.
func (j *job) recordingOn(each int, hosts ...string) *rundir.Dir {
	j.t.Helper()
	for _, host := range hosts {
		captures := fmt.Sprintf("$(sed -n s/^capture.directory=//p %s/sigmatrace-*/nodes/%s.*.resolved)/*/*.capture", j.dir, host)
		if r := j.on(host, "timeout", "100", "sh", "-c", fmt.Sprintf("until [ $(ls %s | wc -l) -ge %d ]; do sleep 0.1; done 2>/dev/null", captures, each)); r.status != 0 {
			j.t.Fatalf("no %d captures on %s: status %d", each, host, r.status)
		}
	}
	return j.one(result{})
}

// However the tasks end, what they recorded is collected.
func TestKilledStepIsCollected(t *testing.T) {
	for name, end := range map[string]func(root *job, id string){
		"scancel": func(root *job, id string) { root.ok("scancel", id) },
		"one task killed": func(root *job, id string) {
			root.ok("sh", "-c", "kill -KILL $(pgrep -u ann -f '^[^ ]*mpi-app -n 1000000' | head -1)")
		},
	} {
		t.Run(name, func(t *testing.T) {
			site(t)
			j := newJob(t)
			j.environ = overUCX
			argv := j.busy(t)
			argv = slices.Insert(argv, len(argv)-3, nodeLocal()...)
			wait, dir := j.placing(argv)
			end(&job{t: t, user: "root", dir: j.dir}, jobOf(dir))
			wait()
			idle(t)
			merged(t, dir)
			placed(t, dir, rundir.PlaceScratch, 2)
			if got := captured(t, dir); len(got) != 2 {
				t.Errorf("captures of %v", got)
			}
			nothingAlive(t)
		})
	}
}

// A node whose part of Slurm dies collects nothing: the manifest names what is there, and the next collection brings it.
func TestLeftOversAreNamedAndResumed(t *testing.T) {
	site(t)
	j := newJob(t)
	j.environ = overUCX
	argv := j.busy(t)
	wait, dir := j.placing(slices.Insert(argv, len(argv)-3, nodeLocal()...))
	root := &job{t: t, user: "root", dir: j.dir}
	root.ok("sh", "-c", "kill -KILL $(pgrep -f '^slurmstepd: .'"+jobOf(dir)+".0 | head -1)")
	time.Sleep(time.Second)
	root.ok("scancel", jobOf(dir))
	wait()
	root.run("sh", "-c", "pkill -KILL -u ann -f '^[^ ]*mpi-app -n 1000000'") // the tasks of the lost slurmstepd
	idle(t)
	sigmatrace := built(t, "bin/sigmatrace")
	r := j.run(sigmatrace, "merge", dir.Path())
	var lost *rundir.Node
	nodes := manifest(t, dir).Run.Nodes
	for i := range nodes {
		if nodes[i].Left() {
			lost = &nodes[i]
		}
	}
	if r.status != 3 || lost == nil || lost.Collected != nil || lost.Directory == "" || !strings.Contains(r.stderr, "sigmatrace: hint: on "+lost.Host+" run: sigmatrace collect "+dir.Path()) {
		t.Fatalf("status %d, left %+v\n%s", r.status, lost, r.stderr)
	}
	if r := j.on(lost.Host, sigmatrace, "collect", dir.Path()); r.status != 0 {
		t.Errorf("collect on %s: status %d\n%s", lost.Host, r.status, r.stderr)
	}
	nothingOn(t, lost.Host, cluster+"/local", dir.Name())
	j.run(sigmatrace, "merge", dir.Path())
	placed(t, dir, rundir.PlaceScratch, 2)
	if got := captured(t, dir); len(got) != 2 {
		t.Errorf("captures of %v", got)
	}
}

// A capture that is too long for the time stays, the others come; the job's end waits no longer than it may, and nothing goes on behind it.
func TestCollectionEndsInTime(t *testing.T) {
	site(t)
	j := newJob(t)
	app := built(t, "tests/mpi-app")
	long := `d=$(sed -n s/^capture.directory=//p $SIGMATRACE_CONFIG); mkdir -p $d/long.0; truncate -s 400G $d/long.0/1.1.0.capture; exec ` + app + ` -n 3`
	j.environ = overUCX
	r := j.ok(append(append([]string{"srun", "--mpi=pmix", "-N2", "--ntasks-per-node=1"}, nodeLocal()...), "sh", "-c", long)...)
	dir := j.one(r)
	idle(t)
	nothingAlive(t)
	for _, n := range manifest(t, dir).Run.Nodes {
		c := n.Collected
		if c == nil || c.Files != 1 || len(c.Left) != 1 || c.Left[0].Bytes != 400<<30 || c.Left[0].Path != n.Directory+"/long.0/1.1.0.capture" || c.Reason != "the time was over" {
			t.Fatalf("%s: %+v, want one capture here, and one left", n.Part, c)
		}
		if !strings.Contains(r.stderr, "sigmatrace: warning: 1 captures of "+n.Host+" (400GiB) are still on that node, in "+n.Directory+": the time was over") {
			t.Errorf("standard error does not name what is left on %s:\n%s", n.Host, r.stderr)
		}
		j.on(n.Host, "truncate", "-s", "0", c.Left[0].Path)
		if r := j.on(n.Host, built(t, "bin/sigmatrace"), "merge", dir.Path()); strings.Contains(r.stderr, "still on "+n.Host) {
			t.Errorf("merge on %s:\n%s", n.Host, r.stderr)
		}
		nothingOn(t, n.Host, cluster+"/local", dir.Name())
	}
	if got := captured(t, dir); !slices.Equal(got, []string{"long", "long", "n1", "n2"}) && !slices.Equal(got, []string{"long", "n1", "n2"}) {
		t.Errorf("captures of %v", got)
	}
}

// Where the run directory's file system is full, captures stay on the nodes until there is room.
func TestFullRunDirectory(t *testing.T) {
	site(t)
	j := newJob(t)
	j.environ = overUCX
	small := filepath.Join(cluster, "small")
	defer j.run("sh", "-c", "rm -rf "+small+"/*")
	fill := built(t, "tests/mpi-app") + " -n 3; dd if=/dev/zero of=" + small + "/filler.$SLURM_PROCID bs=4k 2>/dev/null; true"
	r := j.ok(append(append([]string{"srun", "--mpi=pmix", "-N2", "--ntasks-per-node=1"}, nodeLocal("--sigmatrace-output="+small)...), "sh", "-c", fill)...)
	idle(t)
	nothingAlive(t)
	if !strings.Contains(r.stderr, "captures of n1 ") || !strings.Contains(r.stderr, "sigmatrace: hint: on n2 run: sigmatrace collect "+small) {
		t.Errorf("standard error does not name what is left:\n%s", r.stderr)
	}
	name := strings.TrimSpace(j.ok("sh", "-c", "rm "+small+"/filler.*; ls -d "+small+"/sigmatrace-*").stdout)
	for _, host := range []string{"n1", "n2"} {
		if r := j.on(host, built(t, "bin/sigmatrace"), "collect", name); r.status != 0 {
			t.Errorf("collect on %s: status %d\n%s", host, r.status, r.stderr)
		}
		nothingOn(t, host, cluster+"/local", filepath.Base(name))
	}
	if r := j.run(built(t, "bin/sigmatrace"), "merge", "--exports", "matrix", name); !strings.Contains(r.stderr, "ranks: 2 of 2 complete") {
		t.Errorf("merge: status %d\n%s", r.status, r.stderr)
	}
}

// nothingOn checks that a run has left nothing in a node's folder.
func nothingOn(t *testing.T, host, folder, run string) {
	t.Helper()
	root := &job{t: t, user: "root", dir: cluster}
	if r := root.on(host, "sh", "-c", "ls -d "+folder+"/sigmatrace-node-"+run+"-* 2>/dev/null"); r.stdout != "" {
		t.Errorf("%s has\n%s", host, r.stdout)
	}
}

// nothingAlive checks that nothing of ours runs on any host of the cluster, which share their processes' numbers, and that what the user ran has ended or does so now:
// Slurm calls a node idle before the last process that it killed has gone, and with proctrack/linuxproc does not wait for one whose parent went first.
func nothingAlive(t *testing.T) {
	t.Helper()
	root := &job{t: t, user: "root", dir: cluster}
	look := `for p in /proc/[0-9]*; do
		[ "$(readlink $p/exe)" != ` + built(t, "bin/sigmatrace") + ` ] || echo "ours: $(tr '\0' ' ' <$p/cmdline)"
		if [ "$(stat -c %U $p 2>/dev/null)" = ann ] || tr '\0' '\n' <$p/environ 2>/dev/null | grep -q ^SIGMATRACE_CONFIG=; then
			echo "the user's: $(grep -h -e ^Name -e ^State -e ^PPid $p/status | tr '\n' ' ') $(tr '\0' ' ' <$p/cmdline)"
		fi
	done 2>/dev/null`
	var r result
	for i := range 100 {
		if r = root.run("sh", "-c", look); r.stdout == "" || i >= 25 && strings.Contains(r.stdout, "ours: ") { // one that was killed goes when it has a processor
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	if r.stdout != "" {
		t.Errorf("behind the job there are still\n%s", r.stdout)
	}
}

// A capture whose process outlives the tasks comes as it is then, and whole when the process has ended: behind the tasks, where Slurm ends it (proctrack/linuxproc,
// which this cluster has, does so sometimes), else by the next collection; until then it is named.
func TestProcessThatOutlivesTheTasks(t *testing.T) {
	site(t)
	j := newJob(t)
	outlives := `d=$(sed -n s/^capture.directory=//p $SIGMATRACE_CONFIG); mkdir -p $d/long.0; sleep 8 & set -- $(cat /proc/$!/stat); cp /bin/true $d/long.0/$1.${22}.0.capture`
	r := j.ok(append(append([]string{"srun", "-N2"}, nodeLocal()...), "bash", "-c", outlives)...)
	dir := j.one(r)
	idle(t)
	if got := captured(t, dir); !slices.Equal(got, []string{"long", "long"}) {
		t.Errorf("captures of %v, want them as they were", got)
	}
	root := &job{t: t, user: "root", dir: j.dir}
	for range 300 {
		if root.run("pgrep", "-u", "ann").status == 1 {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	nothingAlive(t)
	for _, n := range manifest(t, dir).Run.Nodes {
		named := n.Collected != nil && len(n.Collected.Left) == 1 && n.Collected.Reason == "processes of the step go on" &&
			strings.Contains(r.stderr, "on "+n.Host+" run: sigmatrace collect ")
		if n.Left() && !named {
			t.Errorf("%s: %+v, want one left, and named\n%s", n.Part, n.Collected, r.stderr)
		}
		if r := j.on(n.Host, built(t, "bin/sigmatrace"), "collect", dir.Path()); r.status != 0 {
			t.Errorf("collect on %s: status %d\n%s", n.Host, r.status, r.stderr)
		}
		nothingOn(t, n.Host, cluster+"/local", dir.Name())
	}
	for _, n := range manifest(t, dir).Run.Nodes {
		if n.Left() || n.Collected.Files != 1 {
			t.Errorf("%s: %+v", n.Part, n.Collected)
		}
	}
}

// A batch script that is cancelled in the middle of its mpirun: what its nodes recorded is there, and merges by hand.
func TestCancelledScriptIsCollected(t *testing.T) {
	site(t)
	j := newJob(t)
	j.environ = overUCX
	id := j.submit(append([]string{"-N2", "-n4", "--ntasks-per-node=2"}, nodeLocal()...), "mpirun "+built(t, "tests/mpi-app")+" -n 1000000")
	j.t.Cleanup(func() { j.run("scancel", id) })
	dir := j.recordingOn(2, "n1", "n2")
	j.ok("scancel", id)
	j.ended(id)
	idle(t)
	nothingAlive(t)
	j.run(built(t, "bin/sigmatrace"), "merge", dir.Path())
	for _, n := range placed(t, dir, rundir.PlaceScratch, 2) {
		nothingOn(t, n.Host, cluster+"/local", dir.Name())
	}
	if got := captured(t, dir); !slices.Equal(got, []string{"n1", "n1", "n2", "n2"}) {
		t.Errorf("captures of %v", got)
	}
}
