// Package calibrate finds out how the clocks of this host stand: it reads the counter beside the system clock, the NICs' PTP hardware clocks, and
// asks whoever steers the system clock how far off it is. It only reads: no clock is ever set.
package calibrate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

// Options says whom to ask. Everything has a default but When and Tool.
type Options struct {
	When  calibration.When
	Tool  string        // name and version of who asks
	Limit time.Duration // for all of it

	PTPSockets   []string // ptp4l's, the first that answers
	PTPDomain    int
	ChronyUDP    string // chronyd's command port
	ChronySocket string // used where the port does not answer
	NTP          string // ntpd's port
	PHCs         string // pattern of the hardware clocks' devices
}

// Default returns where daemons are found unless told otherwise.
func Default() Options {
	return Options{Limit: 1500 * time.Millisecond, PTPSockets: []string{"/var/run/ptp4l", "/var/run/ptp4lro"}, ChronyUDP: "127.0.0.1:323",
		ChronySocket: "/run/chrony/chronyd.sock", NTP: "127.0.0.1:123", PHCs: "/dev/ptp[0-9]*"}
}

// taking is one record as it is made.
type taking struct {
	o      Options
	record *calibration.Record
}

func (t *taking) problem(name, clock, text string) {
	t.record.Problems = append(t.record.Problems, calibration.Problem{Name: name, Clock: clock, Text: text})
}

func (t *taking) unread(what string, why error) {
	text := why.Error()
	switch {
	case errors.Is(why, fs.ErrPermission):
		text = "permission denied"
	case errors.Is(why, fs.ErrNotExist):
		text = "not there"
	case errors.Is(why, syscall.ECONNREFUSED):
		text = "nobody listens"
	case errors.Is(why, os.ErrDeadlineExceeded), errors.Is(why, context.DeadlineExceeded):
		text = "no answer in time"
	}
	t.record.Unread = append(t.record.Unread, calibration.Unread{What: what, Why: text})
}

// Take makes a record. What cannot be read is named in it; the error is of what no record can be without.
func Take(ctx context.Context, o Options) (*calibration.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, o.Limit)
	defer cancel()
	t := &taking{o: o, record: &calibration.Record{Version: calibration.Version, When: o.When, Tool: o.Tool}}
	first, err := read()
	if err != nil {
		return nil, err
	}
	if t.record.Node, err = os.Hostname(); err != nil {
		return nil, fmt.Errorf("asking for this host's name: %w", err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("asking which boot this is: %w", err)
	}
	t.record.Boot = strings.TrimSpace(string(boot))
	t.hardwareClocks(ctx)
	t.kernel()
	t.run(ctx)
	t.source(ctx)
	if t.record.Reading, err = read(); err != nil {
		return nil, err
	}
	t.record.Problems = append(t.record.Problems, moved(first, t.record.Reading, "while it was read")...)
	return t.record, nil
}

// source asks the daemons one after the other: the first that follows something is it.
func (t *taking) source(ctx context.Context) {
	r := t.record
	for _, ask := range []func() bool{
		func() bool { return t.ptp(ctx) },
		func() bool { return t.chrony(ctx) },
		func() bool { return t.ntp(ctx) },
	} {
		if ask() {
			return
		}
	}
	if r.Source == "" {
		r.Source = calibration.System
		r.How = "not known: neither ptp4l nor chronyd nor ntpd says what the system clock follows"
	}
}

// bound sets offset and error bound, or, with a reason, that there is no bound.
func (t *taking) bound(offset, bound int64, how string) {
	t.record.OffsetNS, t.record.ErrorNS, t.record.How = &offset, &bound, how
}

func (t *taking) unknown(why string) {
	t.record.OffsetNS, t.record.ErrorNS, t.record.How = nil, nil, "not known: "+why
}

// left is the time until the limit, at most some of it.
func left(ctx context.Context, most time.Duration) time.Time {
	until := time.Now().Add(most)
	if end, has := ctx.Deadline(); has && end.Before(until) {
		return end
	}
	return until
}
