package calibrate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/facebook/time/phc"
	ptp "github.com/facebook/time/ptp/protocol"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

const (
	maxPorts     = 64
	wantSamples  = 6                      // measurements of a servo that does not steer, to see how they vary
	spareTime    = 200 * time.Millisecond // of the limit, that waiting for them leaves
	crystalDrift = 100e-6                 // by which a clock that nobody steers drifts at most: crystals are within 50 ppm, each of the two
)

// ptpData is what ptp4l has said.
type ptpData struct {
	defaults   *ptp.DefaultDataSetTLV
	current    *ptp.CurrentDataSetTLV
	parent     *ptp.ParentDataSetTLV
	properties *timePropertiesTLV
	status     *ptp.TimeStatusNPTLV
	ports      []*portDataSetTLV
	interfaces map[ptp.PortIdentity]*ptp.PortPropertiesNPTLV
}

// sample is one measurement of the servo's.
type sample struct{ ingress, offset int64 }

// ptp asks ptp4l. It returns whether the node takes part in PTP: follows a master, or is the grandmaster.
func (t *taking) ptp(ctx context.Context) bool {
	m, err := t.connectPTP(ctx)
	if err != nil {
		t.unread("ptp4l", err)
		return false
	}
	defer m.conn.Close()
	d, err := m.ask()
	if err != nil {
		t.unread("ptp4l", err)
		return false
	}
	port := d.port()
	state := d.state(port)
	t.record.PTP = state
	if state.Timestamping != "software" {
		state.PHC2SYS = running("phc2sys")
	}
	switch {
	case port != nil && (port.State == ptp.PortStateSlave || port.State == ptp.PortStateUncalibrated):
		t.record.Source = calibration.PTP
		t.follows(ctx, m, d)
	case d.defaults.ClockIdentity == d.parent.GrandmasterIdentity && port != nil && (port.State == ptp.PortStateMaster || port.State == ptp.PortStateGrandMaster):
		t.record.Source = calibration.PTP
		state.Servo = "none"
		t.leads(state)
	default:
		t.problem(calibration.Unsynchronised, "system", "ptp4l runs and follows no master: its port is "+state.PortState)
		return false
	}
	return true
}

// connectPTP takes the first socket that is there and may be used: ptp4l's main one is root's, the other is for reading only.
func (t *taking) connectPTP(ctx context.Context) (*manager, error) {
	first := fs.ErrNotExist
	for _, socket := range t.o.PTPSockets {
		m, err := newManager(socket, t.o.PTPDomain, left(ctx, daemonLimit))
		if err == nil {
			return m, nil
		}
		if errors.Is(first, fs.ErrNotExist) && !errors.Is(err, fs.ErrNotExist) {
			first = err
		}
	}
	return nil, first
}

func (m *manager) ask() (*ptpData, error) {
	d := &ptpData{interfaces: map[ptp.PortIdentity]*ptp.PortPropertiesNPTLV{}}
	var err error
	if d.defaults, err = one[*ptp.DefaultDataSetTLV](m, ptp.IDDefaultDataSet); err != nil {
		return nil, err
	}
	if d.current, err = one[*ptp.CurrentDataSetTLV](m, ptp.IDCurrentDataSet); err != nil {
		return nil, err
	}
	if d.parent, err = one[*ptp.ParentDataSetTLV](m, ptp.IDParentDataSet); err != nil {
		return nil, err
	}
	if d.properties, err = one[*timePropertiesTLV](m, ptp.IDTimePropertiesDataSet); err != nil {
		return nil, err
	}
	if d.status, err = one[*ptp.TimeStatusNPTLV](m, ptp.IDTimeStatusNP); err != nil {
		return nil, err
	}
	ports := min(int(d.defaults.NumberPorts), maxPorts)
	answers, err := m.get(ptp.IDPortDataSet, ports)
	if err != nil {
		return nil, err
	}
	for _, a := range answers {
		if p, is := a.(*portDataSetTLV); is {
			d.ports = append(d.ports, p)
		}
	}
	answers, _ = m.get(ptp.IDPortPropertiesNP, ports) // older ones do not have it
	for _, a := range answers {
		if p, is := a.(*ptp.PortPropertiesNPTLV); is {
			d.interfaces[p.PortIdentity] = p
		}
	}
	return d, nil
}

// port is the one by which the clock is set, else the one that comes nearest to that.
func (d *ptpData) port() *portDataSetTLV {
	order := []ptp.PortState{ptp.PortStateSlave, ptp.PortStateUncalibrated, ptp.PortStateMaster, ptp.PortStateGrandMaster}
	var best *portDataSetTLV
	rank := func(p *portDataSetTLV) int {
		if i := slices.Index(order, p.State); i >= 0 {
			return i
		}
		return len(order)
	}
	for _, p := range d.ports {
		if best == nil || rank(p) < rank(best) {
			best = p
		}
	}
	return best
}

