//go:build slurm

package slurm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// logged are the lines of ours in the nodes' logs for a job.
func logged(t *testing.T, id string) (lines []string) {
	t.Helper()
	for _, node := range []string{"n1", "n2", "n3", "n4"} {
		text, err := os.ReadFile(filepath.Join(cluster, "log", "slurmd."+node+".log"))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "sigmatrace: ") && strings.Contains(line, "["+id+".") {
				lines = append(lines, node+" "+strings.TrimSpace(line))
			}
		}
	}
	return lines
}

// However many steps and nodes a traced job has, it has one line in the nodes' logs; one that is not traced has none.
func TestOneLineAJob(t *testing.T) {
	site(t)
	j := newJob(t)
	for _, c := range []struct {
		options []string
		lines   []string
		want    string
	}{
		{[]string{"-N4", "--sigmatrace=full"}, []string{"srun -N4 true", "srun -N2 true", "for i in 1 2 3; do srun -N1 --overlap true & done; wait"}, "is traced, the first run of it " + j.dir + "/sigmatrace-"},
		{[]string{"-N4", "--sigmatrace=off"}, []string{"srun -N4 true", "srun -N4 --sigmatrace=full true", "srun -N4 --sigmatrace=full true"}, "is traced"},
		{[]string{"-N4"}, []string{"srun -N4 true"}, ""},
	} {
		id := j.submit(c.options, c.lines...)
		j.ended(id)
		lines := logged(t, id)
		if c.want == "" && len(lines) == 0 {
			continue
		}
		if len(lines) != 1 || !strings.Contains(lines[0], "sigmatrace: job "+id+" of user 61001 "+c.want) {
			t.Errorf("%v: %q", c.lines, lines)
		}
	}
	// A step without a batch script.
	r := j.ok("srun", "-N3", "--sigmatrace", "sh", "-c", "echo $SLURM_JOB_ID")
	id, _, _ := strings.Cut(r.stdout, "\n")
	if lines := logged(t, id); len(lines) != 1 {
		t.Errorf("srun: %q", lines)
	}
}

// The kill switch is looked at in every step: one that is thrown while a job runs holds for its next steps, and one that is taken back too.
func TestKillSwitchWithinAJob(t *testing.T) {
	file := filepath.Join(cluster, "home", "ann", "off") // the job throws it: a site would have it where only root can
	os.Remove(file)                                      //nolint:errcheck // of an earlier run
	site(t, "kill_switch="+file)
	j := newJob(t)
	step := "srun -N2 --ntasks-per-node=1 sh -c '" + printProfile + "'"
	out := j.batch([]string{"-N2", "--sigmatrace=full"}, step, "touch "+file, step, "rm "+file, step)
	var got []string
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "profile=") {
			got = append(got, profileIn(line))
		}
	}
	if want := "full full   full full"; strings.Join(got, " ") != want {
		t.Errorf("profiles of three steps on two nodes %q, want %q\n%s", strings.Join(got, " "), want, out)
	}
}

// Of many jobs a share is traced, and it is the same answer in every step of one.
func TestRateTakesAShare(t *testing.T) {
	site(t, "default_profile=aggregate", "rate=40%")
	j := newJob(t)
	traced := 0
	const jobs = 12
	for range jobs {
		if j.traced("srun") != "" {
			traced++
		}
	}
	if traced == 0 || traced == jobs {
		t.Errorf("%d of %d jobs are traced with rate=40%%", traced, jobs)
	}
	for range 2 {
		out := j.batch(nil, printProfile, "srun sh -c '"+printProfile+"'", "srun -N1 sh -c '"+printProfile+"'")
		if n := strings.Count(out, "profile=aggregate"); n != 0 && n != 3 {
			t.Errorf("%d of a job's three parts are traced\n%s", n, out)
		}
	}
}

// Plugin, libraries and command are replaced by rename while a step runs: it goes on, is whole, and is merged by the new command; what comes next runs too.
func TestUpgradeUnderRunningJobs(t *testing.T) {
	root := &job{t: t, user: "root", dir: cluster}
	prefix := filepath.Join(cluster, "etc", "prefix")
	install := func() {
		for _, file := range []string{"bin/sigmatrace", "lib/slurm/spank_sigmatrace.so", "lib/sigmatrace"} {
			paths := []string{built(t, file)}
			if file == "lib/sigmatrace" {
				paths, _ = filepath.Glob(built(t, file) + "/*")
			}
			for _, from := range paths {
				rel, err := filepath.Rel(filepath.Dir(built(t, "bin")), from)
				if err != nil {
					t.Fatal(err)
				}
				to := filepath.Join(prefix, rel)
				root.ok("sh", "-c", "mkdir -p "+filepath.Dir(to)+" && cp "+from+" "+to+".new && mv "+to+".new "+to)
			}
		}
	}
	os.RemoveAll(prefix) //nolint:errcheck // of an earlier run
	install()
	plugstack(t, "optional "+prefix+"/lib/slurm/spank_sigmatrace.so command="+prefix+"/bin/sigmatrace libdir="+prefix+"/lib/sigmatrace\n")
	j := newJob(t)
	j.environ = overUCX
	inode := func(path string) string { return root.ok("stat", "-c", "%i", filepath.Join(prefix, path)).stdout }
	before := inode("lib/slurm/spank_sigmatrace.so") + inode("bin/sigmatrace") + inode("lib/sigmatrace/libsigmatrace.so")
	cmd, dir := j.started(t, []string{"srun", "--mpi=pmix", "-N2", "--ntasks-per-node=1", "--sigmatrace=full", "sh", "-c",
		built(t, "tests/mpi-app") + " -n 40; while [ ! -e go ]; do sleep 0.1; done"})
	install()
	if after := inode("lib/slurm/spank_sigmatrace.so") + inode("bin/sigmatrace") + inode("lib/sigmatrace/libsigmatrace.so"); after == before {
		t.Fatal("nothing was replaced")
	}
	if m := manifest(t, dir); m.Run.End != nil {
		t.Fatal("the step was over before anything was replaced")
	}
	j.write("go", "")
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("srun: %v", err)
		}
	case <-time.After(90 * time.Second):
		t.Fatal("srun has not ended")
	}
	complete(t, dir, 2)
	if r := j.ok("srun", "--sigmatrace=full", "sh", "-c", printProfile); profileIn(r.stdout) != "full" {
		t.Errorf("the next step: %q", r.stdout)
	}
	idle(t)
}
