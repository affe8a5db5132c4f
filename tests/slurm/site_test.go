//go:build slurm

package slurm

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Who and where a site lets be traced. What is asked for is refused where the user sits; a default passes such users by.
func TestSiteAllowsAndDenies(t *testing.T) {
	ann, bob := newJob(t), newJobOf(t, "bob", 61002)
	for _, c := range []struct {
		argument string
		ann, bob bool
	}{
		{"allow_users=root,ann", true, false},
		{"deny_users=ann", false, true},
		{"allow_groups=staff2", false, true},
		{"deny_groups=staff2,wheel", true, false},
		{"allow_users=an", false, false},
	} {
		for _, by := range []struct {
			j    *job
			open bool
		}{{ann, c.ann}, {bob, c.bob}} {
			site(t, c.argument)
			r := by.j.run("srun", "--sigmatrace", "sh", "-c", printProfile)
			refused := r.status == 255 && strings.Contains(r.stderr, "sigmatrace: error: --sigmatrace: tracing is not open to you on this cluster\n")
			if by.open != (r.status == 0 && profileIn(r.stdout) == "simple") || by.open == refused {
				t.Errorf("%s, user %s: status %d\n%s\n%s", c.argument, by.j.user, r.status, r.stdout, r.stderr)
			}
			site(t, c.argument, "default_profile=simple")
			if got := by.j.traced("srun"); (got == "simple") != by.open {
				t.Errorf("%s with a default, user %s: profile %q", c.argument, by.j.user, got)
			}
		}
	}
	for _, c := range []struct {
		argument, partition, want string
	}{
		{"allow_partitions=all", "all", "simple"}, {"allow_partitions=all", "quiet", ""}, {"deny_partitions=quiet", "quiet", ""}, {"deny_partitions=quiet", "all", "simple"},
	} {
		site(t, c.argument, "default_profile=simple")
		if got := ann.traced("srun", "-p", c.partition); got != c.want {
			t.Errorf("%s, partition %s: profile %q, want %q", c.argument, c.partition, got, c.want)
		}
		out := ann.batch([]string{"-p", c.partition}, printProfile)
		if got := profileIn(out); got != c.want {
			t.Errorf("%s, batch script in partition %s: profile %q, want %q", c.argument, c.partition, got, c.want)
		}
	}
}

// The kill switch beats everything, at each step, also those of jobs that were submitted before.
func TestKillSwitch(t *testing.T) {
	file := filepath.Join(cluster, "etc", "off")
	site(t, "kill_switch="+file, "default_profile=simple")
	j := newJob(t)
	os.Remove(file) //nolint:errcheck // of an earlier run
	if got := j.traced("srun", "--sigmatrace=full"); got != "full" {
		t.Fatalf("profile %q without the file", got)
	}
	id := j.submit([]string{"--sigmatrace=full", "--hold"}, printProfile, "srun --sigmatrace=full sh -c '"+printProfile+"'")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(file)
	r := j.ok("srun", "--sigmatrace=full", "sh", "-c", printProfile)
	if profileIn(r.stdout) != "" || !strings.Contains(r.stderr, "sigmatrace: warning: nothing is traced: this cluster has switched tracing off\n") {
		t.Errorf("%s\n%s", r.stdout, r.stderr)
	}
	j.ok("scontrol", "release", id)
	j.ended(id)
	if out := j.read("out"); strings.Count(out, "profile= off=") != 2 {
		t.Errorf("the job submitted before printed\n%s", out)
	}
}

