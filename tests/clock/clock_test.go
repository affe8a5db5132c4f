//go:build clock

// Package clock tests `sigmatrace calibrate` and `sigmatrace-clockd` beside real daemons: ptp4l, chronyd and ntpd of Debian, in network namespaces and
// without the right to set this machine's clock. All daemons read one clock, so every true offset is known.
package clock

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

// harmless makes a command that, with all that it starts, has lost the right to set clocks.
func harmless(argv ...string) []string {
	return append([]string{"setpriv", "--bounding-set=-sys_time", "--inh-caps=-sys_time", "--"}, argv...)
}

func built(t *testing.T, path string) string {
	t.Helper()
	p, err := filepath.Abs(filepath.Join("../../build", path))
	if err == nil {
		_, err = os.Stat(p)
	}
	if err != nil {
		t.Fatalf("not built (run `make tests` and tests/clock/build.sh): %v", err)
	}
	return p
}

func daemon(t *testing.T, name string) string { return built(t, "clock/usr/sbin/"+name) }

// host is a network namespace.
type host struct {
	t   *testing.T
	pid string
}

func newHost(t *testing.T) *host {
	t.Helper()
	argv := harmless("unshare", "-n", "sh", "-c", "ip link set lo up && echo up && exec sleep 600")
	cmd := exec.Command(argv[0], argv[1:]...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if _, err := out.Read(make([]byte, 3)); err != nil {
		t.Fatalf("making a network namespace: %v", err)
	}
	return &host{t, strconv.Itoa(cmd.Process.Pid)}
}

func (h *host) line(argv ...string) []string {
	return harmless(append([]string{"nsenter", "-t", h.pid, "-n", "--"}, argv...)...)
}

// run runs a command and returns what it printed.
func (h *host) run(argv ...string) string {
	h.t.Helper()
	line := h.line(argv...)
	out, err := exec.Command(line[0], line[1:]...).Output()
	if err != nil {
		h.t.Fatalf("%q: %v\n%s", argv, err, out)
	}
	return string(out)
}

// start starts a daemon, for as long as the test runs. Its output is shown where the test fails.
func (h *host) start(argv ...string) *os.Process {
	h.t.Helper()
	line := h.line(argv...)
	cmd := exec.Command(line[0], line[1:]...)
	log, err := os.Create(filepath.Join(h.t.TempDir(), "log"))
	if err != nil {
		h.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if text, err := os.ReadFile(log.Name()); err == nil && h.t.Failed() {
			h.t.Logf("%s:\n%s", filepath.Base(argv[0]), text)
		}
	})
	return cmd.Process
}

// calibrate makes a record, by the command as a user would run it.
func (h *host) calibrate(args ...string) *calibration.Record {
	h.t.Helper()
	return h.as(nil, args...)
}