func (d *ptpData) state(port *portDataSetTLV) *calibration.PTPState {
	s := &calibration.PTPState{Grandmaster: identity(d.parent.GrandmasterIdentity), Own: identity(d.defaults.ClockIdentity),
		OffsetFromMaster: d.status.MasterOffsetNS, MeanPathDelay: int64(math.Round(d.current.MeanPathDelay.Nanoseconds())),
		StepsRemoved: int(d.current.StepsRemoved), PortState: "none", Servo: "not locked"}
	if port == nil {
		return s
	}
	s.PortState = ptp.PortStateToString[port.State]
	if s.PortState == "" {
		s.PortState = fmt.Sprintf("state %d", port.State)
	}
	if port.State == ptp.PortStateSlave {
		s.Servo = "locked" // linuxptp makes a port SLAVE when its servo has locked, and UNCALIBRATED when it no longer is
	}
	s.DelayMechanism = map[uint8]string{1: "E2E", 2: "P2P", 0xfe: "none"}[port.DelayMechanism]
	if s.DelayMechanism == "P2P" {
		s.MeanPathDelay = int64(math.Round(port.PeerMeanPathDelay.Nanoseconds()))
	}
	s.SyncIntervalNS = int64(math.Exp2(float64(min(max(port.LogSyncInterval, -10), 10))) * 1e9)
	if properties := d.interfaces[port.Identity]; properties != nil {
		s.Interface = string(properties.Interface)
		s.Timestamping = "hardware"
		if properties.Timestamping == ptp.TimestampingSoftware {
			s.Timestamping = "software"
		}
	}
	if d.properties.Flags&ptpTimescale != 0 {
		offset := int(d.properties.UTCOffset) // also where it is not said to be valid, as phc2sys does
		s.UTCOffset = &offset
	}
	return s
}

// identity is as linuxptp prints it.
func identity(c ptp.ClockIdentity) string {
	text := fmt.Sprintf("%016x", uint64(c))
	return text[:6] + "." + text[6:10] + "." + text[10:]
}

// leads is of the grandmaster: its clock is the source.
func (t *taking) leads(s *calibration.PTPState) {
	if s.Timestamping == "software" {
		t.bound(0, 0, "this node is the PTP grandmaster, its system clock is the source")
		return
	}
	t.byHardware(s, 0, 0, "this node is the PTP grandmaster, its NIC's clock is the source")
}

// follows is of a node with a master.
func (t *taking) follows(ctx context.Context, m *manager, d *ptpData) {
	s := t.record.PTP
	samples := []sample{{d.status.IngressTimeNS, d.status.MasterOffsetNS}}
	if s.Servo != "locked" {
		t.problem(calibration.FreeRunning, "system",
			"ptp4l measures and its servo has not locked (its port is "+s.PortState+"): it begins, or is told to run free, or its clock does not obey")
		samples = m.watch(ctx, s, samples)
		if clock := t.hardwareOf(s.Interface); clock != nil {
			t.again(ctx, clock) // it may have drifted meanwhile
		}
	}
	low, high := math.MaxInt, math.MinInt
	for _, one := range samples {
		low, high = min(low, int(one.offset)), max(high, int(one.offset))
	}
	last := samples[len(samples)-1]
	s.Samples, s.OffsetFromMaster, s.SpreadNS = len(samples), last.offset, int64(high-low)
	now := time.Now().UnixNano()
	if s.Timestamping != "software" {
		if clock := t.hardwareOf(s.Interface); clock != nil {
			now += *clock.OffsetNS // measurements are stamped by that clock
		}
	}
	age := now - last.ingress
	if last.ingress != 0 {
		s.AgeNS = &age
	}
	t.settle(s, last.ingress)
}

// settle makes offset and bound of the measurements, the last of which was made at the time ingress of the clock that ptp4l keeps.
func (t *taking) settle(s *calibration.PTPState, ingress int64) {
	bound, how, why := t.servo(s, ingress)
	switch {
	case why != "":
		t.unknown(why)
	case s.Timestamping == "software":
		t.bound(s.OffsetFromMaster, bound, how)
	default:
		t.byHardware(s, s.OffsetFromMaster, bound, how)
	}
}

