package e2e

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What launch promises to whoever puts it in front of a command.

// The command's status is the launch's, 128+n for a signal.
func TestStatus(t *testing.T) {
	for _, c := range []struct {
		argv []string
		want int
	}{
		{[]string{"true"}, 0},
		{[]string{"sh", "-c", "exit 7"}, 7},
		{[]string{"sh", "-c", "exit 255"}, 255},
		{[]string{"sh", "-c", "kill -TERM $$"}, 143},
		{[]string{"sh", "-c", "kill -KILL $$"}, 137},
		{[]string{"sh", "-c", "kill -SEGV $$"}, 139},
		{[]string{"no-such-command"}, 127},
		{[]string{"/etc/passwd"}, 126},
		{[]string{built(t, "tests/burst-client"), "-l", "ucp", "-f", "/no/such/folder/file"}, 1},
	} {
		t.Run(strings.ReplaceAll(strings.Join(c.argv, " "), "/", "_"), func(t *testing.T) {
			r := newRun(t, spec{mode: "full", providers: "ucx,ibverbs", noCount: true}).launch(c.argv...)
			if r.status != c.want {
				t.Errorf("launch ended with %d, want %d\n%s", r.status, c.want, r.stderr)
			}
		})
	}
}

// --require-complete: 3 where the command succeeded and its trace is not whole, else the command's own status.
// F27, F72: status 3, and the reason for each rank.
func TestRequireComplete(t *testing.T) {
	client, burst := built(t, "tests/ucp-client"), built(t, "tests/burst-client")
	// published has its size before the first request, and another number than 0 after it.
	killed := fmt.Sprintf(`%s -l ucp -f published -t 100 & until [ -s published ] && [ "$(tr -d '\0' <published | wc -c)" -gt 0 ]; do sleep 0.02; done; kill -9 $!; wait $!; exit `, burst)
	for name, c := range map[string]struct {
		options, argv []string
		want          int
	}{
		"whole":            {[]string{"--require-complete"}, []string{client, "-n", "3"}, 0},
		"killed":           {[]string{"--require-complete"}, []string{"bash", "-c", killed + "0"}, 3},
		"killed, failed":   {[]string{"--require-complete"}, []string{"bash", "-c", killed + "9"}, 9},
		"killed, accepted": {nil, []string{"bash", "-c", killed + "0"}, 0},
		"no room":          {[]string{"--require-complete", "--set", "record.budget=1MiB"}, []string{burst, "-l", "ucp", "-f", "published", "-n", "400000"}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRun(t, spec{mode: "full", providers: "ucx", noCount: true, options: c.options, env: []string{"UCX_TLS=self,posix,sysv"}}).launch(c.argv...)
			if r.status != c.want {
				t.Errorf("launch ended with %d, want %d\n%s", r.status, c.want, r.stderr)
			}
			i := r.info()
			if whole := len(i.Ranks.Incomplete) == 0; whole != (name == "whole") {
				t.Errorf("incomplete: %+v", i.Ranks.Incomplete)
			}
			if name == "no room" && (i.Lost.Events == 0 || !i.Exact || i.Operations["ucp"]["put"] != (tally{400000, 64 * 400000}) ||
				i.Events.ByName["ucp_put"]+i.Events.ByName["ucp_completion"]+i.Lost.Events < 400000) {
				t.Errorf("counts go on after the events have no room: %+v", i)
			}
		})
	}
}

// F20: a directory that exists is refused before the command runs, and stays as it is.
func TestExistingDirectory(t *testing.T) {
	r := newRun(t, spec{mode: "full", providers: "ucx", noCount: true})
	if err := os.Mkdir(r.path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.path, "mine"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, r.dir)
	r.launch("touch", filepath.Join(r.dir, "ran"))
	if r.status != 1 || !strings.Contains(r.stderr, "exists") {
		t.Errorf("launch ended with %d: %s", r.status, r.stderr)
	}
	same(t, "refused", before, snapshot(t, r.dir))
}

