//go:build slurm

package slurm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// copied copies files into a new directory of this mode, and returns it.
func copied(t *testing.T, dir string, mode os.FileMode, files ...string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, mode); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A command, libraries and profiles that anybody could replace are not used, whatever plugstack.conf says: they would be in everybody's jobs.
func TestWhatAnybodyCanWriteIsNotTrusted(t *testing.T) {
	base, err := os.MkdirTemp(filepath.Join(cluster, "etc"), "trust")
	if err == nil {
		err = os.Chmod(base, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	command, library := built(t, "bin/sigmatrace"), built(t, "lib/sigmatrace/libsigmatrace.ibverbs+libfabric+mlx5dv+ucx.so")
	open := copied(t, base+"/open", 0o777, command)
	inside := copied(t, open+"/inside", 0o755, command)
	file := copied(t, base+"/file", 0o755, command)
	if err := os.Chmod(file+"/sigmatrace", 0o757); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(inside, base+"/link"); err != nil {
		t.Fatal(err)
	}
	sticky := copied(t, base+"/sticky", os.ModeSticky|0o777)
	libraries := copied(t, base+"/libraries", os.ModeSticky|0o777, library)
	profiles := copied(t, base+"/profiles", os.ModeSticky|0o777)

	j := newJob(t)
	const says = "anybody can write"
	for _, place := range []string{open, inside, file, base + "/link"} {
		argument := "command=" + place + "/sigmatrace"
		site(t, argument)
		for _, argv := range [][]string{{"srun", "--sigmatrace", "true"}, {"sbatch", "--sigmatrace", "--wrap=true"}} {
			if r := j.run(argv...); r.status != 255 || !strings.Contains(r.stderr, "sigmatrace: error: "+place+"/sigmatrace is not run: "+says) {
				t.Errorf("%s: %v: status %d\n%s", argument, argv, r.status, r.stderr)
			}
		}
		site(t, argument, "default_profile=full")
		if got := j.traced("srun"); got != "" {
			t.Errorf("%s: an srun that does not ask has profile %q", argument, got)
		}
	}
	site(t, "profile_dir="+profiles)
	if r := j.run("srun", "--sigmatrace", "true"); r.status != 255 || !strings.Contains(r.stderr, profiles+" are not read: "+says) {
		t.Errorf("profiles: status %d\n%s", r.status, r.stderr)
	}
	if got := j.runs(); len(got) > 0 {
		t.Errorf("runs %v", got)
	}
	site(t, "libdir="+libraries)
	r := j.ok("srun", "--sigmatrace", "--sigmatrace-set=providers=ucx,libfabric,ibverbs,mlx5dv", "sh", "-c", printProfile)
	m := manifest(t, j.one(r))
	if profileIn(r.stdout) != "" || len(m.Run.Untraced) != 1 || !strings.Contains(m.Run.Untraced[0].Reason, says) {
		t.Errorf("libraries: the task printed %s, the manifest says %v", r.stdout, m.Run.Untraced)
	}

	// Nobody can replace in a directory like /tmp what is another's.
	site(t, "command="+copied(t, sticky+"/bin", 0o755, command)+"/sigmatrace", "libdir="+copied(t, sticky+"/lib", 0o755, library))
	if got := j.traced("srun", "--sigmatrace=full"); got != "full" {
		t.Errorf("in a directory of root's within one that is sticky: profile %q", got)
	}
	idle(t)
}

// A batch script's step runs the command on its node, and looks there too.
func TestCommandThatANodeDoesNotTrust(t *testing.T) {
	base, err := os.MkdirTemp(filepath.Join(cluster, "etc"), "trust")
	if err == nil {
		err = os.Chmod(base, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	dir := copied(t, base+"/bin", 0o755, built(t, "bin/sigmatrace"))
	site(t, "command="+dir+"/sigmatrace")
	j := newJob(t)
	id := j.submit([]string{"--sigmatrace=full", "--hold"}, printProfile, "echo ran")
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	j.ok("scontrol", "release", id)
	j.ended(id)
	if out := j.read("out"); profileIn(out) != "" || !strings.Contains(out, "ran\n") {
		t.Errorf("the script printed\n%s", out)
	}
	if got := j.runs(); len(got) > 0 {
		t.Errorf("runs %v", got)
	}
}
