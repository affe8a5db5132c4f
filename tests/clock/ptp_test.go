//go:build clock

package clock

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

// servo starts ptp4l and returns its socket.
func (h *host) servo(t *testing.T, nic string, args ...string) (socket string, process *os.Process) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "ptp4l")
	process = h.start(append([]string{daemon(t, "ptp4l"), "-S", "-i", nic, "-m", "--free_running", "1", "--logSyncInterval", "-3", "--logMinDelayReqInterval", "-3",
		"--logAnnounceInterval", "-1", "--uds_address", socket}, args...)...)
	return socket, process
}

// management asks ptp4l by linuxptp's own program.
func (h *host) management(t *testing.T, socket, dataSet, field string, args ...string) string {
	t.Helper()
	out := h.run(append(append([]string{built(t, "clock/usr/sbin/pmc"), "-u", "-b", "0", "-s", socket}, args...), "GET "+dataSet)...)
	found := regexp.MustCompile(`(?m)^\s+` + field + ` +(\S+)`).FindStringSubmatch(out)
	if found == nil {
		t.Fatalf("%s has no %s:\n%s", dataSet, field, out)
	}
	return found[1]
}

func measures(r *calibration.Record) bool {
	return r.PTP != nil && r.PTP.MeanPathDelay > 0 && r.PTP.Samples > 1 && r.ErrorNS != nil
}

// A master and one that follows it, both by either way to measure delays, on one clock: they are not apart.
func TestPTP(t *testing.T) {
	for mechanism, option := range map[string]string{"E2E": "-E", "P2P": "-P"} {
		t.Run(mechanism, func(t *testing.T) {
			a, b := newHost(t), newHost(t)
			wire(a, b)
			up, _ := a.servo(t, "va", option, "--priority1", "10")
			down, _ := b.servo(t, "vb", option, "-s", "--announceReceiptTimeout", "255") // it follows on where the master stands still for a while
			r := b.eventually(measures, "--ptp-socket", down)
			off(t, r, 0, "asymmetry")
			p := r.PTP
			for field, c := range map[string][2]string{
				"grandmasterIdentity": {"PARENT_DATA_SET", p.Grandmaster}, "portState": {"PORT_DATA_SET", p.PortState}, "clockIdentity": {"DEFAULT_DATA_SET", p.Own},
				"timestamping": {"PORT_PROPERTIES_NP", strings.ToUpper(p.Timestamping)}, "interface": {"PORT_PROPERTIES_NP", p.Interface},
				"gmIdentity": {"TIME_STATUS_NP", p.Grandmaster},
			} {
				if want := b.management(t, down, c[0], field); c[1] != want {
					t.Errorf("%s %q, pmc says %q", field, c[1], want)
				}
			}
			if p.StepsRemoved != 1 || p.DelayMechanism != mechanism || p.SyncIntervalNS != 125_000_000 || p.Servo != "not locked" || p.PHC2SYS != nil ||
				p.AgeNS == nil || *p.AgeNS <= 0 || !r.Has(calibration.FreeRunning) || r.Source != calibration.PTP {
				t.Errorf("%+v, problems %v", p, r.Problems)
			}
			r = a.answered(nil, "--ptp-socket", up)
			if r.Source != calibration.PTP || r.PTP.PortState != "MASTER" || r.PTP.Servo != "none" || r.PTP.Own != p.Grandmaster || r.OffsetNS == nil || *r.OffsetNS != 0 ||
				len(r.Problems) > 0 {
				t.Errorf("master: %+v, %+v", r, r.PTP)
			}
			r = b.as(nobody, "--ptp-socket", down)
			if why(r, "ptp4l") != "permission denied" || r.Source != calibration.System {
				t.Errorf("as a user: source %s, unread %+v", r.Source, r.Unread)
			}
		})
	}
}

// ptp4l without a master, in another domain, and stopped.
func TestPTPWithoutAnAnswer(t *testing.T) {
	a, b := newHost(t), newHost(t)
	wire(a, b)
	socket := filepath.Join(t.TempDir(), "ptp4l")
	process := b.start(daemon(t, "ptp4l"), "-S", "-s", "-i", "vb", "-m", "--free_running", "1", "--domainNumber", "7", "--uds_address", socket)
	r := b.eventually(func(r *calibration.Record) bool { return r.PTP != nil && r.PTP.PortState == "LISTENING" }, "--ptp-socket", socket, "--ptp-domain", "7")
	if r.Source != calibration.System || r.OffsetNS != nil || !r.Has(calibration.Unsynchronised) {
		t.Errorf("without a master: %+v", r)
	}
	if r := b.calibrate("--ptp-socket", socket); why(r, "ptp4l") != "no answer in time" || r.PTP != nil {
		t.Errorf("in another domain: %+v", r)
	}
	stopped(t, b, process, "ptp4l", "--ptp-socket", socket, "--ptp-domain", "7")
}

// A master that falls silent without ptp4l having noticed: what was measured is old, and no bound is given for it.
func TestPTPStale(t *testing.T) {
	a, b := newHost(t), newHost(t)
	wire(a, b)
	_, master := a.servo(t, "va", "--priority1", "10")
	socket, _ := b.servo(t, "vb", "-s", "--announceReceiptTimeout", "255")
	b.eventually(measures, "--ptp-socket", socket)
	master.Signal(unix.SIGSTOP)
	r := b.eventually(func(r *calibration.Record) bool { return r.Has(calibration.Stale) }, "--ptp-socket", socket)
	if r.Source != calibration.PTP || r.OffsetNS != nil || r.ErrorNS != nil || !strings.Contains(r.How, "old") {
		t.Errorf("%+v: %s", r.PTP, r.How)
	}
}