// Standard input, output and error of the command are its own, byte for byte; what launch says comes after it, on standard error.
func TestStreams(t *testing.T) {
	data := make([]byte, 300000)
	random := rand.NewChaCha8([32]byte{1})
	random.Read(data) //nolint:errcheck // it never fails
	r := newRun(t, spec{mode: "full", providers: "ucx,ibverbs", noCount: true})
	cmd := r.command("sh", "-c", "tee /dev/stderr")
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(data), &out, &errs
	if status := statusOf(t, cmd, cmd.Run()); status != 0 {
		t.Fatalf("launch ended with %d: %s", status, errs.Bytes()[max(0, errs.Len()-500):])
	}
	if !bytes.Equal(out.Bytes(), data) {
		t.Errorf("%d bytes of output, want those %d of the input", out.Len(), len(data))
	}
	if !bytes.HasPrefix(errs.Bytes(), data) || !bytes.Contains(errs.Bytes()[len(data):], []byte("sigmatrace: ")) {
		t.Errorf("standard error is not the command's %d bytes and then ours", len(data))
	}
	// A program that communicates prints what it prints untraced.
	argv := []string{built(t, "tests/ucp-client"), "-n", "4", "-o", "put,tag,am"}
	r = newRun(t, spec{mode: "full", providers: "ucx", noCount: true, env: transports["shm"]}).launch(argv...).succeed()
	plain := exec.Command(argv[0], argv[1:]...)
	plain.Env = append(os.Environ(), transports["shm"]...)
	want, _, status := execute(t, plain)
	if status != 0 || withoutPids(r.stdout) != withoutPids(want) {
		t.Errorf("output %s, untraced %s", r.stdout, want)
	}
}

// The environment that the program sees differs from an untraced one in LD_PRELOAD and SIGMATRACE_CONFIG only, and, where it has no tool for NVTX,
// in NVTX_INJECTION64_PATH; under mpirun too.
func TestEnvironment(t *testing.T) {
	parse := func(text string) map[string]string {
		env := map[string]string{}
		for _, v := range strings.Split(strings.TrimSuffix(text, "\x00"), "\x00") {
			name, value, _ := strings.Cut(v, "=")
			env[name] = value
		}
		return env
	}
	r := newRun(t, spec{mode: "full", providers: "ucx,ibverbs", noCount: true, env: []string{"ODD=a b\n\"c\" $HOME;é", "EMPTY="}})
	plainly := func(argv []string) string {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env, cmd.Dir = r.command("true").Env, r.dir
		out, errs, status := execute(t, cmd)
		if status != 0 {
			t.Fatalf("%v ended with %d: %s", argv, status, errs)
		}
		return out
	}
	argv := []string{"env", "-0"}
	want, got := parse(plainly(argv)), parse(r.launch(argv...).succeed().stdout)
	ours := []string{"LD_PRELOAD", "NVTX_INJECTION64_PATH", "SIGMATRACE_CONFIG"}
	for _, name := range ours {
		if got[name] == "" {
			t.Errorf("%s is not set", name)
		}
		delete(got, name)
	}
	if !maps.Equal(got, want) || len(want) < 5 {
		t.Errorf("environment %v, untraced %v", got, want)
	}
	if want["ODD"] == "" {
		t.Error("the test's own variable is missing")
	}

	// What Open MPI itself sets differs from job to job in value, but not in name.
	r = newRun(t, spec{mode: "full", providers: "ucx", noCount: true})
	line := r.mpirun(1, "env", "-0")
	names := func(env map[string]string) []string {
		return slices.DeleteFunc(slices.Sorted(maps.Keys(env)), func(n string) bool { return slices.Contains(ours, n) })
	}
	if got, want := names(parse(r.launch(line...).succeed().stdout)), names(parse(plainly(line))); !slices.Equal(got, want) {
		t.Errorf("variables of a rank: %v\nuntraced: %v", got, want)
	}
}
