//go:build slurm

package slurm

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// siteText is where the site keeps its resolved profile: in the cluster's own /etc, which only root can write.
const siteText = "/etc/sigmatrace/job"

// resolved makes the site's resolved profile as its administrator would.
func resolved(t *testing.T, profile string) {
	t.Helper()
	root := &job{t: t, user: "root", dir: cluster}
	root.ok("sh", "-c", "rm -rf /etc/sigmatrace && mkdir -m 755 /etc/sigmatrace && "+built(t, "bin/sigmatrace")+" profile resolve --job --relative --site-only -- "+profile+" >"+siteText)
}

// interfaces are the versions of slurmrestd's interface, one for each release of Slurm, with the options that load it alone: the one for the accounting's
// database, which there is none of here, would keep slurmrestd from starting.
var interfaces = map[string]struct{ version, load string }{
	"22.05": {"v0.0.38", "-s openapi/v0.0.38"},
	"24.11": {"v0.0.42", "-s slurmctld -d v0.0.42"},
	"26.05": {"v0.0.45", "-s slurmctld -d v0.0.45"},
}

func (j *job) release() string {
	j.t.Helper()
	fields := strings.Fields(j.ok("srun", "--version").stdout)
	major, rest, _ := strings.Cut(fields[len(fields)-1], ".")
	minor, _, _ := strings.Cut(rest, ".")
	return major + "." + minor
}

// rest starts slurmrestd as the job's user on a socket of its own.
func (j *job) rest() {
	j.t.Helper()
	i, is := interfaces[j.release()]
	if !is {
		j.t.Fatalf("no interface of slurmrestd is known for Slurm %s", j.release())
	}
	pid := strings.TrimSpace(j.ok("sh", "-c", "setsid slurmrestd "+i.load+" -a rest_auth/local unix:rest.sock >rest.log 2>&1 </dev/null & echo $!").stdout)
	j.t.Cleanup(func() { j.run("kill", pid) })
	// The socket is there before anybody listens; 7 is curl's status where it cannot connect.
	listens := "while curl -s -o /dev/null --unix-socket rest.sock http://localhost/; [ $? = 7 ]; do sleep 0.05; done"
	if r := j.run("timeout", "60", "sh", "-c", listens); r.status != 0 {
		j.t.Fatalf("slurmrestd does not listen:\n%s", j.read("rest.log"))
	}
}

