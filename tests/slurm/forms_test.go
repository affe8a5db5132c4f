//go:build slurm

package slurm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// option is Slurm's own variable for the plugin's option --sigmatrace; the others' have more behind it.
const option = "SLURM_SPANK__SLURM_SPANK_OPTION_sigmatrace_sigmatrace"

// under runs a shell's command under srun, under an srun in salloc, or as a batch script, and returns what it printed.
func (j *job) under(command string, options []string, shell string) string {
	j.t.Helper()
	switch command {
	case "srun":
		return j.ok(append(append([]string{"srun"}, options...), "sh", "-c", shell)...).stdout
	case "salloc":
		return j.ok(append(append([]string{"salloc", "--quiet"}, options...), "srun", "sh", "-c", shell)...).stdout
	default:
		return j.batch(options, shell)
	}
}

// Each option has its variables, for each of the three commands: the plugin's own, which are those of `sigmatrace launch` too, and Slurm's form.
func TestVariablesOfTheOptions(t *testing.T) {
	t.Parallel()
	site(t)
	for _, c := range []struct {
		environ, options []string
		want             string // profile, mode, whether the run is in the directory there
	}{
		{[]string{"SIGMATRACE_PROFILE=aggregate"}, nil, "aggregate aggregate here"},
		{[]string{option + "=aggregate"}, nil, "aggregate aggregate here"},
		{[]string{"SIGMATRACE_MODE=aggregate"}, []string{"--sigmatrace=full"}, "full aggregate here"},
		{[]string{option + "_set=mode=aggregate"}, []string{"--sigmatrace=full"}, "full aggregate here"},
		{[]string{"SIGMATRACE_OUTPUT_DIRECTORY=there"}, []string{"--sigmatrace=full"}, "full full there"},
		{[]string{option + "_output=there"}, []string{"--sigmatrace=full"}, "full full there"},
		{[]string{"SIGMATRACE_MODE=aggregate", "SIGMATRACE_OUTPUT_DIRECTORY=nowhere"},
			[]string{"--sigmatrace=full", "--sigmatrace-set=mode=simple", "--sigmatrace-output=there"}, "full simple there"},
		{[]string{"SIGMATRACE=off", "SIGMATRACE_PROFILE=full"}, nil, "  here"},
	} {
		for _, command := range []string{"srun", "salloc", "sbatch"} {
			t.Run(command+"/"+c.want, func(t *testing.T) {
				t.Parallel()
				j := newJob(t)
				j.environ = c.environ
				out := j.under(command, c.options, `echo "is $(sed -n s/^name=//p $SIGMATRACE_CONFIG) $(sed -n s/^mode=//p $SIGMATRACE_CONFIG) $(case $SIGMATRACE_CONFIG in */there/*) echo there ;; *) echo here ;; esac)" </dev/null`)
				if !strings.Contains(out, "is "+c.want+"\n") {
					t.Errorf("%v %v: printed %q, want %q", c.environ, c.options, out, c.want)
				}
			})
		}
	}
}

// The precedence of a script, the environment and the command line is sbatch's own, as sbatch(1) has it: what it holds for a job's name holds for
// the profile, in every combination.
func TestPrecedenceIsThatOfSbatch(t *testing.T) {
	t.Parallel()
	site(t)
	type sent struct {
		j    *job
		id   string
		said string
	}
	var jobs []sent
	for bits := 1; bits < 8; bits++ {
		j := newJob(t)
		var options, script []string
		if bits&1 != 0 {
			script = append(script, "#SBATCH --job-name=aggregate --sigmatrace=aggregate")
		}
		if bits&2 != 0 {
			j.environ = []string{"SBATCH_JOB_NAME=full", "SIGMATRACE_PROFILE=full"}
		}
		if bits&4 != 0 {
			options = []string{"--job-name=simple", "--sigmatrace=simple"}
		}
		id := j.submit(options, append(script, "echo name=$SLURM_JOB_NAME", printProfile)...)
		jobs = append(jobs, sent{j, id, strings.Join(append(append(script, j.environ...), options...), " ")})
	}
	for _, s := range jobs {
		s.j.ended(s.id)
		out := s.j.read("out")
		name, _, _ := strings.Cut(strings.TrimPrefix(out, "name="), "\n")
		if got := profileIn(out); got == "" || got != name {
			t.Errorf("%s: profile %q, the job is called %q", s.said, got, name)
		}
	}
}

