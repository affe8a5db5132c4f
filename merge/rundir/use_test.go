package rundir

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What the merge at the run's end took stays whatever is merged later, and the later merge gives the same bytes.
func TestTimeOfTheMergeStays(t *testing.T) {
	dir := create(t)
	if err := dir.WriteManifest(example()); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	if err := dir.SetResult(json.RawMessage(`{"complete": true}`), Merge{End: at, Seconds: 1.5}); err != nil {
		t.Fatal(err)
	}
	if err := validate(t, dir); err != nil {
		t.Error(err)
	}
	before, err := os.ReadFile(dir.ManifestPath())
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.SetResult(json.RawMessage(`{"complete": true}`)); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(dir.ManifestPath()); err != nil || string(after) != string(before) {
		t.Errorf("%v\n%s\n%s", err, before, after)
	}
	if m, err := dir.ReadManifest(); err != nil || m.Merge == nil || *m.Merge != (Merge{at, 1.5}) {
		t.Errorf("%+v, %v", m, err)
	}
}

// A run that is in use has its captures locked, by any number of users, and has not afterwards.
func TestUseLocksTheCaptures(t *testing.T) {
	dir := create(t)
	free := func() bool {
		f, err := os.Open(dir.Capture())
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	}
	one, two := dir.Use(), dir.Use()
	one()
	if free() {
		t.Error("it is free while one of two uses it")
	}
	two()
	if !free() {
		t.Error("it is not free")
	}
	if err := os.RemoveAll(dir.Capture()); err != nil {
		t.Fatal(err)
	}
	dir.Use()() // where there are no captures there is nothing to lock
}
