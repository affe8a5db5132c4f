package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
)

// recordedRanks is the run of a real job of so many rounds whose captures have not been merged, and the counters' totals by process.
func recordedRanks(t *testing.T, rounds int) (*run, map[int]totals) {
	t.Helper()
	r := newRun(t, spec{mode: "full", providers: "ucx", env: transports["tcp"], options: []string{"--no-merge", "--set", "record.chunk=16KiB"}})
	r.launch(r.mpirun(4, built(t, "tests/mpi-app"), "-n", fmt.Sprint(rounds))...).succeed()
	return r, r.truth("ucp")
}

// captures of a run directory, in order.
func captures(t *testing.T, run string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(run, "capture/*/*.capture"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no captures in %s: %v", run, err)
	}
	return names
}

func pidOf(t *testing.T, capture string) int {
	t.Helper()
	var pid int
	if _, err := fmt.Sscan(strings.SplitN(filepath.Base(capture), ".", 2)[0], &pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

// copyOf is a copy of a run directory under another scratch folder.
func copyOf(t *testing.T, r *run) *run {
	t.Helper()
	c := *r
	c.t, c.dir = t, t.TempDir()
	c.path = filepath.Join(c.dir, "run")
	if err := os.CopyFS(c.path, os.DirFS(r.path)); err != nil {
		t.Fatal(err)
	}
	return &c
}

// merge runs sigmatrace merge on the run.
func (r *run) merge(options ...string) (stderr string, status int) {
	r.t.Helper()
	_, stderr, status = execute(r.t, sigmatrace(r.t, append(append([]string{"merge"}, options...), r.path)...))
	return stderr, status
}

// results are the files that a merge writes, without their times.
func (r *run) results() map[string]string {
	r.t.Helper()
	all := map[string]string{}
	for _, name := range []string{"trace.pftrace", "matrix.json", "manifest.json"} {
		text, err := os.ReadFile(filepath.Join(r.path, name))
		if err != nil && !os.IsNotExist(err) {
			r.t.Fatal(err)
		}
		if err == nil {
			all[name] = string(text)
		}
	}
	return all
}

// strays are the files of a run directory that belong to nothing.
func (r *run) strays() []string {
	r.t.Helper()
	entries, err := os.ReadDir(r.path)
	if err != nil {
		r.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if !slices.Contains([]string{"capture", "manifest.json", "matrix.json", "profile.resolved", "trace.pftrace"}, e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names
}

// A merge gives the same bytes on any number of cores and however often it is repeated, and changes no capture.
func TestSameBytes(t *testing.T) {
	r, _ := recordedRanks(t, 20)
	before := snapshot(t, filepath.Join(r.path, "capture"))
	var first map[string]string
	for _, options := range [][]string{{"-j", "1"}, {"-j", "2"}, {"-j", "8"}, {"-j", "8"}, {"--memory", "64MiB"}} {
		if errs, status := r.merge(options...); status != 0 {
			t.Fatalf("merge %v ended with %d: %s", options, status, errs)
		}
		got := r.results()
		if first == nil {
			first = got
		}
		if !maps.Equal(got, first) || len(got) != 3 {
			for name := range first {
				if got[name] != first[name] {
					t.Errorf("merge %v: %s differs from that of the first merge", options, name)
				}
			}
		}
	}
	same(t, "merged", before, snapshot(t, filepath.Join(r.path, "capture")))
	if s := r.strays(); len(s) > 0 {
		t.Errorf("left behind: %v", s)
	}
	var other map[string]json.RawMessage
	for _, name := range []string{"matrix.json", "manifest.json"} {
		if err := json.Unmarshal([]byte(first[name]), &other); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// F41: captures that are cut off, damaged, foreign or of a newer version are named with file and offset; the rest is merged; nothing is
// deleted or overwritten.
func TestDamage(t *testing.T) {
	r, truth := recordedRanks(t, 120)
	victim := captures(t, r.path)[1]
	rel, err := filepath.Rel(r.path, victim)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(victim)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	changed := func(at int, b ...byte) []byte {
		c := bytes.Clone(whole)
		copy(c[at:], b)
		return c
	}
	const block, blockHeader = 4096, 64 // the file's header, behind which the blocks begin, and theirs
	f, err := capture.Open(victim)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Chunks()[0].Flags&capture.Closed == 0 {
		t.Fatal("the first chunk is not full: it needs more rounds")
	}
	event := int(f.Chunks()[0].Offset) + blockHeader + 20
	for _, c := range []struct {
		name    string
		content []byte
		file    string // "": in the place of a rank's capture
		partly  bool   // what can still be read of the file may count
		reason  string
	}{
		{name: "cut in a block", content: whole[:block+70000], partly: true, reason: "ends"},
		{name: "cut in the header", content: whole[:1000], reason: "header"},
		{name: "empty", content: nil, reason: "empty"},
		{name: "foreign", content: program, reason: "not a sigmatrace capture"},
		{name: "newer", content: changed(8, 2), reason: "version"},
		{name: "a byte of an event changed", content: changed(event, whole[event]^0x40), partly: true, reason: "checksum"},
		{name: "a block's header overwritten", content: changed(block, bytes.Repeat([]byte{0xa5}, 64)...), partly: true},
		{name: "a foreign file beside them", content: program, file: "1.1.0.capture", reason: "not a sigmatrace capture"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			r := copyOf(t, r)
			path := filepath.Join(r.path, rel)
			if c.file != "" {
				path = filepath.Join(filepath.Dir(path), c.file)
			}
			if err := os.WriteFile(path, c.content, 0o600); err != nil {
				t.Fatal(err)
			}
			before := snapshot(t, filepath.Join(r.path, "capture"))
			errs, status := r.merge()
			if status != 3 || !strings.Contains(errs, path) || !strings.Contains(errs, "offset ") {
				t.Errorf("merge ended with %d and does not say what is wrong with %s: %s", status, path, errs)
			}
			i := r.info()
			if len(i.Damaged) == 0 || i.Damaged[0].File != path || i.Damaged[0].Offset == nil || !strings.Contains(strings.ToLower(i.Damaged[0].Reason), strings.ToLower(c.reason)) {
				t.Errorf("damaged: %s, want %s and the offset, because of %s", show(i.Damaged), path, c.reason)
			}
			if len(i.Ranks.Incomplete) == 0 || i.Exact {
				t.Errorf("called complete: %+v", i.Ranks)
			}
			least, most := totals{}, totals{}
			for pid, v := range truth {
				for op, n := range v {
					most.add(op, n)
					if c.file != "" || pid != pidOf(t, victim) {
						least.add(op, n)
					}
				}
			}
			got := i.layer("ucp")
			if !c.partly {
				equal(t, "the other captures", got, least)
			}
			for op := range most {
				if got[op].Count < least[op].Count || got[op].Count > most[op].Count {
					t.Errorf("%s: %v, the whole captures have %v and all %v", op, got[op], least[op], most[op])
				}
			}
			same(t, "merged", before, snapshot(t, filepath.Join(r.path, "capture")))
			if got := r.results(); len(got) != 3 {
				t.Errorf("results: %v", slices.Collect(maps.Keys(got)))
			}
		})
	}
}

func show(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// mounted mounts a tmpfs of a size, with a run in it.
func mounted(t *testing.T, r *run, size string) *run {
	t.Helper()
	if err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+size, "none", r.dir).Run(); err != nil {
		t.Skipf("no file system can be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := exec.Command("umount", "-l", r.dir).Run(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// F63: on a full disk a merge fails, says so, and leaves no half result; what an earlier merge wrote stays.
func TestDiskFull(t *testing.T) {
	notQuick(t)
	source, _ := recordedRanks(t, 30)
	first := copyOf(t, source)
	if errs, status := first.merge(); status != 0 {
		t.Fatalf("merge ended with %d: %s", status, errs)
	}
	for _, merged := range []bool{false, true} {
		t.Run(fmt.Sprintf("merged before %v", merged), func(t *testing.T) {
			c := *source
			c.t, c.dir = t, t.TempDir()
			r := mounted(t, &c, "32m")
			c.path = filepath.Join(c.dir, "run")
			if err := os.CopyFS(c.path, os.DirFS(source.path)); err != nil {
				t.Fatal(err)
			}
			if merged {
				if errs, status := r.merge(); status != 0 {
					t.Fatalf("merge ended with %d: %s", status, errs)
				}
			}
			want := first.results()
			filler := filepath.Join(r.dir, "filler")
			size := fill(t, filler)
			before, captured, failures := r.results(), snapshot(t, filepath.Join(r.path, "capture")), 0
			// More and more room, so that the merge comes to its end everywhere once.
			for ; ; failures++ {
				errs, status := r.merge()
				if status == 0 {
					break
				}
				if status != 1 || !strings.Contains(errs, "no space left") {
					t.Fatalf("merge ended with %d: %s", status, errs)
				}
				if s := r.strays(); len(s) > 0 {
					t.Fatalf("with %d pages free: left behind: %v", failures, s)
				}
				got := r.results()
				for _, name := range []string{"trace.pftrace", "matrix.json", "manifest.json"} {
					if got[name] != before[name] && got[name] != want[name] {
						t.Errorf("with %d pages free: %s is neither the old one nor whole", failures, name)
					}
				}
				size -= 4096
				if err := os.Truncate(filler, size); err != nil {
					t.Fatal(err)
				}
			}
			if failures < 3 {
				t.Errorf("the disk was full for %d merges only", failures)
			}
			same(t, "full disk", captured, snapshot(t, filepath.Join(r.path, "capture")))
			if got := r.results(); !maps.Equal(got, want) {
				t.Error("with room again, the results are not those of the first merge")
			}
		})
	}
}

// fill writes until nothing more fits, and returns the size of what it has written.
func fill(t *testing.T, path string) int64 {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, n := range []int{1 << 20, 4096} {
		for err == nil {
			_, err = f.Write(make([]byte, n))
		}
		if perr, ok := err.(*fs.PathError); !ok || perr.Err != syscall.ENOSPC {
			t.Fatal(err)
		}
		err = nil
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// F63: a run that cannot be written to can be looked at and exported elsewhere, and a merge of it fails without harm.
func TestReadOnly(t *testing.T) {
	source, truth := recordedRanks(t, 3)
	c := *source
	c.t, c.dir = t, t.TempDir()
	r := mounted(t, &c, "64m")
	c.path = filepath.Join(c.dir, "run")
	if err := os.CopyFS(c.path, os.DirFS(source.path)); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command("mount", "-o", "remount,ro", r.dir).Run(); err != nil {
		t.Fatal(err)
	}
	errs, status := r.merge()
	if status != 1 || !strings.Contains(errs, "read-only") {
		t.Errorf("merge ended with %d: %s", status, errs)
	}
	equal(t, "info of a read-only run", r.info().layer("ucp"), sum(truth))
	elsewhere := filepath.Join(t.TempDir(), "trace")
	if _, errs, status := execute(t, sigmatrace(t, "export", "-o", elsewhere, r.path)); status != 0 {
		t.Errorf("export ended with %d: %s", status, errs)
	}
	if errs, status := source.merge(); status != 0 {
		t.Fatalf("merge ended with %d: %s", status, errs)
	}
	text, err := os.ReadFile(elsewhere)
	if err != nil || string(text) != source.results()["trace.pftrace"] {
		t.Errorf("the trace of the read-only run is another: %v", err)
	}
}
