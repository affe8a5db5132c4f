package profiles

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// FlatVersion is the major version of the flat file; readers refuse newer ones.
const FlatVersion = 1

const flatMagic = "sigmatrace.profile"

// MaxFlat is the most bytes that a flat file may have; the recorder reads it into a fixed buffer.
const MaxFlat = 16_000

// Flat is the flat key=value file: a resolved profile and the run it is for. It is what the recorder reads.
type Flat struct {
	Profile *Resolved
	Capture string    // capture.directory: absolute
	Memory  string    // capture.memory: absolute path of the folder where captures have their memory; empty: nowhere
	Run     string    // run.name
	World   int       // run.world: expected ranks; 0: not known
	Start   time.Time // run.start: when the run began; zero: not known
	Clock   *Clock    // run.clock, run.start_monotonic: the same by a clock that is never set; nil: not known
	Control string    // run.control: absolute path of the file with the commands of `sigmatrace window`; empty: none
}

// flatKeys are the keys of the flat file in their order: the run's own, and those keys of the profile that describe no file.
func (f *Flat) pairs() [][2]string {
	world := ""
	if f.World > 0 {
		world = strconv.Itoa(f.World)
	}
	start := ""
	if !f.Start.IsZero() {
		start = strconv.FormatInt(f.Start.UnixNano(), 10)
	}
	clock, monotonic := "", ""
	if f.Clock != nil {
		clock, monotonic = f.Clock.Name, strconv.FormatInt(f.Clock.Start.Nanoseconds(), 10)
	}
	pairs := [][2]string{{"name", f.Profile.Name}}
	run := [][2]string{{"capture.directory", f.Capture}, {"capture.memory", f.Memory}, {"run.name", f.Run}, {"run.world", world},
		{"run.start", start}, {"run.clock", clock}, {"run.start_monotonic", monotonic}, {"run.control", f.Control}}
	for _, v := range f.Profile.Values() {
		if v.Key.FileOnly || v.Key.Name == "record.scratch" || v.Key.Name == "record.place" { // they are in capture.directory and capture.memory already
			continue
		}
		if run != nil && !strings.HasPrefix(v.Key.Name, "record.") && strings.Contains(v.Key.Name, ".") {
			pairs, run = append(pairs, run...), nil
		}
		pairs = append(pairs, [2]string{v.Key.Name, v.Text})
	}
	return pairs
}

// Bytes returns the file's content.
func (f *Flat) Bytes() ([]byte, error) {
	if !filepath.IsAbs(f.Capture) {
		return nil, fmt.Errorf("capture directory %q is not absolute", f.Capture)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s=%d\n", flatMagic, FlatVersion)
	for _, kv := range f.pairs() {
		if err := checkText(kv[1]); err != nil {
			return nil, at(kv[0], "", err)
		}
		fmt.Fprintf(&b, "%s=%s\n", kv[0], kv[1])
	}
	if b.Len() > MaxFlat {
		return nil, fmt.Errorf("resolved profile of %d bytes; at most %d fit", b.Len(), MaxFlat)
	}
	return b.Bytes(), nil
}

// WriteFile writes the flat file to path, mode 0600, at once or not at all. What was at path is replaced.
func (f *Flat) WriteFile(path string) error {
	text, err := f.Bytes()
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".profile-*") // mode 0600
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	defer os.Remove(tmp.Name()) // after the rename there is nothing left to remove
	_, err = tmp.Write(text)
	if err == nil {
		err = tmp.Chmod(0o600) // whatever the umask
	}
	if err == nil {
		err = tmp.Sync()
	}
	if closeErr := tmp.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// ParseFlat reads a flat file's content into its pairs. Keys that this version does not know are kept. Errors name the line.
func ParseFlat(text []byte) (map[string]string, error) {
	if len(text) > MaxFlat {
		return nil, fmt.Errorf("flat profile of %d bytes; at most %d are read", len(text), MaxFlat)
	}
	lines := strings.Split(string(text), "\n")
	if lines[len(lines)-1] != "" {
		return nil, fmt.Errorf("line %d: no newline at the end: the file is cut off", len(lines))
	}
	lines = lines[:len(lines)-1]
	if len(lines) == 0 {
		return nil, fmt.Errorf("empty flat profile")
	}
	if err := checkFlatVersion(lines[0]); err != nil {
		return nil, err
	}
	pairs := map[string]string{}
	for i, line := range lines[1:] {
		key, value, ok := strings.Cut(line, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("line %d: %q is not key=value", i+2, line)
		}
		if _, twice := pairs[key]; twice {
			return nil, fmt.Errorf("line %d: key %s is there twice", i+2, key)
		}
		if err := checkText(value); err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", i+2, key, err)
		}
		pairs[key] = value
	}
	return pairs, nil
}

func checkFlatVersion(line string) error {
	text, ok := strings.CutPrefix(line, flatMagic+"=")
	if !ok {
		return fmt.Errorf("line 1: %q is not %s=%d: not a flat profile", line, flatMagic, FlatVersion)
	}
	version, err := strconv.Atoi(text)
	if err != nil || version < 1 {
		return fmt.Errorf("line 1: %q is not a version", text)
	}
	if version > FlatVersion {
		return fmt.Errorf("line 1: version %d is newer than %d, the newest this program reads", version, FlatVersion)
	}
	return nil
}

// ResolvedFromFlat returns the profile in a flat file's content, each value checked. What only TOML files have is not in it.
func ResolvedFromFlat(text []byte) (*Resolved, error) {
	pairs, err := ParseFlat(text)
	if err != nil {
		return nil, err
	}
	res := &Resolved{Name: pairs["name"], ByName: "flat profile", values: map[string]Value{}}
	var problems Problems
	for i := range Keys {
		key := &Keys[i]
		res.values[key.Name] = Value{Key: key, Text: key.Default, Source: "default"}
		if value, is := pairs[key.Name]; is && !key.FileOnly {
			problems = append(problems, res.set(key, value, key.Name, "flat profile")...)
		}
	}
	return res, problems.orNil()
}
