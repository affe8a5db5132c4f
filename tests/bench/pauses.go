package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
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
	overMillisecond, sleeps float64
}

// pauses measures how long single records take at worst, while another process forces data to the same disk: with the capture on that
// disk and on tmpfs. The baseline is the same loop without recording, in turn with it, under the same load.
func pauses(b *bench) error {
	program, err := b.compile("pauses", "-lsigmatrace")
	if err != nil {
		return err
	}
	memory, err := os.MkdirTemp("/dev/shm", "sigmatrace-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(memory)
	one := func(env []string, what, seconds, gap string) (s spread, err error) {
		out, err := b.command(env, program, what, seconds, gap)
		if err != nil {
			return s, err
		}
		_, err = fmt.Sscan(out, &s.records, &s.median, &s.p9999, &s.worst, &s.overMillisecond, &s.sleeps)
		return s, err
	}
	for _, c := range []struct{ name, dir, chunk, gap string }{
		{"disk", "", "65536", "1000"},
		{"disk_slow", "", "65536", "20000"}, // few records: pages are written out while they are written to
		{"disk_1MiB_chunks", "", "1048576", "1000"},
		{"tmpfs", memory, "65536", "1000"},
	} {
		env, err := b.profileIn(c.dir, "pauses-"+c.name, "full", "record.chunk="+c.chunk)
		if err != nil {
			return err
		}
		ctx, stop := context.WithCancel(b.ctx)
		type load struct {
			n   int
			err error
		}
		done := make(chan load, 1)
		began := time.Now()
		go func() {
			n, err := fsyncs(ctx, b.dir)
			done <- load{n, err}
		}()
		var with, without spread // the worst round of each
		for range 3 {
			for _, m := range []struct {
				to   *spread
				what string
			}{{&without, "none"}, {&with, "record"}} {
				s, err := one(env, m.what, "3", c.gap)
				if err != nil {
					stop()
					<-done
					return err
				}
				m.to.records += s.records
				m.to.median = max(m.to.median, s.median)
				m.to.p9999 = max(m.to.p9999, s.p9999)
				m.to.worst = max(m.to.worst, s.worst)
				m.to.overMillisecond += s.overMillisecond
				m.to.sleeps += s.sleeps
			}
		}
		stop()
		l := <-done
		if l.err != nil {
			return fmt.Errorf("forcing data to the disk: %w", l.err)
		}
		command := "pauses record 3 " + c.gap
		const of = "the same loop without recording"
		b.print("pauses_"+c.name+"_p99.99", with.p9999/1e3, "us", without.p9999/1e3, of, command)
		b.print("pauses_"+c.name+"_worst", with.worst/1e3, "us", without.worst/1e3, of, command)
		b.print("pauses_"+c.name+"_over_1ms", with.overMillisecond, "records", without.overMillisecond, of, command)
		b.print("pauses_"+c.name+"_sleeps", with.sleeps, "waits in the kernel", without.sleeps, of, command)
		b.print("pauses_"+c.name+"_load", float64(l.n)/time.Since(began).Seconds(), "fsync/s", -1, "", "write 64 KiB, fsync")
		if err := os.RemoveAll(filepath.Join(b.dir, "pauses-"+c.name)); err != nil {
			return err
		}
	}
	return nil
}
