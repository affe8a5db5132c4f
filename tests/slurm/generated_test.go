//go:build slurm

package slurm

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/capture/capturetest"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// generated makes a run of many operations, of ranks that put, in the job's folder: real programs take minutes for that on this machine.
func (j *job) generated(t *testing.T, ranks, puts int) *rundir.Dir {
	t.Helper()
	dir, err := rundir.Create(filepath.Join(j.dir, "sigmatrace-generated"))
	if err != nil {
		t.Fatal(err)
	}
	for rank := range ranks {
		h := capture.Header{Pid: uint32(100 + rank), Hostname: "host" + string(rune('a'+rank%4)), Rank: int64(rank), World: int64(ranks), Mode: catalogue.ModeFull, StartTime: 5, ClockHz: 1e9, ClockFlags: 1}
		w, err := capturetest.Create(dir.Capture(), h, catalogue.Default)
		if err != nil {
			t.Fatal(err)
		}
		w.Define(100, catalogue.DefClockPair, catalogue.DomainTsc, uint64(90), uint64(110), uint64(1e18), uint64(1e9))
		w.Define(110, catalogue.DefUcpWorker, uint64(1), uint64(0))
		w.Define(120, catalogue.DefUcpEndpoint, uint64(2), uint64(1))
		th := w.Thread()
		for i := range uint64(puts) {
			th.Event(1000+100*i+uint64(rank), catalogue.EventUcpPut, []uint64{2, 8 + i%7, 0, 0, 0, 0, 0, 0, catalogue.UcpResultDone, 0, 10})
		}
		w.Aggregate(capture.Aggregate{Object: 2, Event: catalogue.EventUcpPut, First: 1000, Count: uint64(puts), Bytes: 8 * uint64(puts), Calls: uint64(puts)})
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := dir.WriteManifest(&rundir.Manifest{Run: rundir.Run{Name: dir.Name(), Command: []string{"generated"}}}); err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(dir.Path(), func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, 61001, 61001)
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// results are the names and contents of all that is in a run directory but captures.
func results(t *testing.T, dir *rundir.Dir) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir.Path(), func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir.Path(), path)
		if err != nil || d.IsDir() && name != "capture" {
			return err
		}
		if d.IsDir() {
			return fs.SkipDir
		}
		text, err := os.ReadFile(path)
		found[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