// watch collects measurements of a servo that does not steer, as long as there is time.
func (m *manager) watch(ctx context.Context, s *calibration.PTPState, samples []sample) []sample {
	until := left(ctx, time.Hour).Add(-spareTime)
	pause := min(max(time.Duration(s.SyncIntervalNS)/8, 5*time.Millisecond), 50*time.Millisecond)
	for len(samples) < wantSamples && time.Now().Add(pause).Before(until) {
		time.Sleep(pause)
		m.conn.SetDeadline(left(ctx, daemonLimit))
		status, err := one[*ptp.TimeStatusNPTLV](m, ptp.IDTimeStatusNP)
		if err != nil {
			break
		}
		if status.IngressTimeNS != samples[len(samples)-1].ingress {
			samples = append(samples, sample{status.IngressTimeNS, status.MasterOffsetNS})
		}
	}
	return samples
}

// servo gives the error bound of what ptp4l measured, with what it is made of, or why there is none.
func (t *taking) servo(s *calibration.PTPState, ingress int64) (bound int64, how, why string) {
	interval := max(s.SyncIntervalNS, 1)
	old := int64(oldUpdate) * max(interval, int64(time.Second))
	switch {
	case ingress == 0 || s.AgeNS == nil:
		return 0, "", "ptp4l has measured nothing yet"
	case s.MeanPathDelay <= 0:
		return 0, "", "ptp4l has measured no path delay"
	case *s.AgeNS < -int64(stepLimit):
		return 0, "", "the clock was set back after ptp4l's last measurement"
	case *s.AgeNS > old:
		t.problem(calibration.Stale, "system", fmt.Sprintf("ptp4l's last measurement is %v old", time.Duration(*s.AgeNS).Round(time.Millisecond)))
		return 0, "", "ptp4l's last measurement is old"
	case s.Servo == "locked":
		// What the servo has not yet corrected, and what it made of the measurement's own noise, for each interval since.
		intervals := max(1, (*s.AgeNS+interval-1)/interval)
		rest := 2 * abs(s.OffsetFromMaster) * intervals
		bound, how = s.MeanPathDelay+rest, fmt.Sprintf("mean path delay of %d ns (its asymmetry is at most that) + %d ns of twice the last offset from the master, which the servo may have acted on",
			s.MeanPathDelay, rest)
	case s.Samples < 2:
		return 0, "", "the servo does not steer, and one measurement does not tell how much they vary"
	default:
		drift := int64(float64(*s.AgeNS) * crystalDrift)
		bound, how = s.MeanPathDelay+s.SpreadNS+drift, fmt.Sprintf("mean path delay of %d ns (its asymmetry is at most that) + spread of %d measurements, %d ns, + drift of %d ns by 100 ppm since the last",
			s.MeanPathDelay, s.Samples, s.SpreadNS, drift)
	}
	if s.DelayMechanism == "P2P" {
		how += ", of the last link: those behind transparent clocks are not told and taken to have no asymmetry"
	}
	if s.StepsRemoved > 1 {
		bound *= int64(s.StepsRemoved)
		how += fmt.Sprintf(", times %d: the clocks on the way to the grandmaster are taken to be no worse", s.StepsRemoved)
	}
	return bound, how, ""
}

// hardwareOf is the clock that an interface stamps with, where it has been read.
func (t *taking) hardwareOf(nic string) *calibration.PHC {
	device, _ := phc.IfaceToPHCDevice(nic)
	for i := range t.record.PHCs {
		clock := &t.record.PHCs[i]
		if clock.OffsetNS != nil && nic != "" && (clock.Device == device || slices.Contains(clock.NICs, nic)) {
			return clock
		}
	}
	return nil
}

// byHardware adds the way from the NIC's clock, which ptp4l keeps, to the system clock.
func (t *taking) byHardware(s *calibration.PTPState, offset, bound int64, how string) {
	clock := t.hardwareOf(s.Interface)
	switch {
	case s.Timestamping == "":
		t.unknown("ptp4l does not tell which clock it keeps")
	case clock == nil:
		t.unknown("the clock of " + s.Interface + ", which ptp4l keeps, could not be read")
	default:
		utc := int64(0)
		if s.UTCOffset != nil {
			utc = int64(*s.UTCOffset) * 1e9
		}
		half := (*clock.BracketNS + 1) / 2
		t.bound(offset-*clock.OffsetNS+utc, bound+half, how+fmt.Sprintf(" + %d ns of reading %s beside the system clock (%s)", half, clock.Device, clock.Method))
		if s.PHC2SYS != nil && !*s.PHC2SYS && t.unsteered() {
			t.problem(calibration.FreeRunning, "system", "ptp4l keeps the NIC's clock, and nobody takes that to the system clock: phc2sys does not run")
		}
	}
}

// running tells whether a program of that name runs on the host; nil where processes cannot be seen.
func running(name string) *bool {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil || len(names) == 0 {
		return nil
	}
	found := false
	for _, path := range names {
		if text, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(text)) == name {
			found = true
			break
		}
	}
	return &found
}

func abs(n int64) int64 {
	if n < 0 {
		return -n
	}
	return n
}
