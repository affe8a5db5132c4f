package profiles

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The flat file is read by other programs: its text is fixed here.
const flatExample = `sigmatrace.profile=1
name=simple
mode=simple
providers=ucx,libfabric,ibverbs,mlx5dv
record.budget=268435456
record.memory=268435456
record.chunk=65536
record.back_end=auto
record.nvtx=true
capture.directory=/home/u/sigmatrace-n1-20260102T030405Z-77/capture
capture.memory=
run.name=sigmatrace-n1-20260102T030405Z-77
run.world=4
run.start=1767323045000000000
run.clock=0c2f8a52-7f0e-4c53-b1f4-6f5a2c1f0d11/4026531834
run.start_monotonic=86400000000000
run.control=/home/u/sigmatrace-n1-20260102T030405Z-77/control
window.start=open
window.delay=0ns
window.duration=0ns
window.max_events=0
window.control=true
ranks.include=
ranks.exclude=
processes.exclude=
epoch.interval=0ns
epoch.phases=false
ucx.level=auto
doorbell.enabled=true
doorbell.batch_threshold=128
doorbell.poll=auto
doorbell.cpus=
doorbell.threads=2
gpu.kernels=launches
gpu.counters=true
nccl.events=coll,p2p,proxy
clock.source=auto
clock.warn_above=0ns
clock.repair=false
merge.at_job_end=true
merge.exports=perfetto,matrix
merge.memory=1073741824
merge.keep_captures=true
merge.slurm_bytes=536870912
merge.slurm_time=60000000000ns
merge.slurm_workers=2
merge.slurm_nice=10
output.directory=.
`

func exampleFlat(t *testing.T) *Flat {
	return &Flat{Profile: resolve(t, Request{}), Capture: "/home/u/sigmatrace-n1-20260102T030405Z-77/capture",
		Run: "sigmatrace-n1-20260102T030405Z-77", World: 4, Start: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Clock:   &Clock{Name: "0c2f8a52-7f0e-4c53-b1f4-6f5a2c1f0d11/4026531834", Start: 24 * time.Hour},
		Control: "/home/u/sigmatrace-n1-20260102T030405Z-77/control"}
}

func TestFlatFileText(t *testing.T) {
	got, err := exampleFlat(t).Bytes()
	if err != nil || string(got) != flatExample {
		t.Errorf("got %v\n%s", err, got)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "    "+strings.ReplaceAll(strings.TrimSpace(flatExample), "\n", "\n    ")+"\n") {
		t.Error("README.md shows another flat file")
	}
}

func TestFlatFileIsWrittenWholeAndPrivate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "profile.resolved")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := exampleFlat(t).WriteFile(path); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	text, _ := os.ReadFile(path)
	if err != nil || info.Mode() != 0o600 || string(text) != flatExample {
		t.Errorf("got %v, %v, %q", info.Mode(), err, text)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("%d files are left", len(entries))
	}
}

func TestFlatFileRefusesWhatItCannotHold(t *testing.T) {
	for name, change := range map[string]func(*Flat){
		"relative capture directory":    func(f *Flat) { f.Capture = "capture" },
		"newline in a directory":        func(f *Flat) { f.Capture = "/a\nb" },
		"carriage return in a run name": func(f *Flat) { f.Run = "a\rb" },
		"a value of 4,096 bytes":        func(f *Flat) { f.Capture = "/" + strings.Repeat("x", 4095) },
		"a name that is not UTF-8":      func(f *Flat) { f.Capture = "/\xff" },
	} {
		f := exampleFlat(t)
		change(f)
		if _, err := f.Bytes(); err == nil {
			t.Errorf("%s was written", name)
		}
	}
}

func TestParseFlat(t *testing.T) {
	pairs, err := ParseFlat([]byte(flatExample + "new.key=a=b c\n"))
	if err != nil || len(pairs) != 48 || pairs["run.world"] != "4" || pairs["new.key"] != "a=b c" {
		t.Errorf("got %v, %v", pairs, err)
	}
	for name, text := range map[string]string{
		"":                                     "empty flat profile",
		"mode=full\n":                          `line 1: "mode=full" is not sigmatrace.profile=1: not a flat profile`,
		"sigmatrace.profile=2\nanything\n":     "line 1: version 2 is newer than 1, the newest this program reads",
		"sigmatrace.profile=x\n":               `line 1: "x" is not a version`,
		"sigmatrace.profile=1\nmode\n":         `line 2: "mode" is not key=value`,
		"sigmatrace.profile=1\n=full\n":        `line 2: "=full" is not key=value`,
		"sigmatrace.profile=1\na=1\na=2\n":     "line 3: key a is there twice",
		"sigmatrace.profile=1\na=1\nb=x\x00\n": "line 3: b: control character 0x00 in the value",
		"sigmatrace.profile=1\nmode=fu":        "line 2: no newline at the end: the file is cut off",
	} {
		if _, err := ParseFlat([]byte(name)); err == nil || err.Error() != text {
			t.Errorf("%q: got %v, want %s", name, err, text)
		}
	}
}
