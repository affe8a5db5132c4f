//go:build slurm

package slurm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// said is where a profile may be asked for, from the lowest to the highest.
type said struct {
	site, script string
	environ      []string // of srun or sbatch
	line         string
}

// Built in < site default < #SBATCH < environment < command line, in a batch script; `off` beats every default and every inherited value, and
// only the command line takes it back.
func TestPrecedenceOfABatchJob(t *testing.T) {
	const full, off = "SIGMATRACE_PROFILE=full", "SIGMATRACE=off"
	type row struct {
		said
		want string
	}
	bySite := map[string]map[string]row{}
	for name, c := range map[string]row{
		"built in":                                {said{script: "--sigmatrace"}, "simple"},
		"script over built in":                    {said{script: "--sigmatrace=full"}, "full"},
		"environment over built in":               {said{environ: []string{full}}, "full"},
		"line over built in":                      {said{line: "--sigmatrace=full"}, "full"},
		"site over built in":                      {said{site: "full", script: "--sigmatrace"}, "full"},
		"site without asking":                     {said{site: "full"}, "full"},
		"script over site":                        {said{site: "full", script: "--sigmatrace=aggregate"}, "aggregate"},
		"environment over site":                   {said{site: "simple", environ: []string{full}}, "full"},
		"line over site":                          {said{site: "full", line: "--sigmatrace=aggregate"}, "aggregate"},
		"environment over script":                 {said{script: "--sigmatrace=aggregate", environ: []string{full}}, "full"},
		"line over script":                        {said{script: "--sigmatrace=full", line: "--sigmatrace=aggregate"}, "aggregate"},
		"line over environment":                   {said{environ: []string{full}, line: "--sigmatrace=aggregate"}, "aggregate"},
		"the default on the line over all":        {said{site: "aggregate", script: "--sigmatrace=full", environ: []string{full}, line: "--sigmatrace=default"}, "aggregate"},
		"script off over site":                    {said{site: "full", script: "--sigmatrace=off"}, ""},
		"environment off over site":               {said{site: "full", environ: []string{off}}, ""},
		"line off over site":                      {said{site: "full", line: "--sigmatrace=off"}, ""},
		"environment off over script":             {said{script: "--sigmatrace=full", environ: []string{off}}, ""},
		"environment off over profile in it":      {said{environ: []string{full, off}}, ""},
		"line off over environment":               {said{environ: []string{full}, line: "--sigmatrace=off"}, ""},
		"script off is not undone by environment": {said{script: "--sigmatrace=off", environ: []string{full}}, ""},
		"line over script off":                    {said{script: "--sigmatrace=off", line: "--sigmatrace=full"}, "full"},
		"line over environment off":               {said{environ: []string{off}, line: "--sigmatrace=full"}, "full"},
	} {
		if bySite[c.site] == nil {
			bySite[c.site] = map[string]row{}
		}
		bySite[c.site][name] = c
	}
	for profile, rows := range bySite {
		if profile == "" {
			site(t)
		} else {
			site(t, "default_profile="+profile)
		}
		cases := map[string]said{}
		for name, c := range rows {
			cases[name] = c.said
		}
		for name, out := range together(t, cases, printProfile, "echo step; srun sh -c '"+printProfile+"'") {
			ofBatch, ofStep, _ := strings.Cut(out, "step\n")
			if got, want := profileIn(ofBatch), rows[name].want; got != want {
				t.Errorf("%s: the script has profile %q, want %q\n%s", name, got, want, out)
			}
			if got, want := profileIn(ofStep), rows[name].want; got != want {
				t.Errorf("%s: a step in it has profile %q, want %q\n%s", name, got, want, out)
			}
		}
	}
}

// An srun in a job inherits what the job was given, and may say otherwise.
func TestPrecedenceOfAStepInAJob(t *testing.T) {
	t.Parallel()
	site(t)
	show := " sh -c '" + printProfile + "'"
	lines := func(lines ...string) []string {
		for i := range lines {
			lines[i] += show
		}
		return lines
	}
	j := newJob(t)
	out := j.batch([]string{"--sigmatrace=full"}, lines("srun", "srun --sigmatrace=aggregate", "SIGMATRACE_PROFILE=aggregate srun", "srun --sigmatrace=off",
		"SIGMATRACE=off srun", "SIGMATRACE=off srun --sigmatrace=simple", "srun --sigmatrace", "srun --export=NONE /bin/env -i SIGMATRACE_CONFIG=\"$SIGMATRACE_CONFIG\"")...)
	check := func(out string, want ...string) {
		t.Helper()
		n := 0
		for line := range strings.Lines(out) {
			if !strings.HasPrefix(line, "profile=") {
				continue
			}
			if got := profileIn(line); n < len(want) && got != want[n] {
				t.Errorf("step %d has profile %q, want %q", n, got, want[n])
			}
			n++
		}
		if n != len(want) {
			t.Errorf("%d steps have spoken, want %d\n%s", n, len(want), out)
		}
	}
	check(out, "full", "aggregate", "aggregate", "", "", "simple", "simple", "full")

	j = newJob(t)
	check(j.batch([]string{"--sigmatrace=off"}, lines("srun", "SIGMATRACE_PROFILE=full srun", "srun --sigmatrace=full")...), "", "", "full")

	// The variables had their say at submission.
	j = newJob(t)
	j.environ = []string{"SIGMATRACE_PROFILE=aggregate"}
	check(j.batch([]string{"--sigmatrace=full"}, lines("srun")...), "full")
	j = newJob(t)
	j.environ = []string{"SIGMATRACE=off"}
	check(j.batch([]string{"--sigmatrace=full"}, lines("srun")...), "full")
}

