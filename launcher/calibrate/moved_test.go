package calibrate

import (
	"slices"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

const at = int64(1_800_000_000_000_000_000)

func reading(wall, monotonic time.Duration, ticks uint64) calibration.Reading {
	return calibration.Reading{Counter: "tsc", Before: ticks, After: ticks + 10, Realtime: at + int64(wall), Monotonic: int64(monotonic)}
}

func names(problems []calibration.Problem) []string {
	var got []string
	for _, p := range problems {
		got = append(got, p.Name+" "+p.Clock)
	}
	return got
}

func TestWhatTwoReadingsShow(t *testing.T) {
	first := reading(0, time.Second, 1000)
	for name, c := range map[string]struct {
		second calibration.Reading
		want   []string
	}{
		"nothing":             {reading(time.Minute, 61*time.Second, 9000), nil},
		"noise":               {reading(time.Minute+time.Millisecond, 61*time.Second, 9000), nil},
		"set forward":         {reading(time.Minute+3*time.Millisecond, 61*time.Second, 9000), []string{"steps system"}},
		"set back":            {reading(time.Minute-time.Hour, 61*time.Second, 9000), []string{"steps system"}},
		"no ticks":            {reading(time.Minute, 61*time.Second, 1000), []string{"stands-still counter"}},
		"ticks back":          {reading(time.Minute, 61*time.Second, 900), []string{"steps counter"}},
		"no time":             {reading(0, time.Second, 9000), []string{"stands-still system"}},
		"the very same twice": {first, nil},
	} {
		if got := names(moved(first, c.second, "")); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func hardware(at, monotonic time.Duration) *calibration.PHC {
	a, m := int64(at), int64(monotonic)
	return &calibration.PHC{Device: "/dev/ptp0", TimeNS: &a, Monotonic: &m}
}

func TestWhatAHardwareClockShows(t *testing.T) {
	second, moment := time.Second, 5*time.Millisecond
	for name, c := range map[string]struct {
		went, passed time.Duration
		want         []string
	}{
		"runs":                 {second + 20*time.Microsecond, second, nil},
		"steered hard":         {second + second/200, second, nil},
		"read late":            {second - time.Millisecond, second, nil},
		"stands still":         {0, second, []string{"stands-still /dev/ptp0"}},
		"stands still a while": {0, moment, []string{"stands-still /dev/ptp0"}},
		"set forward":          {second + second/10, second, []string{"steps /dev/ptp0"}},
		"set back":             {-10 * second, second, []string{"steps /dev/ptp0"}},
		"set while it is read": {37 * second, moment, []string{"steps /dev/ptp0"}},
	} {
		if got := names(ran(hardware(7*second, 9*second), hardware(7*second+c.went, 9*second+c.passed), "")); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if got := ran(&calibration.PHC{}, hardware(second, second), ""); got != nil {
		t.Errorf("not read before: %v", got)
	}
}

func TestCompareIsOfOneBoot(t *testing.T) {
	earlier := &calibration.Record{Boot: "b", Reading: reading(0, time.Second, 1000), PHCs: []calibration.PHC{*hardware(time.Hour, time.Second)}}
	later := func() *calibration.Record {
		return &calibration.Record{Boot: "b", Reading: reading(time.Minute+time.Second, 61*time.Second, 9000), PHCs: []calibration.PHC{*hardware(time.Hour, 61*time.Second)}}
	}
	r := later()
	Compare(earlier, r)
	if got := names(r.Problems); !slices.Equal(got, []string{"steps system", "stands-still /dev/ptp0"}) {
		t.Errorf("%v", got)
	}
	r = later()
	r.Boot = "c"
	Compare(earlier, r)
	Compare(nil, r)
	if len(r.Problems) > 0 {
		t.Errorf("of another boot: %v", r.Problems)
	}
}

// What ntpd may say, all makes of it, and what none does.
func TestVariablesOfNTP(t *testing.T) {
	good := map[string]string{"leap": "00", "stratum": "2", "refid": "10.0.0.1", "rootdelay": "1.5", "rootdisp": "3", "offset": "-0.25", "frequency": "1.25",
		"sys_jitter": "0.5", "clock": "0xe0000010.80000000", "reftime": "0xe0000000.00000000"}
	r, err := variables(good)
	if err != nil {
		t.Fatal(err)
	}
	if r.Leap != "normal" || r.SystemOffsetNS != 250_000 || r.RootDelayNS != 1_500_000 || r.RootDispersion != 3_000_000 || r.FrequencyPPM != 1.25 ||
		*r.JitterNS != 500_000 || *r.AgeNS != int64(16500*time.Millisecond) {
		t.Errorf("%+v", r)
	}
	for _, key := range []string{"leap", "stratum", "rootdelay", "rootdisp", "offset", "frequency"} {
		for _, value := range []string{"", "x", "nan"} {
			bad := map[string]string{}
			for k, v := range good {
				bad[k] = v
			}
			bad[key] = value
			if _, err := variables(bad); err == nil {
				t.Errorf("%s=%q is read", key, value)
			}
		}
	}
	for value, want := range map[string]string{"0": "normal", "01": "insert", "10": "delete", "11": "unsynchronised", "3": "unsynchronised", "7": "unsynchronised"} {
		good["leap"] = value
		if r, err := variables(good); err != nil || r.Leap != want {
			t.Errorf("leap %s: %+v, %v; want %s", value, r, err, want)
		}
	}
	good["rootdisp"] = "inf"
	if r, err := variables(good); err != nil || r.RootDispersion < 1<<60 {
		t.Errorf("without end: %+v, %v", r, err)
	}
}
