package calibrate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/facebook/time/ntp/chrony"
	"golang.org/x/sys/unix"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

const (
	daemonLimit = 300 * time.Millisecond // for an answer of a daemon on this host
	oldUpdate   = 8                      // so many update intervals without one, and what is known is stale
	leastUpdate = 64 * time.Second
)

// leaps are the daemons' words for what they say of leap seconds, of which the last is that they follow nobody.
var leaps = []string{"normal", "insert", "delete", "unsynchronised"}

// chrony asks chronyd for its tracking data. It returns whether the system clock follows chronyd.
func (t *taking) chrony(ctx context.Context) bool {
	tracking, err := t.askChrony(ctx)
	if err != nil {
		t.unread("chronyd", err)
		return false
	}
	r := t.record
	r.Source = calibration.Chrony
	update, skew, jitter := seconds(tracking.LastUpdateInterval), tracking.SkewPPM, seconds(tracking.RMSOffset)
	r.Tracking = &calibration.Tracking{Reference: chrony.RefidToString(tracking.RefID), Stratum: int(tracking.Stratum), Leap: leaps[min(int(tracking.LeapStatus), 3)],
		// chronyd's sign is that of the correction to come.
		SystemOffsetNS: -seconds(tracking.CurrentCorrection), RootDelayNS: seconds(tracking.RootDelay), RootDispersion: seconds(tracking.RootDispersion),
		FrequencyPPM: tracking.FreqPPM, SkewPPM: &skew, JitterNS: &jitter}
	if len(tracking.IPAddr) > 0 && !tracking.IPAddr.IsUnspecified() {
		r.Tracking.Reference = tracking.IPAddr.String()
	}
	if tracking.RefTime.Unix() > 0 {
		age := time.Now().UnixNano() - r.Tracking.SystemOffsetNS - tracking.RefTime.UnixNano() // which is of the source's time
		r.Tracking.AgeNS = &age
	}
	t.tracked("chronyd", time.Duration(update))
	return true
}

// tracked makes offset and bound of what an NTP daemon says.
func (t *taking) tracked(daemon string, update time.Duration) {
	r := t.record.Tracking
	if r.Leap == "unsynchronised" {
		t.problem(calibration.Unsynchronised, "system", daemon+" follows no source")
		t.unknown(daemon + " follows no source")
		return
	}
	if t.unsteered() {
		t.problem(calibration.FreeRunning, "system", daemon+" follows "+r.Reference+", but nobody tells the kernel how exact its clock is: it is not steered")
	}
	if r.AgeNS != nil && time.Duration(*r.AgeNS) > oldUpdate*max(update, leastUpdate) {
		t.problem(calibration.Stale, "system", fmt.Sprintf("%s's last update was %v ago", daemon, time.Duration(*r.AgeNS).Round(time.Second)))
	}
	t.bound(r.SystemOffsetNS, r.RootDelayNS/2+r.RootDispersion, fmt.Sprintf("root delay / 2 of %d ns (path asymmetry is at most that) + root dispersion of %d ns, as %s tells them",
		r.RootDelayNS/2, r.RootDispersion, daemon))
}

// askChrony goes to the command port, where everybody on the host may ask, and, where that is closed, to the socket, for which one has to be root.
func (t *taking) askChrony(ctx context.Context) (*chrony.Tracking, error) {
	until := left(ctx, daemonLimit)
	conn, err := (&net.Dialer{Deadline: until}).DialContext(ctx, "udp", t.o.ChronyUDP)
	if err == nil {
		defer conn.Close()
		conn.SetDeadline(until)
		var tracking *chrony.Tracking
		if tracking, err = trackingOf(conn); err == nil {
			return tracking, nil
		}
	}
	if _, missing := os.Stat(t.o.ChronySocket); missing != nil {
		if errors.Is(missing, os.ErrPermission) {
			return nil, fmt.Errorf("%s: %w", t.o.ChronySocket, missing)
		}
		return nil, err
	}
	until = left(ctx, daemonLimit)
	// chronyd answers to the path of who asks, and has no privileges to do so.
	own := filepath.Join(filepath.Dir(t.o.ChronySocket), fmt.Sprintf("sigmatrace.%d.sock", os.Getpid()))
	mask := unix.Umask(0)
	socket, err := net.DialUnix("unixgram", &net.UnixAddr{Name: own, Net: "unixgram"}, &net.UnixAddr{Name: t.o.ChronySocket, Net: "unixgram"})
	unix.Umask(mask)
	if err != nil {
		return nil, err
	}
	defer os.Remove(own)
	defer socket.Close()
	socket.SetDeadline(until)
	return trackingOf(socket)
}

func trackingOf(conn net.Conn) (*chrony.Tracking, error) {
	answer, err := (&chrony.Client{Connection: conn}).Communicate(chrony.NewTrackingPacket())
	if err != nil {
		return nil, err
	}
	tracking, is := answer.(*chrony.ReplyTracking)
	if !is {
		return nil, fmt.Errorf("chronyd's answer is a %T", answer)
	}
	return &tracking.Tracking, nil
}

// seconds turns a daemon's number into nanoseconds; what is no number of them is as large as can be.
func seconds(s float64) int64 {
	ns := s * 1e9
	switch {
	case math.IsNaN(ns), ns > math.MaxInt64/4:
		return math.MaxInt64 / 4
	case ns < -math.MaxInt64/4:
		return -math.MaxInt64 / 4
	}
	return int64(math.Round(ns))
}