// The forms in which an srun of its own may be asked, and what holds where several are there.
func TestFormsOfAsking(t *testing.T) {
	const variable = "SLURM_SPANK__SLURM_SPANK_OPTION_sigmatrace_sigmatrace="
	for name, c := range map[string]struct {
		said
		want string
	}{
		"bare":                           {said{line: "--sigmatrace"}, "simple"},
		"empty":                          {said{line: "--sigmatrace="}, "simple"},
		"default":                        {said{line: "--sigmatrace=default"}, "simple"},
		"default of the site":            {said{site: "full", line: "--sigmatrace"}, "full"},
		"Slurm's variable":               {said{environ: []string{variable + "full"}}, "full"},
		"Slurm's variable without value": {said{environ: []string{variable + "(null)"}}, "simple"},
		"our variable":                   {said{environ: []string{"SIGMATRACE_PROFILE=full"}}, "full"},
		"our variable and the line":      {said{environ: []string{"SIGMATRACE_PROFILE=full"}, line: "--sigmatrace=aggregate"}, "aggregate"},
		"off by our variable":            {said{environ: []string{"SIGMATRACE=off", "SIGMATRACE_PROFILE=full"}}, ""},
		"off and the line":               {said{environ: []string{"SIGMATRACE=off"}, line: "--sigmatrace=full"}, "full"},
		"off by the line":                {said{site: "full", line: "--sigmatrace=off"}, ""},
		"nothing":                        {said{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t)
			j.environ = c.environ
			arguments := []string{}
			if c.site != "" {
				arguments = append(arguments, "default_profile="+c.site)
			}
			site(t, arguments...)
			argv := []string{"srun"}
			if c.line != "" {
				argv = append(argv, c.line)
			}
			if got := j.traced(argv...); got != c.want {
				t.Errorf("profile %q, want %q", got, c.want)
			}
		})
	}
}

// Keys and the directory by options, each also by its variable; of one key the last holds, and a job's steps have all of them.
func TestSettings(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	values := func(dir string) [3]string {
		m := manifest(t, j.dirOf(dir))
		return [3]string{m.Profile.Values["mode"].Value, m.Profile.Values["record.budget"].Value, m.Profile.Values["providers"].Value}
	}
	j.ok("srun", "--sigmatrace-set=mode=simple", "--sigmatrace=full", "--sigmatrace-set=record.budget=8MiB", "--sigmatrace-set=mode=aggregate",
		"--sigmatrace-set=providers=ucx", "--sigmatrace-output=out/%u", "true")
	first, err := filepath.Glob(filepath.Join(j.dir, "out/ann/sigmatrace-*.0"))
	if err != nil || len(first) != 1 {
		t.Fatalf("run directories %v, %v", first, err)
	}
	if got, want := values(strings.TrimPrefix(first[0], j.dir+"/")), [3]string{"aggregate", "8388608", "ucx"}; got != want {
		t.Errorf("values %q, want %q", got, want)
	}

	j = newJob(t)
	j.environ = []string{"SIGMATRACE_MODE=aggregate", "SIGMATRACE_OUTPUT_DIRECTORY=" + j.dir + "/there"}
	out := j.batch([]string{"--sigmatrace=full", "--sigmatrace-set=record.budget=8MiB", "--sigmatrace-set=providers=ucx"},
		"cd /", `srun sh -c 'cat $SIGMATRACE_CONFIG'`, `srun --sigmatrace-set=mode=simple sh -c 'cat $SIGMATRACE_CONFIG'`)
	for _, want := range []string{"\nmode=aggregate\nproviders=ucx\nrecord.budget=8388608\n", "\nmode=simple\nproviders=ucx\nrecord.budget=8388608\n",
		"\ncapture.directory=" + j.dir + "/there/sigmatrace-"} {
		if !strings.Contains(out, want) {
			t.Errorf("the steps' profiles have no %q\n%s", want, out)
		}
	}
}

