// Package calibration is the format of what is known of a node's clock at one moment: how its counter, system clock and NIC clocks stand to
// each other, which daemon steers the system clock by what, how far that is off, and how sure that is. One record is one line of JSON.
package calibration

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
)

// Version is the major version of the format. Within it fields are only added.
const Version = 1

// MaxLine is the most bytes that a record has, its line's end included.
const MaxLine = 32 << 10

// Schema describes a record.
//
//go:embed calibration.schema.json
var Schema []byte

// ErrNewer is of a record of a newer major version.
var ErrNewer = errors.New("written by a newer version")

// When a record was made.
type When string

const (
	StepBegin When = "step-begin"
	StepEnd   When = "step-end"
	During    When = "during"  // by sigmatrace-clockd, or another who reads it from time to time
	ByHand    When = "by-hand" // of no step
)

// Source is what the system clock follows.
type Source string

const (
	PTP    Source = "ptp"    // ptp4l
	Chrony Source = "chrony" // chronyd
	NTP    Source = "ntp"    // ntpd of any make
	System Source = "system" // nobody who could be asked
)

// Record is one calibration of one node. Pointers are nil where a value is not known or not there; times and offsets are nanoseconds.
// All offsets say how far the first is ahead of the second: the system clock minus the offset is the source's time.
type Record struct {
	Version int    `json:"version"`
	Node    string `json:"node"`    // host name
	Boot    string `json:"boot_id"` // of the kernel: counter and CLOCK_MONOTONIC are of one boot
	When    When   `json:"when"`
	Tool    string `json:"tool"` // who wrote it, with its version

	Reading     Reading     `json:"reading"`
	Clocksource Clocksource `json:"clocksource"`
	TSC         *TSC        `json:"tsc"` // null where the processor has none
	Kernel      *Kernel     `json:"kernel"`
	PHCs        []PHC       `json:"phcs"`

	Source   Source    `json:"source"`
	PTP      *PTPState `json:"ptp"`
	Tracking *Tracking `json:"tracking"` // chronyd's or ntpd's

	OffsetNS *int64 `json:"offset_ns"` // of the system clock to the source, at the time of Reading
	ErrorNS  *int64 `json:"error_ns"`  // the true offset is no further from OffsetNS; never less than is known
	How      string `json:"how"`       // how the error bound came about, or why there is none

	Problems []Problem `json:"problems"`
	Unread   []Unread  `json:"unread"`
}

// Reading is the counter read before and after CLOCK_REALTIME; CLOCK_MONOTONIC was read right after. The tightest of several.
type Reading struct {
	Counter   string `json:"counter"` // "tsc" or "cntvct"
	Before    uint64 `json:"before"`  // ticks
	After     uint64 `json:"after"`
	Realtime  int64  `json:"realtime_ns"`
	Monotonic int64  `json:"monotonic_ns"`
}

// Clocksource is what the kernel makes its clocks of.
type Clocksource struct {
	Current   string   `json:"current"`
	Available []string `json:"available"`
}

// TSC is what processor and kernel say of the time stamp counter.
type TSC struct {
	Constant  bool   `json:"constant"`   // its rate does not change with the frequency of the processor
	Nonstop   bool   `json:"nonstop"`    // nor stops when that sleeps
	KnownFreq bool   `json:"known_freq"` // the rate is told by the processor or hypervisor
	Adjust    bool   `json:"adjust"`     // adjustments can be seen (IA32_TSC_ADJUST)
	GivenUp   bool   `json:"given_up"`   // the kernel found it not to be usable as a clock
	Least     *int64 `json:"adjust_min"` // of the processors' adjustments, ticks; null where they may not be read
	Most      *int64 `json:"adjust_max"`
}

// Kernel is what adjtimex(2) tells.
type Kernel struct {
	Synchronised bool    `json:"synchronised"`  // whoever steers the clock says so, and lets the kernel set the real time clock by it
	FreqPPM      float64 `json:"frequency_ppm"` // correction of the rate that is in effect
	MaxErrorNS   int64   `json:"max_error_ns"`  // as told to the kernel; daemons that do not care leave 0
	EstErrorNS   int64   `json:"est_error_ns"`
	TAIOffset    int     `json:"tai_offset_s"` // 0 where nobody has told the kernel
}

// PHC is a PTP hardware clock.
type PHC struct {
	Device    string   `json:"device"`       // /dev/ptp0
	Clock     string   `json:"clock"`        // as its driver calls it
	NICs      []string `json:"interfaces"`   // that stamp with it
	Method    string   `json:"method"`       // "PRECISE", "EXTENDED" or "basic"; empty where it could not be read
	OffsetNS  *int64   `json:"offset_ns"`    // to the system clock, as both count: a clock in TAI is tens of seconds ahead
	BracketNS *int64   `json:"bracket_ns"`   // the offset is off by no more than half of it; 0: the hardware reads both at once
	TimeNS    *int64   `json:"time_ns"`      // what the clock read
	Monotonic *int64   `json:"monotonic_ns"` // and CLOCK_MONOTONIC then, to within a millisecond as a rule
}

