//go:build slurm

package slurm

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Root counts and removes what users' steps left below the site's directory, but not what a job that goes on writes, however old it looks.
func TestMetricsAndCleanOfASite(t *testing.T) {
	base := filepath.Join(cluster, "home", "site")
	if err := os.RemoveAll(base); err != nil { // of an earlier run
		t.Fatal(err)
	}
	if err := os.Mkdir(base, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(base, 0o1777); err != nil {
		t.Fatal(err)
	}
	site(t, "output="+base+"/%u")
	j := newJob(t)
	j.environ = overUCX
	root := &job{t: t, user: "root", dir: cluster}
	j.ok("srun", "--mpi=pmix", "-N2", "--ntasks-per-node=1", "--sigmatrace=full", built(t, "tests/mpi-app"), "-n", "2")
	j.ok("srun", "--sigmatrace=simple", "true")
	going := j.submit(nil, "srun --sigmatrace=simple sleep 100")
	defer root.run("scancel", going)
	var runs []string
	for range 600 {
		if started, _ := filepath.Glob(base + "/ann/sigmatrace-" + going + ".0/capture/*/alive"); len(started) == 1 {
			runs, _ = filepath.Glob(base + "/ann/sigmatrace-*")
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if len(runs) != 3 {
		t.Fatalf("runs %v", runs)
	}
	text := root.ok(built(t, "bin/sigmatrace"), "metrics", base).stdout
	for _, want := range []string{`sigmatrace_runs{profile="full",state="complete"} 1`, `sigmatrace_runs{profile="simple",state="running"} 1`, `sigmatrace_jobs{profile="simple"} 2`,
		`sigmatrace_lost_records{profile="full"} 0`, "sigmatrace_unreadable_runs 0"} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	_, worst, _ := strings.Cut(text, "\nsigmatrace_merge_worst_seconds ")
	worst, _, _ = strings.Cut(worst, "\n")
	if seconds, err := strconv.ParseFloat(worst, 64); err != nil || seconds <= 0 || seconds > 60 { // merge.slurm_time of srun's own merge
		t.Errorf("the longest merge took %q s", worst)
	}
	clean := []string{built(t, "bin/sigmatrace"), "clean", "--older-than=0h", base}
	if out := root.ok(clean...).stdout; strings.Count(out, "kept") != 3 {
		t.Errorf("young runs\n%s", out)
	}
	root.ok("sh", "-c", "find "+base+" | xargs touch -h -d '3 hours ago'")
	out := root.ok(clean...).stdout
	left, _ := filepath.Glob(base + "/ann/sigmatrace-*")
	if len(left) != 1 || filepath.Base(left[0]) != "sigmatrace-"+going+".0" || !strings.Contains(out, "its job is not over") {
		t.Errorf("%v are left\n%s", left, out)
	}
	// One user cannot remove another's.
	bob := newJobOf(t, "bob", 61002)
	bob.run(clean...)
	if _, err := os.Stat(left[0]); err != nil {
		t.Error(err)
	}
	root.ok("scancel", going)
	idle(t)
}
