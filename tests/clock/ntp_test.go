//go:build clock

package clock

import (
	"encoding/csv"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

// server starts chronyd as a server of the clock itself, at a port.
func (h *host) server(t *testing.T, port string) {
	t.Helper()
	dir := t.TempDir()
	h.start(daemon(t, "chronyd"), "-x", "-d", "-u", "root", "-f", write(t, filepath.Join(dir, "conf"), "local stratum 1", "port "+port, "allow all", "cmdport 0",
		"bindcmdaddress /", "pidfile "+filepath.Join(dir, "pid")))
}

// chrony starts chronyd, which follows that server and takes it to be ahead by so much. It serves the time that it makes of it. Its socket is returned.
func (h *host) chrony(t *testing.T, server, ahead string, lines ...string) (socket string, process *os.Process) {
	t.Helper()
	dir := t.TempDir()
	sockets := filepath.Join(dir, "sockets")
	if err := os.Mkdir(sockets, 0o770); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(sockets, 0o770); err != nil { // or chronyd refuses it
		t.Fatal(err)
	}
	socket = filepath.Join(sockets, "chronyd.sock")
	process = h.start(daemon(t, "chronyd"), "-x", "-d", "-u", "root", "-f", write(t, filepath.Join(dir, "conf"), append(lines, "server "+server+" iburst minpoll -4 maxpoll -2 offset "+ahead,
		"allow all", "bindcmdaddress "+socket, "pidfile "+filepath.Join(dir, "pid"))...))
	return socket, process
}

func follows(r *calibration.Record) bool { return r.Tracking != nil && r.Tracking.Leap == "normal" }

// chronyd's words, at its port by everybody, and at its socket by root where the port is closed.
func TestChrony(t *testing.T) {
	h := newHost(t)
	h.server(t, "11123")
	for _, c := range []struct {
		ahead string
		truth time.Duration
		lines []string
	}{
		{"0.25", -250 * time.Millisecond, nil},
		{"-2", 2 * time.Second, []string{"cmdport 0"}},
	} {
		t.Run(c.ahead, func(t *testing.T) {
			socket, process := h.chrony(t, "127.0.0.1 port 11123", c.ahead, append(c.lines, "port 123")...)
			r := h.eventually(follows, "--chrony-socket", socket)
			off(t, r, c.truth, "asymmetry")
			// "fast of NTP time" is what the system clock is ahead.
			words := strings.Fields(strings.TrimSpace(h.run("sh", "-c", built(t, "clock/usr/bin/chronyc")+" -h "+socket+" tracking | sed -n 's/^System time *: //p'")))
			if fast := len(words) > 2 && words[2] == "fast"; fast != (*r.OffsetNS > 0) {
				t.Errorf("offset %d, chronyc says %q", *r.OffsetNS, words)
			}
			fields, err := csv.NewReader(strings.NewReader(h.run(built(t, "clock/usr/bin/chronyc"), "-h", socket, "-c", "tracking"))).Read()
			if err != nil || len(fields) != 14 {
				t.Fatalf("%q, %v", fields, err)
			}
			tracking := r.Tracking
			if tracking.Reference != fields[1] || strconv.Itoa(tracking.Stratum) != fields[2] {
				t.Errorf("follows %s at stratum %d, chronyc says %s and %s", tracking.Reference, tracking.Stratum, fields[1], fields[2])
			}
			// It has asked its server a few times in between.
			if delay, err := strconv.ParseFloat(fields[10], 64); err != nil || math.Abs(math.Log(delay*1e9/float64(tracking.RootDelayNS))) > math.Log(100) {
				t.Errorf("root delay %d ns, chronyc says %s s", tracking.RootDelayNS, fields[10])
			}
			if r.Source != calibration.Chrony || !r.Has(calibration.FreeRunning) || r.Kernel.Synchronised || tracking.AgeNS == nil || *tracking.AgeNS < 0 || *tracking.AgeNS > int64(10*time.Second) {
				t.Errorf("%+v, %+v, problems %v", r, tracking, r.Problems)
			}
			if left, err := filepath.Glob(filepath.Join(filepath.Dir(socket), "sigmatrace*")); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
			r = h.answered(nobody, "--chrony-socket", socket)
			if len(c.lines) == 0 && r.Source != calibration.Chrony || len(c.lines) > 0 && why(r, "chronyd") != "permission denied" {
				t.Errorf("as a user: source %s, unread %+v", r.Source, r.Unread)
			}
			stopped(t, h, process, "chronyd", "--chrony-socket", socket)
			process.Kill()
			process.Wait()
		})
	}
}

func TestChronyThatFollowsNobody(t *testing.T) {
	h := newHost(t)
	h.chrony(t, "127.0.0.1 port 9", "0", "port 0")
	r := h.eventually(func(r *calibration.Record) bool { return r.Source == calibration.Chrony })
	if r.OffsetNS != nil || r.ErrorNS != nil || !r.Has(calibration.Unsynchronised) || r.Tracking.Leap != "unsynchronised" {
		t.Errorf("%+v, %+v", r, r.Tracking)
	}
}

// ntpd, behind a server whose clock is ahead by 50 ms. It may not steer, and says less surely than chronyd what it knows.
func TestNTP(t *testing.T) {
	a, b := newHost(t), newHost(t)
	wire(a, b)
	dir := t.TempDir()
	process := b.start(daemon(t, "ntpd"), "-n", "-g", "-c", write(t, filepath.Join(dir, "conf"), "server 10.8.0.1 iburst minpoll 3 maxpoll 3", "restrict 127.0.0.1",
		"driftfile "+filepath.Join(dir, "drift")))
	r := b.eventually(func(r *calibration.Record) bool { return r.Source == calibration.NTP })
	if r.OffsetNS != nil || !r.Has(calibration.Unsynchronised) {
		t.Errorf("before it has a source: %+v", r)
	}
	a.server(t, "11123") // only now, that there was no source until then
	a.chrony(t, "127.0.0.1 port 11123", "0.05", "port 123", "cmdport 0")
	r = b.eventually(follows)
	off(t, r, -50*time.Millisecond, "asymmetry")
	if r.Source != calibration.NTP || r.Tracking.Reference != "10.8.0.1" || r.Tracking.Stratum != 3 || !r.Has(calibration.FreeRunning) || r.Tracking.AgeNS == nil {
		t.Errorf("%+v, %+v", r, r.Tracking)
	}
	stopped(t, b, process, "ntpd")
}