// PTPState is what ptp4l says over its management socket.
type PTPState struct {
	Grandmaster      string `json:"grandmaster"` // clock identity, as linuxptp prints it: 0011aa.fffe.bbccdd
	Own              string `json:"own"`         // identity of this clock
	OffsetFromMaster int64  `json:"offset_from_master_ns"`
	MeanPathDelay    int64  `json:"mean_path_delay_ns"`
	StepsRemoved     int    `json:"steps_removed"`   // clocks between this one and the grandmaster
	PortState        string `json:"port_state"`      // SLAVE, UNCALIBRATED, MASTER, ...
	Servo            string `json:"servo"`           // "locked", "not locked", or "none" where this clock is the master
	DelayMechanism   string `json:"delay_mechanism"` // "E2E", "P2P", "none"
	Timestamping     string `json:"timestamping"`    // "software", "hardware"; empty where not told
	Interface        string `json:"interface"`
	SyncIntervalNS   int64  `json:"sync_interval_ns"` // between two measurements
	AgeNS            *int64 `json:"age_ns"`           // of the last measurement
	Samples          int    `json:"samples"`          // measurements that were seen
	SpreadNS         int64  `json:"spread_ns"`        // greatest less smallest of them
	UTCOffset        *int   `json:"utc_offset_s"`     // of PTP's time scale to UTC; null where the master counts another
	PHC2SYS          *bool  `json:"phc2sys"`          // whether phc2sys runs, which takes the NIC's clock to the system's; null: not known
}

// Tracking is what an NTP daemon says.
type Tracking struct {
	Reference      string   `json:"reference"` // the server's address or the name of the reference clock
	Stratum        int      `json:"stratum"`
	Leap           string   `json:"leap"` // "normal", "insert", "delete", "unsynchronised"
	SystemOffsetNS int64    `json:"system_offset_ns"`
	RootDelayNS    int64    `json:"root_delay_ns"`
	RootDispersion int64    `json:"root_dispersion_ns"`
	FrequencyPPM   float64  `json:"frequency_ppm"`
	SkewPPM        *float64 `json:"skew_ppm"` // chrony: how sure the frequency is
	JitterNS       *int64   `json:"jitter_ns"`
	AgeNS          *int64   `json:"age_ns"` // since the last update
}

// What can be wrong with a clock.
const (
	StandsStill     = "stands-still"
	Steps           = "steps"
	FreeRunning     = "free-running"   // the servo that should steer it does not
	Stale           = "stale"          // what is known of it is old
	Unsynchronised  = "unsynchronised" // its daemon says so itself
	UnstableCounter = "unstable-counter"
)

// Problem is something wrong with a clock.
type Problem struct {
	Name  string `json:"name"`
	Clock string `json:"clock"` // "system", "counter", or a PHC's device
	Text  string `json:"text"`
}

// Unread is what could not be asked or read, and why.
type Unread struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Has tells whether one of the problems is called name.
func (r *Record) Has(name string) bool {
	for _, p := range r.Problems {
		if p.Name == name {
			return true
		}
	}
	return false
}

// Line returns the record as a line of JSON, its end included.
func (r *Record) Line() ([]byte, error) {
	own := *r
	own.Version = Version
	if own.Clocksource.Available == nil {
		own.Clocksource.Available = []string{}
	}
	own.PHCs = append([]PHC{}, own.PHCs...)
	for i := range own.PHCs {
		own.PHCs[i].NICs = append([]string{}, own.PHCs[i].NICs...)
	}
	own.Problems = append([]Problem{}, own.Problems...)
	own.Unread = append([]Unread{}, own.Unread...)
	text, err := json.Marshal(&own)
	if err != nil {
		return nil, fmt.Errorf("writing a clock calibration: %w", err)
	}
	if len(text) >= MaxLine {
		return nil, fmt.Errorf("writing a clock calibration: %d bytes are more than a record may have (%d)", len(text)+1, MaxLine)
	}
	return append(text, '\n'), nil
}

// Parse reads one line. The error of a record of a newer major version is one that errors.Is says is ErrNewer.
func Parse(line []byte) (*Record, error) {
	var v struct {
		Version int `json:"version"`
	}
	line = bytes.TrimSpace(line)
	if err := json.Unmarshal(line, &v); err != nil {
		return nil, fmt.Errorf("not a clock calibration: %w", err)
	}
	switch {
	case v.Version > Version:
		return nil, fmt.Errorf("clock calibration of version %d, this is %d: %w", v.Version, Version, ErrNewer)
	case v.Version < 1:
		return nil, errors.New("not a clock calibration: it has no version")
	}
	r := &Record{}
	if err := json.Unmarshal(line, r); err != nil {
		return nil, fmt.Errorf("not a clock calibration: %w", err)
	}
	return r, r.check()
}

// check refuses what no reading can have given, so that readers need not.
func (r *Record) check() error {
	switch {
	case r.Node == "" || r.Boot == "":
		return errors.New("clock calibration of no node or boot")
	case r.Reading.After < r.Reading.Before || r.Reading.Realtime <= 0 || r.Reading.Monotonic < 0:
		return errors.New("clock calibration with an impossible reading")
	case r.ErrorNS != nil && (*r.ErrorNS < 0 || r.OffsetNS == nil):
		return errors.New("clock calibration with an impossible error bound")
	}
	return nil
}
