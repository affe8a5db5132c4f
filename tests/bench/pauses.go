package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// fsyncs keeps the file system of dir busy: 64 KiB written and forced to the disk, again and again, until the context ends. It returns
// how many there were.
func fsyncs(ctx context.Context, dir string) (n int, err error) {
	f, err := os.CreateTemp(dir, "fsync")
	if err != nil {
		return 0, err
	}
	defer func() {
		err = errors.Join(err, f.Close(), os.Remove(f.Name()))
	}()
	block := make([]byte, 64<<10)
	for ; ctx.Err() == nil; n++ {
		if _, err := f.WriteAt(block, int64(n%64)*int64(len(block))); err != nil {
			return n, err
		}
		if err := f.Sync(); err != nil {
			return n, err
		}
		if n%64 == 63 { // so that blocks are given out anew, which the journal sees
			if err := f.Truncate(0); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// spread is what testdata/pauses.c says of one run.
type spread struct {
	records                 float64
	median, p9999, worst    float64 // ns
	overMillisecond         float64
	ownWorst, ownOverAMilli float64 // without those in which the scheduler gave the processor to others
	sleeps                  float64
}

// pauseRuns are the variants: where the run directory and the memory are, and how often there is a record.
var pauseRuns = []struct {
	name, gap string
	sets      []string
	tmpfs     bool
}{
	{"disk", "1000", []string{"record.place=disk"}, false},
	{"disk_slow", "20000", []string{"record.place=disk"}, false}, // few records: pages are written out while they are written to
	{"disk_1MiB_chunks", "1000", []string{"record.place=disk", "record.chunk=1MiB"}, false},
	{"memory", "1000", []string{"record.place=memory"}, false},
	{"memory_slow", "20000", []string{"record.place=memory"}, false},
	{"memory_flood", "0", []string{"record.place=memory"}, false},
	{"tmpfs", "1000", nil, true},
}

// journaled mounts an ext4 file system with a journal, as most have, on a loop device; the scratch folder's own where none can be mounted.
func (b *bench) journaled() (dir, kind string, unmount func() error) {
	none := func() error { return nil }
	dir, image := filepath.Join(b.dir, "journaled"), filepath.Join(b.dir, "image")
	if os.MkdirAll(dir, 0o700) != nil || os.WriteFile(image, nil, 0o600) != nil || os.Truncate(image, 4<<30) != nil {
		return b.dir, "the scratch folder", none
	}
	if _, err := b.command(nil, "mkfs.ext4", "-q", "-F", image); err != nil {
		return b.dir, "the scratch folder", none
	}
	if _, err := b.command(nil, "mount", "-o", "loop", image, dir); err != nil {
		return b.dir, "the scratch folder", none
	}
	return dir, "ext4 on a loop device", func() error { return unix.Unmount(dir, 0) }
}

// apart is a folder with the recorder's parts as objects of their own: a program that calls the recorder itself has to call the one that is preloaded,
// and the objects that hold all of it export none.
func (b *bench) apart() (string, error) {
	dir := filepath.Join(b.dir, "apart")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	for _, pattern := range []string{"libsigmatrace.so", "provider-*.so"} {
		libs, err := filepath.Glob(filepath.Join(b.build, "lib/sigmatrace", pattern))
		if err != nil {
			return "", err
		}
		for _, lib := range libs {
			if err := os.Symlink(lib, filepath.Join(dir, filepath.Base(lib))); err != nil {
				return "", err
			}
		}
	}
	return dir, nil
}

// pauses measures how long single records take at worst while another process forces data to the same disk: recorded to that disk, to
// memory with a launcher that copies it to that disk, and on tmpfs alone. All variants and the same loop without recording take turns
// under the same load.
func pauses(b *bench) (err error) {
	program, err := b.compile("pauses", "-lsigmatrace")
	if err != nil {
		return err
	}
	apart, err := b.apart()
	if err != nil {
		return err
	}
	memory, err := os.MkdirTemp("/dev/shm", "sigmatrace-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(memory)
	disk, kind, unmount := b.journaled()
	defer func() { err = errors.Join(err, unmount()) }()
	one := func(s *spread, args ...string) error {
		out, err := b.command([]string{"SIGMATRACE_LIBDIR=" + apart}, args...)
		if err != nil {
			return err
		}
		var o spread
		if _, err = fmt.Sscan(out, &o.records, &o.median, &o.p9999, &o.worst, &o.overMillisecond, &o.ownWorst, &o.ownOverAMilli, &o.sleeps); err != nil {
			return fmt.Errorf("%q: %w", out, err)
		}
		s.records += o.records
		s.median, s.p9999 = max(s.median, o.median), max(s.p9999, o.p9999)
		s.worst, s.ownWorst = max(s.worst, o.worst), max(s.ownWorst, o.ownWorst)
		s.overMillisecond += o.overMillisecond
		s.ownOverAMilli += o.ownOverAMilli
		s.sleeps += o.sleeps
		return nil
	}
	ctx, stop := context.WithCancel(b.ctx)
	defer stop()
	type load struct {
		n   int
		err error
	}
	done := make(chan load, 1)
	began := time.Now()
	go func() {
		n, err := fsyncs(ctx, disk)
		done <- load{n, err}
	}()
	const rounds, seconds = 3, "3"
	with, without := make([]spread, len(pauseRuns)), make([]spread, len(pauseRuns)) // the worst round of each
	round := func(n int) error {
		for i, r := range pauseRuns {
			if err := one(&without[i], program, "none", seconds, r.gap); err != nil {
				return err
			}
			dir := map[bool]string{false: disk, true: memory}[r.tmpfs]
			run := filepath.Join(dir, fmt.Sprintf("run-%d-%d", n, i))
			args := []string{filepath.Join(b.build, "bin/sigmatrace"), "launch", "-p", "full", "--no-merge", "-o", run, "--set", "record.budget=1GiB"}
			for _, s := range r.sets {
				args = append(args, "--set", s)
			}
			if err := one(&with[i], append(args, "--", program, "record", seconds, r.gap)...); err != nil {
				return err
			}
			if err := os.RemoveAll(run); err != nil {
				return err
			}
		}
		return nil
	}
	for n := range rounds {
		if err = round(n); err != nil {
			break
		}
	}
	stop()
	l := <-done
	if err = errors.Join(err, l.err); err != nil {
		return err
	}
	for i, r := range pauseRuns {
		w, o := with[i], without[i]
		const of = "the same loop without recording"
		command := "sigmatrace launch -p full " + strings.Join(r.sets, " ") + " -- pauses record " + seconds + " " + r.gap
		b.print("pauses_"+r.name+"_p99.99", w.p9999/1e3, "us", o.p9999/1e3, of, command)
		b.print("pauses_"+r.name+"_worst", w.worst/1e3, "us", o.worst/1e3, of, command)
		b.print("pauses_"+r.name+"_over_1ms", w.overMillisecond, "records", o.overMillisecond, of, command)
		b.print("pauses_"+r.name+"_worst_not_preempted", w.ownWorst/1e3, "us", o.ownWorst/1e3, of, command)
		b.print("pauses_"+r.name+"_over_1ms_not_preempted", w.ownOverAMilli, "records", o.ownOverAMilli, of, command)
		b.print("pauses_"+r.name+"_sleeps", w.sleeps, "waits in the kernel", o.sleeps, of, command)
		b.print("pauses_"+r.name+"_records", w.records, "records", -1, "", command)
	}
	b.print("pauses_load", float64(l.n)/time.Since(began).Seconds(), "fsync/s", -1, "", "write 64 KiB, fsync; "+kind)
	return nil
}