// together submits the script for each case, all before the first is waited for, and returns what each printed.
func together(t *testing.T, cases map[string]said, lines ...string) map[string]string {
	t.Helper()
	jobs, ids, got := map[string]*job{}, map[string]string{}, map[string]string{}
	for name, c := range cases {
		j := newJob(t)
		j.environ = c.environ
		var script, options []string
		if c.script != "" {
			script = append(script, "#SBATCH "+c.script)
		}
		if c.line != "" {
			options = strings.Fields(c.line)
		}
		jobs[name], ids[name] = j, j.submit(options, append(script, lines...)...)
	}
	for name, j := range jobs {
		j.ended(ids[name])
		got[name] = j.read("out")
	}
	return got
}

// A locked site against each way of asking for something else, and of switching off, which alone is the user's.
func TestLockedSiteAgainstEach(t *testing.T) {
	profiles := filepath.Join(cluster, "etc", "profiles-locked")
	mine := newJob(t)
	for dir, text := range map[string]string{profiles: "extends = \"aggregate\"\n", filepath.Join(mine.dir, "sigmatrace", "profiles"): "extends = \"full\"\n"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "ours.toml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	site(t, "default_profile=ours", "profile_dir="+profiles, "locked")
	forged := "SLURM_SPANK_SIGMATRACE_JOB=" + strings.ReplaceAll(strings.TrimSpace(mine.ok(built(t, "bin/sigmatrace"), "profile", "resolve", "--job", "full").stdout),
		"asked=full", "asked=ours")
	cases := map[string]said{
		"script": {script: "--sigmatrace=full"}, "environment": {environ: []string{"SIGMATRACE_PROFILE=full"}}, "line": {line: "--sigmatrace=full"},
		"a file": {line: "--sigmatrace=" + mine.dir + "/sigmatrace/profiles/ours.toml"}, "the user's search path": {environ: []string{"SIGMATRACE_PROFILE_PATH=" + mine.dir + "/sigmatrace/profiles"}},
		"the user's directory": {environ: []string{"XDG_CONFIG_HOME=" + mine.dir}},
		"a text of the user's": {environ: []string{forged}, line: "--sigmatrace"}, "Slurm's variable": {environ: []string{option + "=full"}},
		"script off": {script: "--sigmatrace=off"}, "environment off": {environ: []string{"SIGMATRACE=off"}}, "line off": {line: "--sigmatrace=off"},
	}
	for name, out := range together(t, cases, printProfile) {
		got, want := profileIn(out), "ours"
		if strings.HasSuffix(name, "off") {
			want = ""
		}
		if got != want {
			t.Errorf("%s: profile %q, want %q", name, got, want)
		}
	}
	// What is in the file counts, not its name alone.
	j := newJob(t)
	const mode = `sed -n s/^mode=//p $SIGMATRACE_CONFIG`
	for _, environ := range [][]string{{forged}, {"XDG_CONFIG_HOME=" + mine.dir}, {"SIGMATRACE_PROFILE_PATH=" + mine.dir + "/sigmatrace/profiles"}, {"SIGMATRACE_MODE=full"}, {option + "_set=mode=full"}} {
		j.environ = environ
		if r := j.ok("srun", "sh", "-c", mode); r.stdout != "aggregate\n" {
			t.Errorf("%.60v: mode %q", environ, r.stdout)
		}
	}
	j.environ = nil
	if r := j.ok("srun", "--sigmatrace=full", "true"); !strings.Contains(r.stderr, "sigmatrace: warning: --sigmatrace=full is passed over: this cluster has one profile for all, ours\n") {
		t.Errorf("nothing is said of what is passed over\n%s", r.stderr)
	}
	if r := j.ok("srun", "--sigmatrace-set=mode=full", "true"); !strings.Contains(r.stderr, "sigmatrace: warning: --sigmatrace-set is passed over: this cluster has one profile for all, ours\n") {
		t.Errorf("nothing is said of a key that is passed over\n%s", r.stderr)
	}
}

// The kill switch against each way of asking.
func TestKillSwitchAgainstEach(t *testing.T) {
	file := filepath.Join(cluster, "etc", "off-for-all")
	site(t, "default_profile=simple", "kill_switch="+file)
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(file)
	for name, out := range together(t, map[string]said{
		"site": {}, "script": {script: "--sigmatrace=full"}, "environment": {environ: []string{"SIGMATRACE_PROFILE=full"}}, "line": {line: "--sigmatrace=full"},
		"line over off": {environ: []string{"SIGMATRACE=off"}, line: "--sigmatrace=full"},
	}, printProfile) {
		if got := profileIn(out); got != "" {
			t.Errorf("%s: profile %q", name, got)
		}
	}
	j := newJob(t)
	if out := j.under("salloc", []string{"--sigmatrace=full"}, printProfile); profileIn(out) != "" {
		t.Errorf("salloc: %s", out)
	}
}