func (h *host) as(before []string, args ...string) *calibration.Record {
	h.t.Helper()
	argv := append(append(before, built(h.t, "bin/sigmatrace"), "calibrate", "--json"), args...)
	r, err := calibration.Parse([]byte(h.run(argv...)))
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

// answered makes a record as such a user (nil: as this one), and makes it anew where a daemon has not answered in time: calibrate and daemons may have to wait for
// a processor for longer than an answer may take.
func (h *host) answered(before []string, args ...string) *calibration.Record {
	h.t.Helper()
	late := func(u calibration.Unread) bool { return u.Why == "no answer in time" }
	r := h.as(before, args...)
	for end := time.Now().Add(30 * time.Second); slices.ContainsFunc(r.Unread, late) && time.Now().Before(end); r = h.as(before, args...) {
		time.Sleep(200 * time.Millisecond)
	}
	return r
}

// eventually makes records until one is as wanted.
func (h *host) eventually(wanted func(*calibration.Record) bool, args ...string) *calibration.Record {
	h.t.Helper()
	var r *calibration.Record
	for end := time.Now().Add(120 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if r = h.calibrate(args...); wanted(r) {
			return r
		}
	}
	text, _ := r.Line()
	h.t.Fatalf("it never came: %s", text)
	return nil
}

// wire connects two hosts.
func wire(a, b *host) {
	a.t.Helper()
	a.run("ip", "link", "add", "va", "type", "veth", "peer", "name", "vb", "netns", b.pid)
	for _, end := range []struct {
		h             *host
		name, address string
	}{{a, "va", "10.8.0.1/24"}, {b, "vb", "10.8.0.2/24"}} {
		end.h.run("ip", "addr", "add", end.address, "dev", end.name)
		end.h.run("ip", "link", "set", end.name, "up")
	}
}

// off checks that the record's offset is so much, within the bound that it gives itself, and that this says what it is made of.
func off(t *testing.T, r *calibration.Record, truth time.Duration, made string) {
	t.Helper()
	if r.OffsetNS == nil || r.ErrorNS == nil {
		t.Errorf("no bound: %s", r.How)
		return
	}
	t.Logf("%d ns +- %d ns, true %d: %s", *r.OffsetNS, *r.ErrorNS, truth.Nanoseconds(), r.How)
	if wrong := time.Duration(*r.OffsetNS) - truth; wrong.Abs() > time.Duration(*r.ErrorNS) {
		t.Errorf("off by %v from %v, the bound is %v", wrong, truth, time.Duration(*r.ErrorNS))
	}
	if *r.ErrorNS == 0 || !strings.Contains(r.How, made) {
		t.Errorf("bound of %d ns: %s", *r.ErrorNS, r.How)
	}
}

func why(r *calibration.Record, what string) string {
	for _, u := range r.Unread {
		if u.What == what {
			return u.Why
		}
	}
	return ""
}

// nobody is a user who owns nothing.
var nobody = []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"}

func write(t *testing.T, path string, lines ...string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// Without a daemon the source is the plain system clock, whose error nobody knows: null, and why.
func TestNoDaemon(t *testing.T) {
	h := newHost(t)
	for _, before := range [][]string{nil, nobody} {
		r := h.answered(before, "--ptp-socket", filepath.Join(t.TempDir(), "none"))
		if r.Source != calibration.System || r.OffsetNS != nil || r.ErrorNS != nil || !strings.HasPrefix(r.How, "not known: ") || len(r.Problems) > 0 {
			t.Errorf("%+v", r)
		}
		if why(r, "chronyd") != "nobody listens" || why(r, "ntpd") != "nobody listens" || why(r, "ptp4l") == "" {
			t.Errorf("unread %+v", r.Unread)
		}
		if r.Clocksource.Current == "" || r.Kernel == nil || r.Reading.After <= r.Reading.Before {
			t.Errorf("%+v", r)
		}
	}
}

// What the kernel and processor say is what they say elsewhere.
func TestCounterAndKernel(t *testing.T) {
	r := newHost(t).calibrate()
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		t.Fatal(err)
	}
	has := func(flag string) bool { return strings.Contains(string(text), " "+flag+" ") }
	if r.TSC == nil || r.TSC.Constant != has("constant_tsc") || r.TSC.Nonstop != has("nonstop_tsc") || r.TSC.KnownFreq != has("tsc_known_freq") {
		t.Errorf("%+v", r.TSC)
	}
	current, err := os.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource")
	if err != nil || strings.TrimSpace(string(current)) != r.Clocksource.Current {
		t.Errorf("clocksource %q, %v; want %q", r.Clocksource.Current, err, current)
	}
	if now := time.Now().UnixNano(); r.Reading.Realtime > now || now-r.Reading.Realtime > int64(time.Minute) {
		t.Errorf("read at %d, it is %d", r.Reading.Realtime, now)
	}
}

// A daemon that hangs costs no more than the limit, and is named.
func stopped(t *testing.T, h *host, process *os.Process, what string, args ...string) {
	t.Helper()
	if err := process.Signal(unix.SIGSTOP); err != nil { // nsenter and setpriv have become the daemon
		t.Fatal(err)
	}
	if r := h.calibrate(args...); why(r, what) != "no answer in time" || r.Source != calibration.System {
		t.Errorf("source %s, unread %+v", r.Source, r.Unread)
	}
}
