package calibration_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(calibration.Schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", document); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func valid(t *testing.T, s *jsonschema.Schema, line []byte) error {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(value)
}

func bare(monotonic int64) *calibration.Record {
	return &calibration.Record{Node: "n1", Boot: "b", When: calibration.StepBegin, Tool: "sigmatrace", Source: calibration.System, How: "nobody was asked",
		Reading: calibration.Reading{Counter: "tsc", Before: 1 << 60, After: 1<<60 + 3, Realtime: 1_800_000_000_123_456_789, Monotonic: monotonic}}
}

func full(monotonic int64) *calibration.Record {
	r, n, i, f, yes := bare(monotonic), int64(-7), 37, 0.5, true
	zero := int64(0)
	r.TSC, r.Kernel = &calibration.TSC{Least: &n, Most: &n}, &calibration.Kernel{}
	r.PHCs = []calibration.PHC{{Device: "/dev/ptp0", Method: "PRECISE", OffsetNS: &n, BracketNS: &zero, TimeNS: &n, Monotonic: &zero}}
	r.Source, r.PTP = calibration.PTP, &calibration.PTPState{Servo: "locked", AgeNS: &n, UTCOffset: &i, PHC2SYS: &yes}
	r.Tracking = &calibration.Tracking{Leap: "normal", SkewPPM: &f, JitterNS: &n, AgeNS: &n}
	r.OffsetNS, r.ErrorNS = &n, &zero
	r.Problems = []calibration.Problem{{Name: calibration.Stale, Clock: "system", Text: "old"}}
	r.Unread = []calibration.Unread{{What: "chronyd", Why: "nobody there"}}
	return r
}

func line(t *testing.T, r *calibration.Record) []byte {
	t.Helper()
	text, err := r.Line()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestRecordKeepsToItsSchema(t *testing.T) {
	s := schema(t)
	for _, r := range []*calibration.Record{bare(5), full(5)} {
		text := line(t, r)
		if err := valid(t, s, text); err != nil {
			t.Errorf("%v\n%s", err, text)
		}
		back, err := calibration.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if again := line(t, back); !bytes.Equal(text, again) {
			t.Errorf("read and written again it is another:\n%s%s", text, again)
		}
	}
}

// Every field of the record is one that the schema knows and demands, and the other way round.
func TestSchemaHasEveryField(t *testing.T) {
	s, text := schema(t), line(t, full(5))
	var whole map[string]any
	if err := json.Unmarshal(text, &whole); err != nil {
		t.Fatal(err)
	}
	without(t, s, whole, whole, "")
}

func without(t *testing.T, s *jsonschema.Schema, whole any, object map[string]any, path string) {
	for key, value := range object {
		delete(object, key)
		text, err := json.Marshal(whole)
		if err != nil {
			t.Fatal(err)
		}
		if valid(t, s, text) == nil {
			t.Errorf("the schema does without %s%s", path, key)
		}
		object[key] = value
		switch value := value.(type) {
		case map[string]any:
			without(t, s, whole, value, path+key+".")
		case []any:
			for _, item := range value {
				if object, is := item.(map[string]any); is {
					without(t, s, whole, object, path+key+".")
				}
			}
		}
	}
}

func TestNewerMajorIsRefused(t *testing.T) {
	text := line(t, bare(5))
	newer := bytes.Replace(text, []byte(`"version":1`), []byte(`"version":2`), 1)
	if _, err := calibration.Parse(newer); !errors.Is(err, calibration.ErrNewer) {
		t.Errorf("version 2: %v", err)
	}
	if records, _, err := calibration.Read(bytes.NewReader(append(text, newer...))); !errors.Is(err, calibration.ErrNewer) || records != nil {
		t.Errorf("a file with version 2 gives %d records, %v", len(records), err)
	}
	more := bytes.Replace(text, []byte(`"version":1`), []byte(`"version":1,"later":{"a":[1]}`), 1)
	if _, err := calibration.Parse(more); err != nil {
		t.Errorf("a field that is not known: %v", err)
	}
}

func TestImpossibleIsRefused(t *testing.T) {
	minus, n := int64(-1), int64(3)
	for what, change := range map[string]func(*calibration.Record){
		"no node":              func(r *calibration.Record) { r.Node = "" },
		"no boot":              func(r *calibration.Record) { r.Boot = "" },
		"counter backwards":    func(r *calibration.Record) { r.Reading.After = 0 },
		"no time":              func(r *calibration.Record) { r.Reading.Realtime = 0 },
		"error below 0":        func(r *calibration.Record) { r.OffsetNS, r.ErrorNS = &n, &minus },
		"error without offset": func(r *calibration.Record) { r.ErrorNS = &n },
	} {
		r := bare(5)
		change(r)
		if _, err := calibration.Parse(line(t, r)); err == nil {
			t.Errorf("%s: read", what)
		}
	}
	for _, text := range []string{"", "{}", "[]", "null", "7", `{"version":"1"}`, `{"version":0}`, `{"version":1,"node":3}`} {
		if _, err := calibration.Parse([]byte(text)); err == nil {
			t.Errorf("%q: read", text)
		}
	}
}

func TestDamagedLinesCostOnlyThemselves(t *testing.T) {
	var file []byte
	file = append(file, line(t, bare(1))...)
	file = append(file, "half a reco\n\n"...)
	file = append(file, line(t, bare(2))...)
	file = append(file, strings.Repeat("x", 3*calibration.MaxLine)+"\n"...)
	file = append(file, line(t, bare(3))...)
	last := line(t, bare(4))
	for cut := range len(last) {
		records, damaged, err := calibration.Read(bytes.NewReader(append(bytes.Clone(file), last[:cut]...)))
		want := 2
		if cut > 0 {
			want = 3
		}
		if err != nil || len(records) != 3 || damaged != want {
			t.Fatalf("cut after %d of the last line: %d records, %d damaged, %v", cut, len(records), damaged, err)
		}
	}
}

func TestReadRunSortsEachBoot(t *testing.T) {
	run := t.TempDir()
	if files, err := calibration.ReadRun(run); err != nil || files != nil {
		t.Fatalf("a run without calibrations: %v, %v", files, err)
	}
	dir := filepath.Join(run, calibration.DirName)
	if err := os.MkdirAll(filepath.Join(dir, "directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	later := bare(1)
	later.Boot = "c"
	var text []byte
	for _, r := range []*calibration.Record{bare(7), bare(5), later, bare(6), bare(5)} {
		text = append(text, line(t, r)...)
	}
	if err := os.WriteFile(filepath.Join(dir, "n1"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	files, err := calibration.ReadRun(run)
	if err != nil || len(files) != 1 || files[0].Node != "n1" || files[0].Err != nil {
		t.Fatalf("%+v, %v", files, err)
	}
	var got []int64
	for _, r := range files[0].Records {
		got = append(got, r.Reading.Monotonic)
	}
	if want := []int64{5, 6, 7, 1}; len(got) != 4 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] || got[3] != want[3] {
		t.Errorf("order %v, want %v", got, want)
	}
}

func FuzzParse(f *testing.F) {
	text, err := bare(5).Line()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := calibration.Parse(text)
		if err != nil {
			return
		}
		if _, err := r.Line(); err != nil && len(text) < calibration.MaxLine/8 {
			t.Errorf("%q was read and cannot be written: %v", text, err)
		}
	})
}