// A locked site has one profile for all, whatever users say, but off.
func TestLockedSite(t *testing.T) {
	profiles := filepath.Join(cluster, "etc", "profiles")
	if err := os.MkdirAll(profiles, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(profiles, "ours.toml"), []byte("extends = \"aggregate\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	site(t, "default_profile=ours", "profile_dir="+profiles, "locked")
	j := newJob(t)
	j.environ = []string{"SIGMATRACE_MODE=full"}
	for _, options := range [][]string{{}, {"--sigmatrace=full"}, {"--sigmatrace", "--sigmatrace-set=mode=full"}} {
		r := j.ok(append(append([]string{"srun"}, options...), "sh", "-c", "cat $SIGMATRACE_CONFIG")...)
		if !strings.Contains(r.stdout, "\nname=ours\nmode=aggregate\n") {
			t.Errorf("%v: the task's profile\n%s", options, r.stdout)
		}
	}
	if got := j.traced("srun", "--sigmatrace=off"); got != "" {
		t.Errorf("off: profile %q", got)
	}
	site(t, "profile_dir="+profiles)
	if got := j.traced("srun", "--sigmatrace=ours"); got != "ours" {
		t.Errorf("a site's profile by its name: %q", got)
	}
}

// Of the jobs that do not ask, a share is traced; those that ask are all.
func TestRate(t *testing.T) {
	j := newJob(t)
	for rate, want := range map[string]string{"rate=0%": "", "rate=100%": "simple"} {
		site(t, "default_profile=simple", rate)
		if got := j.traced("srun"); got != want {
			t.Errorf("%s: profile %q, want %q", rate, got, want)
		}
		if got := j.traced("srun", "--sigmatrace=full"); got != "full" {
			t.Errorf("%s, asked: profile %q", rate, got)
		}
		if r := j.ok("srun", "true"); r.stderr != "" { // nobody asked, and there is nothing to tell
			t.Errorf("%s: of a program that does not communicate srun says\n%s", rate, r.stderr)
		}
	}
}

// The site's base for run directories holds where the user says nothing.
func TestSiteOutput(t *testing.T) {
	base := filepath.Join(cluster, "home", "ann", "runs")
	os.RemoveAll(base) //nolint:errcheck // of an earlier run
	site(t, "output="+base+"/%u")
	j := newJob(t)
	j.ok("srun", "--sigmatrace", "true")
	if names, err := filepath.Glob(base + "/ann/sigmatrace-*.0/manifest.json"); err != nil || len(names) != 1 {
		t.Errorf("runs %v, %v", names, err)
	}
	j.ok("srun", "--sigmatrace", "--sigmatrace-output=.", "true")
	if got := j.runs(); len(got) != 1 {
		t.Errorf("runs %v in the user's directory", got)
	}
}

// A default that cannot be used, and a line in plugstack.conf that is wrong, leave jobs as they are.
func TestMistakesOfTheSite(t *testing.T) {
	j := newJob(t)
	for _, arguments := range [][]string{{"default_profile=bogus"}, {"default_profile=simple", "libdir=/nonexistent"}, {"default_profile=simple", "command=/nonexistent"},
		{"default_profile=simple", "unknown=1"}, {"default_profile=simple", "rate=many"}, {"default_profile=simple", "output=relative"}, {"default_profile=simple", "profile_dir=/root"}} {
		site(t, arguments...)
		want := ""
		if arguments[len(arguments)-1] == "profile_dir=/root" { // which nobody else can read: the built-in profiles are there
			want = "simple"
		}
		if got := j.traced("srun", "-N2"); got != want {
			t.Errorf("%v: profile %q", arguments, got)
		}
		out := j.batch(nil, "echo ran", printProfile)
		if !strings.Contains(out, "ran\n") || profileIn(out) != want {
			t.Errorf("%v: the batch script printed\n%s", arguments, out)
		}
	}
	site(t, "default_profile=bogus")
	if r := j.ok("srun", "true"); !strings.HasPrefix(r.stderr, "sigmatrace: error: this cluster's default profile: unknown profile \"bogus\"\n") {
		t.Errorf("standard error\n%s", r.stderr)
	}
	site(t, "unknown=1")
	r := j.ok("srun", "--sigmatrace", "true")
	if want := "sigmatrace: warning: nothing is traced: sigmatrace's line in plugstack.conf is wrong\nsigmatrace: hint: sigmatrace doctor says what is wrong with it\n"; !strings.Contains(r.stderr, want) {
		t.Errorf("standard error\n%s", r.stderr)
	}
	idle(t)
}

// What reaches a node without having passed srun's checks is checked there: the tasks run untraced, and the reason is kept.
func TestNodesTrustNothing(t *testing.T) {
	site(t)
	j := newJob(t)
	secret := filepath.Join(cluster, "etc", "munge.key")
	run := j.dir + "/run"
	for _, dir := range []string{run, run + "/tasks", j.dir + "/elsewhere"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, 61001, 61001); err != nil {
			t.Fatal(err)
		}
	}
	flat := func(link bool, owner int, text string) {
		name := run + "/profile.resolved"
		os.Remove(name) //nolint:errcheck // there may be none yet
		var err error
		if link {
			err = os.Symlink(text, name)
		} else if err = os.WriteFile(name, []byte(text), 0o644); err == nil {
			err = os.Chown(name, owner, owner)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	good := "sigmatrace.profile=1\nname=simple\n"
	step := func(text string) string {
		t.Helper()
		j.environ = []string{"SLURM_SIGMATRACE=" + text}
		// orted keeps what it inherits: srun itself looks at no value of it.
		r := j.ok("srun", "-N1", "./orted")
		if !strings.HasPrefix(r.stdout, "ran ") {
			t.Errorf("%.80q: the task printed %q", text, r.stdout)
		}
		return r.stdout
	}
	j.write("orted", "#!/bin/sh\necho ran preload=$LD_PRELOAD\n")
	flat(false, 61001, good)
	if out := step("1;ucx,ibverbs;" + run); !strings.Contains(out, "/libsigmatrace.so:") {
		t.Fatalf("what is right is not traced: %s", out)
	}
	for _, text := range []string{"", "2;ucx;" + run, "1;../../tmp/evil;" + run, "1;ucx;relative", "1;ucx", "1;;" + run, "1;ucx;" + run + "\x01", "1;nothing;" + run,
		"1;ucx;/" + strings.Repeat("x", 5000), "1;" + strings.Repeat("ucx,", 100) + ";" + run, "1;ucx;" + j.dir + "/none", strings.Repeat("x", 60000)} {
		if out := step(text); strings.Contains(out, "sigmatrace") {
			t.Errorf("%.80q: the task has %s", text, out)
		}
	}
	for _, c := range []struct {
		link   bool
		owner  int
		text   string
		reason string
	}{
		{true, 0, secret, "the run directory is not there"},
		{false, 61002, good, "the run's profile is not a file of the user's"},
		{false, 61001, "sigmatrace.profile=2\n", "the run's profile is none that this version reads"},
		{false, 61001, strings.Repeat("x", 17000), "the run's profile is not a file of the user's"},
	} {
		flat(c.link, c.owner, c.text)
		if out := step("1;ucx,ibverbs;" + run); strings.Contains(out, "sigmatrace") {
			t.Errorf("%s: the task has %s", c.reason, out)
		}
		names, err := filepath.Glob(run + "/tasks/n*")
		if err != nil || len(names) == 0 {
			t.Fatalf("nothing is written down: %v", err)
		}
		var text []byte
		for _, name := range names {
			part, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			text = append(text, part...)
		}
		if !strings.Contains(string(text), "untraced="+c.reason+"\n") {
			t.Errorf("%s is not written down:\n%s", c.reason, text)
		}
	}
	// What root would write through a link of the user's is not written.
	target := filepath.Join(cluster, "etc", "target")
	if err := os.WriteFile(target, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	flat(false, 61001, good)
	if err := os.RemoveAll(run + "/tasks"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(run+"/tasks", 0o777); err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"n1", "n2", "n3", "n4"} {
		if err := os.Symlink(target, run+"/tasks/"+node); err != nil {
			t.Fatal(err)
		}
	}
	step("1;ucx,ibverbs;" + run)
	if text, err := os.ReadFile(target); err != nil || len(text) > 0 {
		t.Errorf("through the user's link was written %q, %v", text, err)
	}
	idle(t)
}

// Prolog, epilog and the external step are not touched: no file but the run's, and the node's log has no line of ours for them.
func TestOtherStepsAreLeftAlone(t *testing.T) {
	site(t)
	j := newJob(t)
	id := j.submit([]string{"--sigmatrace=full"}, "srun --sigmatrace=full true")
	j.ended(id)
	var lines []string
	for _, node := range []string{"n1", "n2", "n3", "n4"} {
		log, err := os.ReadFile(filepath.Join(cluster, "log", "slurmd."+node+".log"))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(log)) {
			if strings.Contains(line, "sigmatrace:") && strings.Contains(line, "["+id+".") {
				_, rest, _ := strings.Cut(line, "["+id+".")
				kind, _, _ := strings.Cut(rest, "]")
				lines = append(lines, kind)
			}
		}
	}
	slices.Sort(lines)
	if want := []string{"batch"}; !slices.Equal(lines, want) { // the job's one line
		t.Errorf("the nodes' logs have lines of ours for %v, want %v", lines, want)
	}
}