// What is unknown or broken is refused where the user sits, before there is a job, with what would be right.
func TestRefusal(t *testing.T) {
	site(t)
	j := newJob(t)
	broken := j.write("broken.toml", "mode = \"everything\"\n")
	number := func() string {
		return j.ok("sh", "-c", "scontrol show config | grep ^NEXT_JOB_ID").stdout
	}
	before := number()
	script := j.write("script", "#!/bin/sh\n#SBATCH --sigmatrace=bogus\ntrue\n")
	good := j.write("good", "#!/bin/sh\ntrue\n")
	for _, c := range []struct {
		environ []string
		argv    []string
		status  int
		says    string
	}{
		{nil, []string{"srun", "--sigmatrace=bogus", "true"}, 255, "sigmatrace: error: --sigmatrace: unknown profile \"bogus\"\nsigmatrace: hint: valid: aggregate, full, simple\n"},
		{nil, []string{"salloc", "--sigmatrace=bogus", "true"}, 255, "unknown profile \"bogus\"\nsigmatrace: hint: valid: aggregate, full, simple\n"},
		{nil, []string{"sbatch", "--sigmatrace=bogus", good}, 255, "unknown profile \"bogus\"\nsigmatrace: hint: valid: aggregate, full, simple\n"},
		{nil, []string{"sbatch", script}, 255, "sigmatrace: error: --sigmatrace: unknown profile \"bogus\"\nsigmatrace: hint: valid: aggregate, full, simple\n"},
		{nil, []string{"srun", "--sigmatrace=" + broken, "true"}, 255, broken + ":1: mode: \"everything\" is not valid\n"},
		{nil, []string{"srun", "--sigmatrace", "--sigmatrace-set=mode=all", "true"}, 255, "sigmatrace: error: --sigmatrace-set mode: \"all\" is not valid; "},
		{nil, []string{"srun", "--sigmatrace", "--sigmatrace-set=mode", "true"}, 255, "sigmatrace: error: --sigmatrace-set: write --sigmatrace-set=key=value\n"},
		{nil, []string{"srun", "--sigmatrace=" + strings.Repeat("x", 5000), "true"}, 255, "the profile's name is too long\n"},
		{[]string{"SIGMATRACE_PROFILE=bogus"}, []string{"srun", "true"}, 1, "sigmatrace: error: environment SIGMATRACE_PROFILE: unknown profile \"bogus\"\nsigmatrace: hint: valid: aggregate, full, simple\n"},
		{[]string{"SIGMATRACE_MODE=all"}, []string{"srun", "--sigmatrace", "true"}, 255, "SIGMATRACE_MODE: \"all\" is not valid; "},
		{[]string{"SLURM_SPANK__SLURM_SPANK_OPTION_sigmatrace_sigmatrace=bogus"}, []string{"sbatch", good}, 1, "environment SLURM_SPANK__SLURM_SPANK_OPTION_sigmatrace_sigmatrace: unknown profile \"bogus\"\n"},
	} {
		j.environ = c.environ
		if r := j.run(c.argv...); r.status != c.status || !strings.Contains(r.stderr, c.says) {
			t.Errorf("%v %q: status %d, want %d; standard error\n%s", c.environ, c.argv, r.status, c.status, r.stderr)
		}
	}
	j.environ = nil
	if after := number(); after != before {
		t.Errorf("jobs were made: %s %s", before, after)
	}
	if got := j.runs(); len(got) > 0 {
		t.Errorf("run directories %v", got)
	}
}

// "--sigmatrace full" runs a program called full, by the rules of getopt: it is said.
func TestHintWhereAProfileFollowsASpace(t *testing.T) {
	t.Parallel()
	site(t)
	j := newJob(t)
	full := j.write("full", "#!/bin/sh\necho ran\n")
	if err := os.Chmod(full, 0o755); err != nil {
		t.Fatal(err)
	}
	j.environ = []string{"PATH=" + j.dir + ":/usr/bin:/bin"}
	for _, words := range [][]string{{"--sigmatrace", "simple"}, {"--sigmatrace", "off", "--wrap=true"}} { // sbatch looks for such a script before it looks at options
		r := j.run(append([]string{"sbatch"}, words...)...)
		if r.status == 0 || strings.Count(r.stderr, "sigmatrace: hint: write --sigmatrace="+words[1]+"\n") != 1 {
			t.Errorf("sbatch %q: status %d, standard error\n%s", words, r.status, r.stderr)
		}
	}
	if r := j.ok("sbatch", "--output=/dev/null", full, "--sigmatrace", "simple"); r.stderr != "" {
		t.Errorf("of a script's own words sbatch says\n%s", r.stderr)
	}
	r := j.ok("srun", "--sigmatrace", "full")
	if r.stdout != "ran\n" || !strings.Contains(r.stderr, "sigmatrace: hint: write --sigmatrace=full\n") {
		t.Errorf("standard output %q, standard error\n%s", r.stdout, r.stderr)
	}
	for _, command := range []string{"salloc", "sbatch"} {
		if r := j.ok(command, "--sigmatrace", "full"); !strings.Contains(r.stderr, "sigmatrace: hint: write --sigmatrace=full\n") {
			t.Errorf("%s says\n%s", command, r.stderr)
		}
	}
	if r := j.ok("srun", "--sigmatrace", "true"); strings.Contains(r.stderr, "write --sigmatrace=") {
		t.Errorf("a hint without a cause:\n%s", r.stderr)
	}
}
