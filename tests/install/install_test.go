// Package install tests scripts/install: what it puts where, that it takes exactly that away again, and what it does when it cannot go on.
package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sigmatrace/sigmatrace/tests/needs"
)

const top = "../.."

// script runs scripts/install of a tree, with an environment of its own.
func script(t *testing.T, tree string, environ []string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.Command(filepath.Join(tree, "scripts/install"), args...)
	return output(t, cmd, environ)
}

func output(t *testing.T, cmd *exec.Cmd, environ []string) (string, int) {
	t.Helper()
	cmd.Env = append(os.Environ(), environ...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func must(t *testing.T, tree string, environ []string, args ...string) string {
	t.Helper()
	out, status := script(t, tree, environ, args...)
	if status != 0 {
		t.Fatalf("scripts/install %v: status %d\n%s", args, status, out)
	}
	return out
}

// files are the paths below a folder, with mode and, for files, content.
func files(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := ""
		if d.Type().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text = string(b)
		}
		rel, _ := filepath.Rel(root, path)
		all[rel] = info.Mode().String() + " " + text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func same(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	for path := range want {
		if _, there := got[path]; !there {
			t.Errorf("%s: %s is missing", what, path)
		} else if got[path] != want[path] {
			t.Errorf("%s: %s differs", what, path)
		}
	}
	for path := range got {
		if _, there := want[path]; !there {
			t.Errorf("%s: %s is new", what, path)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// staged is a root to install below by DESTDIR, with folders as on Debian and a file of somebody else's in each that is used.
func staged(t *testing.T) (root string, environ []string) {
	t.Helper()
	needs.Built(t, "bin/sigmatrace")
	root = t.TempDir()
	write(t, filepath.Join(root, "etc/slurm/plugstack.conf"), "include /etc/slurm/plugstack.conf.d/*.conf\n")
	write(t, filepath.Join(root, "etc/slurm/plugstack.conf.d/other.conf"), "# another plugin's\n")
	write(t, filepath.Join(root, "opt/s/bin/other"), "another program\n")
	write(t, filepath.Join(root, "opt/s/lib/slurm/other.so"), "another plugin\n")
	return root, []string{"DESTDIR=" + root}
}

// plugin is the name of the Slurm plugin as it is installed, by what the headers say of themselves.
func plugin(t *testing.T) string {
	t.Helper()
	text := "#include <slurm/slurm_version.h>\n#include <stdio.h>\nint main(void) { printf(\"%02d.%02d\", SLURM_VERSION_NUMBER >> 16, SLURM_VERSION_NUMBER >> 8 & 255); }\n"
	dir := t.TempDir()
	write(t, filepath.Join(dir, "v.c"), text)
	if out, err := exec.Command("gcc", "-o", dir+"/v", dir+"/v.c").CombinedOutput(); err != nil {
		t.Fatalf("libslurm-dev: %v\n%s", err, out)
	}
	out, err := exec.Command(dir + "/v").Output()
	if err != nil {
		t.Fatal(err)
	}
	return "spank_sigmatrace-" + string(out) + ".so"
}

func TestInstalledFilesAreThoseBuilt(t *testing.T) {
	root, environ := staged(t)
	must(t, top, environ, "--prefix=/opt/s", "--plugstack")
	got := files(t, root)
	built, err := filepath.Glob(filepath.Join(top, "build/lib/sigmatrace/*.so"))
	if err != nil || len(built) == 0 {
		t.Fatal(built, err)
	}
	pairs := map[string]string{"opt/s/bin/sigmatrace": "build/bin/sigmatrace", "opt/s/lib/slurm/" + plugin(t): "build/lib/slurm/spank_sigmatrace.so",
		"opt/s/include/sigmatrace.h": "preload/sigmatrace.h"}
	for _, path := range built {
		pairs["opt/s/lib/sigmatrace/"+filepath.Base(path)] = "build/lib/sigmatrace/" + filepath.Base(path)
	}
	for to, from := range pairs {
		want, err := os.ReadFile(filepath.Join(top, from))
		if err != nil {
			t.Fatal(err)
		}
		mode := "-rw-r--r-- "
		if strings.Contains(to, "/bin/") {
			mode = "-rwxr-xr-x "
		}
		if got[to] != mode+string(want) {
			t.Errorf("%s is not %s, or its mode is not %s", to, from, mode)
		}
	}
	if !strings.HasPrefix(got["etc/sigmatrace/profiles"], "drwxr-xr-x") {
		t.Error("the site has no folder for its profiles")
	}
	line := "optional /opt/s/lib/slurm/" + plugin(t) + " command=/opt/s/bin/sigmatrace libdir=/opt/s/lib/sigmatrace\n"
	for _, path := range []string{"etc/slurm/plugstack.conf.d/sigmatrace.conf", "opt/s/share/sigmatrace/plugstack.conf"} {
		if !strings.Contains(got[path], "\n"+line) || strings.Contains(got[path], "@") {
			t.Errorf("%s is %q", path, got[path])
		}
	}
}

func TestInstallWithoutPlugstackTouchesNoConfiguration(t *testing.T) {
	root, environ := staged(t)
	tree := copied(t)
	before := files(t, filepath.Join(root, "etc/slurm"))
	const off = "Slurm does not load the plugin yet: --plugstack writes the line"
	out, status := script(t, tree, environ, "--prefix=/opt/s")
	if status != 0 || !strings.Contains(out, off) {
		t.Errorf("status %d\n%s", status, out)
	}
	same(t, "etc/slurm", files(t, filepath.Join(root, "etc/slurm")), before)
	out, status = script(t, tree, environ, "--prefix=/opt/s", "--plugstack")
	if status != 0 || !strings.Contains(out, "the line that loads the plugin is in "+root+"/etc/slurm/plugstack.conf.d/sigmatrace.conf\n") {
		t.Errorf("with --plugstack: status %d\n%s", status, out)
	}
	if out, status = script(t, tree, environ, "--prefix=/opt/s"); status != 0 || strings.Contains(out, off) {
		t.Errorf("once it is there: status %d\n%s", status, out)
	}
}

func TestInstallTwiceIsInstallOnce(t *testing.T) {
	needs.Time(t)
	root, environ := staged(t)
	cmd := exec.Command("make", "-s", "-C", top, "install", "PREFIX=/opt/s", "DESTDIR="+root)
	if out, status := output(t, cmd, nil); status != 0 {
		t.Fatalf("make install: status %d\n%s", status, out)
	}
	must(t, top, environ, "--prefix=/opt/s", "--plugstack")
	before := files(t, root)
	must(t, top, environ, "--prefix", "/opt/s/", "--plugstack")
	same(t, "second installation", files(t, root), before)
}

func TestUninstallRemovesWhatWasInstalledAndNothingElse(t *testing.T) {
	root, environ := staged(t)
	tree := copied(t)
	before := files(t, root)
	must(t, tree, environ, "--prefix=/opt/s", "--plugstack")
	must(t, tree, environ, "--prefix=/opt/s", "--uninstall")
	same(t, "after uninstall", files(t, root), before)

	if out, status := script(t, tree, environ, "--prefix=/opt/s", "--uninstall"); status != 1 || !strings.Contains(out, "nothing is installed in") {
		t.Errorf("a second uninstall: status %d\n%s", status, out)
	}
}

func TestUninstallAndUpgradeKeepWhatTheSiteChanged(t *testing.T) {
	needs.Time(t)
	root, environ := staged(t)
	tree := copied(t)
	snippet := filepath.Join(root, "etc/slurm/plugstack.conf.d/sigmatrace.conf")
	must(t, tree, environ, "--prefix=/opt/s", "--plugstack")
	write(t, snippet, "# the site's own\n")
	write(t, filepath.Join(root, "etc/sigmatrace/profiles/site.toml"), "mode = \"full\"\n")
	for _, args := range [][]string{{"--prefix=/opt/s", "--plugstack"}, {"--prefix=/opt/s"}, {"--prefix=/opt/s", "--uninstall"}} {
		out := must(t, tree, environ, args...)
		if len(args) == 1 == strings.Contains(out, "sigmatrace.conf") {
			t.Errorf("%v said:\n%s", args, out)
		}
		if text, err := os.ReadFile(snippet); err != nil || string(text) != "# the site's own\n" {
			t.Fatalf("%v: %q, %v", args, text, err)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "etc/sigmatrace/profiles/site.toml")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(root, "opt/s/bin/sigmatrace")); err == nil {
		t.Error("the command is still there")
	}
}

// A process that has an old file mapped must keep it as it was.
func TestUpgradeReplacesFilesByRename(t *testing.T) {
	root, environ := staged(t)
	tree := copied(t)
	must(t, tree, environ, "--prefix=/opt/s")
	lib := filepath.Join(root, "opt/s/lib/sigmatrace/libsigmatrace.so")
	stale, gone := filepath.Join(root, "opt/s/lib/sigmatrace/provider-old.so"), filepath.Join(root, "opt/s/share/doc/sigmatrace/OLD.md")
	receipt := filepath.Join(root, "opt/s/share/sigmatrace/installed")
	list, err := os.ReadFile(receipt)
	if err != nil {
		t.Fatal(err)
	}
	// As an earlier version would have left it: other bytes, a library and a page that this version does not have.
	write(t, lib, "old")
	write(t, stale, "old")
	write(t, gone, "old")
	sum, _ := output(t, exec.Command("sh", "-c", "printf old | sha256sum | cut -d' ' -f1"), nil)
	for _, path := range []string{"lib/sigmatrace/provider-old.so", "share/doc/sigmatrace/OLD.md"} {
		list = append(list, fmt.Sprintf("file %s /opt/s/%s\n", strings.TrimSpace(sum), path)...)
	}
	write(t, receipt, string(list))
	mapped, err := os.Open(lib)
	if err != nil {
		t.Fatal(err)
	}
	defer mapped.Close()
	must(t, tree, environ, "--prefix=/opt/s")
	text := make([]byte, 10)
	if n, _ := mapped.Read(text); string(text[:n]) != "old" {
		t.Errorf("the file that was open has become %q", text[:n])
	}
	want, err := os.ReadFile(filepath.Join(tree, "build/lib/sigmatrace/libsigmatrace.so"))
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(lib); !bytes.Equal(got, want) {
		t.Error("the library is not the new one")
	}
	if _, err := os.Stat(stale); err != nil {
		t.Errorf("a library that running jobs may name is gone: %v", err)
	}
	if _, err := os.Stat(gone); err == nil {
		t.Error("a page of the earlier version is still there")
	}
	must(t, tree, environ, "--prefix=/opt/s", "--uninstall")
	if _, err := os.Stat(stale); err == nil {
		t.Error("uninstall left the earlier version's library")
	}
}

// copied is a copy of what the script needs, whose built files are a line each, and a test can change them.
func copied(t *testing.T) string {
	t.Helper()
	tree := t.TempDir()
	cmd := exec.Command("sh", "-c", `cp -r --parents scripts/install scripts/install.list spank/*.in spank/README.md profiles/README.md preload/sigmatrace.h merge/perfetto/sql *.md LICENSE "$0" &&
		find build/bin build/lib build/share -type f 2>/dev/null | while read -r f; do mkdir -p "$0/${f%/*}" && echo "$f" >"$0/$f"; done`, tree)
	cmd.Dir = top
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return tree
}

func TestWhatIsNotBuiltIsNotInstalled(t *testing.T) {
	root, environ := staged(t)
	before := files(t, root)
	for _, missing := range []string{"build/bin/sigmatrace", "build/lib/sigmatrace"} {
		tree := copied(t)
		if err := os.RemoveAll(filepath.Join(tree, missing)); err != nil {
			t.Fatal(err)
		}
		out, status := script(t, tree, environ, "--prefix=/opt/s")
		if status != 1 || !strings.Contains(out, missing) || !strings.Contains(out, "sigmatrace: hint: run make") {
			t.Errorf("without %s: status %d\n%s", missing, status, out)
		}
		same(t, "without "+missing, files(t, root), before)
	}
	tree := copied(t)
	if err := os.RemoveAll(filepath.Join(tree, "build/lib/slurm")); err != nil {
		t.Fatal(err)
	}
	if out, status := script(t, tree, environ, "--prefix=/opt/s", "--plugstack"); status != 1 || !strings.Contains(out, "plugin has not been built") {
		t.Errorf("--plugstack without the plugin: status %d\n%s", status, out)
	}
	same(t, "without the plugin", files(t, root), before)
	if out, status := script(t, tree, environ, "--prefix=/opt/s"); status != 0 || !strings.Contains(out, "without the Slurm plugin") {
		t.Errorf("without the plugin: status %d\n%s", status, out)
	}
}

func TestInstallThatFailsChangesNothing(t *testing.T) {
	needs.Time(t)
	if os.Getuid() != 0 {
		t.Skip("needs root, for a folder that another user cannot write")
	}
	root, environ := staged(t)
	tree := copied(t)
	must(t, tree, environ, "--prefix=/opt/s")
	for _, fresh := range []bool{true, false} { // the first installation, and an upgrade
		if fresh {
			must(t, tree, environ, "--prefix=/opt/s", "--uninstall")
		} else {
			must(t, tree, environ, "--prefix=/opt/s")
		}
		if out, err := exec.Command("sh", "-c", `chmod 755 "$(dirname "$0")" "$0" && chown -R 65534 "$0" && chown 0 "$0/opt/s/lib/slurm"`, root).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for dir := tree; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		before := files(t, root)
		cmd := exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", filepath.Join(tree, "scripts/install"), "--prefix=/opt/s")
		out, status := output(t, cmd, environ)
		if status == 0 || !strings.Contains(out, "Permission denied") {
			t.Errorf("status %d\n%s", status, out)
		}
		same(t, fmt.Sprintf("after a failure, first=%v", fresh), files(t, root), before)
	}
}

// Killed at any moment, it leaves what the next installation or uninstall takes along.
func TestInstallThatIsKilledLeavesNothingForGood(t *testing.T) {
	needs.Time(t)
	root, environ := staged(t)
	before := files(t, root)
	tree := copied(t)
	for _, at := range []string{"chmod", "sync", "mv"} {
		bin := t.TempDir()
		write(t, filepath.Join(bin, at), "#!/bin/sh\nn=$(cat \"$0.n\" 2>/dev/null || echo 0); echo $((n + 1)) >\"$0.n\"\nif [ $n = 3 ] || [ "+at+" = sync ]; then kill -9 $PPID; fi\nPATH=/usr/bin:/bin exec "+at+" \"$@\"\n")
		if err := os.Chmod(filepath.Join(bin, at), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(filepath.Join(tree, "scripts/install"), "--prefix=/opt/s")
		if out, status := output(t, cmd, append(environ, "PATH="+bin+":"+os.Getenv("PATH"))); status != -1 {
			t.Fatalf("was to be killed at %s, but ended with %d\n%s", at, status, out)
		}
		if out, status := script(t, tree, environ, "--prefix=/opt/s"); status != 0 {
			t.Fatalf("after a kill at %s: %d\n%s", at, status, out)
		}
		for path := range files(t, root) {
			if strings.Contains(path, ".new.") {
				t.Errorf("after a kill at %s and another installation: %s", at, path)
			}
		}
		if out, status := script(t, tree, environ, "--prefix=/opt/s", "--uninstall"); status != 0 {
			t.Fatalf("%d\n%s", status, out)
		}
		same(t, "after a kill at "+at, files(t, root), before)
	}
}

func TestOnlyOneInstallationAtATime(t *testing.T) {
	root, environ := staged(t)
	tree := copied(t)
	must(t, tree, environ, "--prefix=/opt/s")
	before := files(t, root)
	dir, err := os.Open(filepath.Join(root, "opt/s/share/sigmatrace"))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--prefix=/opt/s"}, {"--prefix=/opt/s", "--uninstall"}} {
		if out, status := script(t, tree, environ, args...); status != 1 || !strings.Contains(out, "another scripts/install is at work") {
			t.Errorf("%v: status %d\n%s", args, status, out)
		}
		same(t, "beside another", files(t, root), before)
	}
}

// A further file is one row of install.list at most; a unit starts what was installed with it.
func TestUnitsStartWhatIsInstalled(t *testing.T) {
	root, environ := staged(t)
	tree := copied(t)
	write(t, filepath.Join(tree, "launcher/any/any.service"), "[Service]\nExecStart=/usr/local/bin/sigmatrace --flag /a/b\nNice=10\n")
	if out, status := script(t, tree, environ, "--prefix=/opt/s"); status != 0 {
		t.Fatalf("status %d\n%s", status, out)
	}
	got, err := os.ReadFile(filepath.Join(root, "opt/s/lib/systemd/system/any.service"))
	if want := "[Service]\nExecStart=/opt/s/bin/sigmatrace --flag /a/b\nNice=10\n"; err != nil || string(got) != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

func TestPrefixesThatPathsCannotHave(t *testing.T) {
	needs.Built(t, "bin/sigmatrace")
	for _, prefix := range []string{"/opt/a b", "/opt/a:b", "/opt/a#b", "/opt/$ORIGIN"} {
		root := t.TempDir()
		out, status := script(t, top, []string{"DESTDIR=" + root}, "--prefix="+prefix)
		if status != 1 || !strings.Contains(out, prefix) {
			t.Errorf("%s: status %d\n%s", prefix, status, out)
		}
		if got := files(t, root); len(got) != 1 {
			t.Errorf("%s: %v", prefix, got)
		}
	}
}

// In a home, as a user without rights: the command finds its libraries from where it is, by a link too, and records a real program.
func TestInstalledCommandTraces(t *testing.T) {
	client := needs.Built(t, "tests/ucp-client")
	home := t.TempDir()
	prefix, link := filepath.Join(home, "sigma"), filepath.Join(home, "bin-link")
	environ := []string{"HOME=" + home}
	cmd := exec.Command(filepath.Join(top, "scripts/install"), "--prefix", prefix)
	if os.Getuid() == 0 {
		if err := os.Chmod(home, 0o777); err != nil {
			t.Fatal(err)
		}
		for dir := filepath.Dir(home); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	if out, status := output(t, cmd, environ); status != 0 {
		t.Fatalf("status %d\n%s", status, out)
	}
	if err := os.Symlink(filepath.Join(prefix, "bin/sigmatrace"), link); err != nil {
		t.Fatal(err)
	}
	for i, command := range []string{filepath.Join(prefix, "bin/sigmatrace"), link} {
		run := filepath.Join(home, fmt.Sprint("run", i))
		trace := exec.Command(command, "launch", "-o", run, "--", client, "-n", "4", "-o", "put,tag,am")
		if out, status := output(t, trace, append(environ, "SIGMATRACE_LIBDIR=")); status != 0 {
			t.Fatalf("status %d\n%s", status, out)
		}
		out, err := exec.Command(command, "info", "--json", run).Output()
		var info struct {
			Ranks struct{ Complete int }
		}
		if err != nil || json.Unmarshal(out, &info) != nil || info.Ranks.Complete == 0 || !strings.Contains(string(out), `"ucp"`) {
			t.Errorf("%s recorded nothing of UCP: %v\n%s", command, err, out)
		}
	}
}

// What the README shows works as it stands, but for where it goes.
func TestREADMEShowsWhatWorks(t *testing.T) {
	root, environ := staged(t)
	readme, err := os.ReadFile(filepath.Join(top, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(readme), "## Installing\n\n")
	section, _, ends := strings.Cut(section, "\n\n")
	var lines []string
	for line := range strings.Lines(section) {
		if strings.Contains(line, "scripts/install") {
			line, _, _ = strings.Cut(line, "#")
			lines = append(lines, strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "make && ")))
		}
	}
	if !found || !ends || len(lines) != 4 {
		t.Fatalf("README.md shows %q", lines)
	}
	before := files(t, root)
	for i, line := range lines {
		cmd := exec.Command("bash", "-c", line)
		cmd.Dir = top
		if out, status := output(t, cmd, append(environ, "HOME=/home/ann")); status != 0 {
			t.Fatalf("%s: status %d\n%s", line, status, out)
		}
		for path, want := range map[string]bool{"usr/local/bin/sigmatrace": i < 3, "home/ann/sigmatrace/bin/sigmatrace": i > 0, "etc/slurm/plugstack.conf.d/sigmatrace.conf": i == 2} {
			if _, err := os.Stat(filepath.Join(root, path)); (err == nil) != want {
				t.Errorf("after %s: %s: %v", line, path, err)
			}
		}
	}
	if err := os.RemoveAll(filepath.Join(root, "home")); err != nil {
		t.Fatal(err)
	}
	same(t, "after all of it", files(t, root), before)
}