// post submits a script of two nodes by slurmrestd, waits for its end, and returns the job's number and what it printed.
func (j *job) post(environment map[string]string, lines ...string) (id, out string) {
	j.t.Helper()
	env := map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": filepath.Join(cluster, "home", j.user), "SLURM_CONF": filepath.Join(cluster, "etc", "slurm.conf")}
	for _, v := range j.environ {
		name, value, _ := strings.Cut(v, "=")
		env[name] = value
	}
	for name, value := range environment {
		env[name] = value
	}
	what := map[string]any{"name": "rest", "nodes": 2, "tasks": 4, "tasks_per_node": 2, "current_working_directory": j.dir,
		"standard_output": filepath.Join(j.dir, "out"), "environment": env}
	if j.release() != "22.05" {
		var list []string
		for name, value := range env {
			list = append(list, name+"="+value)
		}
		what["nodes"], what["environment"] = "2", list
	}
	text, err := json.Marshal(map[string]any{
		"job":    what,
		"script": "#!/bin/bash\n" + strings.Join(lines, "\n") + "\n",
	})
	if err != nil {
		j.t.Fatal(err)
	}
	body := j.write("job.json", string(text))
	r := j.ok("curl", "-sS", "--unix-socket", "rest.sock", "-H", "Content-Type: application/json", "--data-binary", "@"+body, "http://localhost/slurm/"+interfaces[j.release()].version+"/job/submit")
	var answer struct {
		Errors []any `json:"errors"`
		ID     int   `json:"job_id"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &answer); err != nil || len(answer.Errors) > 0 || answer.ID == 0 {
		j.t.Fatalf("slurmrestd answers %v\n%s", err, r.stdout)
	}
	id = fmt.Sprint(answer.ID)
	j.ended(id)
	return id, j.read("out")
}

// A job that came by slurmrestd has met no plugin of ours before its node: the site's default, resolved beforehand, is what it is traced by, and
// what it starts.
func TestJobOfSlurmrestdIsTracedByTheSitesDefault(t *testing.T) {
	site(t, "default_profile=full", "resolved="+siteText)
	resolved(t, "full")
	j := newJob(t)
	j.environ = overUCX
	j.rest()
	id, out := j.post(nil, "mpirun "+built(t, "tests/mpi-app")+" -n 2 && echo first well", "srun "+strings.Join(ranks(t, j), " ")+" && echo second well", printProfile)
	if !strings.Contains(out, "first well") || !strings.Contains(out, "second well") || profileIn(out) != "full" {
		t.Errorf("the script printed\n%s", out)
	}
	runs := j.runs()
	if len(runs) != 2 || !strings.HasPrefix(runs[0], "sigmatrace-"+id+".") || runs[1] != "sigmatrace-"+id+".batch" {
		t.Fatalf("runs %v, want the script's and that of its step", runs)
	}
	for _, name := range runs {
		dir := j.dirOf(name)
		complete(t, dir, 4)
		if got := captured(t, dir); !slices.Equal(got, []string{"n1", "n1", "n2", "n2"}) {
			t.Errorf("%s has captures of %v", name, got)
		}
		if m := manifest(t, dir); m.Profile.Name != "full" || m.Run.User != "ann" {
			t.Errorf("%s: profile %q, user %q", name, m.Profile.Name, m.Run.User)
		}
	}
	idle(t)
}

// What holds for a default holds for such a job too.
func TestJobOfSlurmrestdIsUnderTheSitesRules(t *testing.T) {
	resolved(t, "simple")
	j := newJob(t)
	j.rest()
	off := filepath.Join(cluster, "etc", "off")
	step := "srun -n1 /bin/sh -c '" + printProfile + "'"
	for _, c := range []struct {
		site         []string
		environment  map[string]string
		script, step string
	}{
		{nil, nil, "simple", "simple"},
		{[]string{"locked"}, map[string]string{"SIGMATRACE_PROFILE": "full"}, "simple", "simple"},
		{nil, map[string]string{"SIGMATRACE_PROFILE": "default"}, "simple", "simple"},
		{nil, map[string]string{"SIGMATRACE": "off"}, "", ""},
		{nil, map[string]string{"SIGMATRACE_PROFILE": "full"}, "", "full"}, // its nodes can resolve no other profile, but its steps' srun can
		{nil, map[string]string{"SLURM_SPANK_SIGMATRACE_JOB": "off"}, "", ""},
		{[]string{"rate=0%"}, nil, "", ""},
		{[]string{"deny_users=ann"}, nil, "", ""},
		{[]string{"allow_groups=staff2"}, nil, "", ""},
		{[]string{"deny_partitions=all"}, nil, "", ""},
		{[]string{"kill_switch=" + off}, nil, "", ""},
	} {
		site(t, append([]string{"default_profile=simple", "resolved=" + siteText}, c.site...)...)
		if err := os.WriteFile(off, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		_, out := j.post(c.environment, printProfile, "echo step:", step)
		script, inner, _ := strings.Cut(out, "step:\n")
		if got := profileIn(script); got != c.script {
			t.Errorf("%v %v: the script has profile %q, want %q", c.site, c.environment, got, c.script)
		}
		if got := profileIn(inner); got != c.step {
			t.Errorf("%v %v: its step has profile %q, want %q", c.site, c.environment, got, c.step)
		}
	}
	if err := os.Remove(off); err != nil {
		t.Fatal(err)
	}
}

// A file that somebody else could have written, or that is not what it should be, is not taken: the script runs untraced, the node's log says why.
func TestResolvedProfileThatIsNotTaken(t *testing.T) {
	j := newJob(t)
	j.rest()
	root := &job{t: t, user: "root", dir: cluster}
	arguments := []string{"default_profile=simple", "resolved=" + siteText}
	for spoil, reason := range map[string]string{
		"rm " + siteText:            "cannot be read, or others than root can replace it",
		"chmod 664 " + siteText:     "is not a file that only root can write",
		"chown ann " + siteText:     "is not a file that only root can write",
		"chmod 777 /etc/sigmatrace": "cannot be read, or others than root can replace it",
		"chown ann /etc/sigmatrace": "cannot be read, or others than root can replace it",
		"mv " + siteText + " /etc/sigmatrace/x; ln -s x " + siteText: "cannot be read, or others than root can replace it",
		"rm " + siteText + "; mkfifo " + siteText:                    "is not a file that only root can write",
		"sed -i 's/^1;/2;/' " + siteText:                             "is of another version",
		"sed -i 's/;mode=/;mode=\\x01/' " + siteText:                 "is not one line of text",
		"sed -i 's/asked=simple/asked=simpler/' " + siteText:         "is another than its default_profile",
		"head -c 40000 /dev/zero | tr '\\0' x >>" + siteText:         "is too long",
		"sed -i 's/;mode=simple/;mode=none/' " + siteText:            "mode",
	} {
		site(t, arguments...)
		resolved(t, "simple")
		root.ok("sh", "-c", spoil)
		id, out := j.post(nil, printProfile)
		if got := profileIn(out); got != "" {
			t.Errorf("%s: the script has profile %q", spoil, got)
		}
		log := root.ok("sh", "-c", "grep -h 'sigmatrace: step' log/slurmd.*.log | grep -F '["+id+".batch]'").stdout
		if !strings.Contains(log, "step batch is not traced here: ") || !strings.Contains(log, reason) {
			t.Errorf("%s: the node's log says\n%s", spoil, log)
		}
	}
	idle(t)
	if got := j.runs(); len(got) > 0 {
		t.Errorf("runs %v", got)
	}
}
