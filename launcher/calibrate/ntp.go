package calibrate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/facebook/time/ntp/control"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

// ntpDrift is by how much an NTP daemon takes clocks to drift (RFC 5905, PHI).
const ntpDrift = 15e-6

// ntp asks ntpd, of any make, for its system variables. It returns whether the system clock follows ntpd.
func (t *taking) ntp(ctx context.Context) bool {
	values, err := t.askNTP(ctx)
	if err != nil {
		t.unread("ntpd", err)
		return false
	}
	r := t.record
	r.Source = calibration.NTP
	tracking, err := variables(values)
	if err != nil {
		t.unread("ntpd", err)
		t.unknown(err.Error())
		return true
	}
	r.Tracking = tracking
	t.tracked("ntpd", 0)
	if r.ErrorNS != nil && tracking.AgeNS != nil {
		grown := int64(float64(max(*tracking.AgeNS, 0)) * ntpDrift)
		t.bound(*r.OffsetNS, *r.ErrorNS+grown, r.How+fmt.Sprintf(" + %d ns of drift by 15 ppm since its last update", grown))
	}
	return true
}

func (t *taking) askNTP(ctx context.Context) (map[string]string, error) {
	until := left(ctx, daemonLimit)
	conn, err := (&net.Dialer{Deadline: until}).DialContext(ctx, "udp", t.o.NTP)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	conn.SetDeadline(until)
	client := &control.NTPClient{Sequence: 1, Connection: conn}
	answer, err := client.Communicate(&control.NTPControlMsgHead{VnMode: control.MakeVnMode(2, control.Mode), REMOp: control.OpReadVariables})
	if err != nil {
		return nil, err
	}
	if answer.HasError() {
		return nil, errors.New("ntpd refuses to tell its variables")
	}
	values := map[string]string{}
	for pair := range strings.SplitSeq(strings.TrimRight(string(answer.Data), "\r\n\x00 "), ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
		values[strings.TrimSpace(key)] = strings.Trim(strings.TrimSpace(value), `"`)
	}
	return values, nil
}

// variables reads ntpd's answer. Its times are milliseconds, and its offset that of the source to the system clock.
func variables(values map[string]string) (*calibration.Tracking, error) {
	numbers := map[string]float64{}
	for _, key := range []string{"leap", "stratum", "rootdelay", "rootdisp", "offset", "frequency"} {
		n, err := strconv.ParseFloat(values[key], 64)
		if err != nil || n != n {
			return nil, fmt.Errorf("ntpd does not tell its %s", key)
		}
		numbers[key] = n
	}
	r := &calibration.Tracking{Reference: values["refid"], Stratum: max(int(numbers["stratum"]), 0), Leap: leaps[3],
		SystemOffsetNS: -seconds(numbers["offset"] / 1e3), RootDelayNS: seconds(numbers["rootdelay"] / 1e3), RootDispersion: seconds(numbers["rootdisp"] / 1e3),
		FrequencyPPM: numbers["frequency"]}
	// Leap comes in two binary digits, 00, 01, 10 and 11, from some as a number; all agree on 0 to 3 but for these two.
	switch values["leap"] {
	case "0", "00":
		r.Leap = leaps[0]
	case "1", "01":
		r.Leap = leaps[1]
	case "2", "10":
		r.Leap = leaps[2]
	}
	if n, err := strconv.ParseFloat(values["sys_jitter"], 64); err == nil {
		jitter := seconds(n / 1e3)
		r.JitterNS = &jitter
	}
	clock, ok1 := ntpTime(values["clock"])
	last, ok2 := ntpTime(values["reftime"])
	if ok1 && ok2 && last > 0 {
		age := int64(float64(int64(clock-last)) / (1 << 32) * float64(time.Second))
		r.AgeNS = &age
	}
	return r, nil
}

// ntpTime reads 0xSSSSSSSS.FFFFFFFF, seconds and their 2^32nd parts.
func ntpTime(text string) (uint64, bool) {
	whole, fraction, is := strings.Cut(strings.TrimPrefix(text, "0x"), ".")
	s, err1 := strconv.ParseUint(whole, 16, 32)
	f, err2 := strconv.ParseUint(fraction, 16, 32)
	return s<<32 | f, is && err1 == nil && err2 == nil
}
