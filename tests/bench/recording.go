package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// compile builds one C file of testdata.
func (b *bench) compile(name string, flags ...string) (string, error) {
	out := filepath.Join(b.dir, name)
	lib := filepath.Join(b.build, "lib/sigmatrace")
	_, err := b.command(nil, append([]string{"gcc", "-std=gnu11", "-O2", "-Ipreload", "-Itests/bench/testdata", "-o", out, "tests/bench/testdata/" + name + ".c",
		"-L", lib, "-Wl,-rpath," + lib}, flags...)...)
	return out, err
}

// lttng starts a session daemon of its own in the scratch folder, with a session that keeps its events in memory (snapshot) or
// writes them (write). stop ends both.
func (b *bench) lttng(kind string) (env []string, stop func(), err error) {
	home := filepath.Join(b.dir, "lttng-"+kind)
	if err := os.MkdirAll(home, 0o700); err != nil {
		return nil, nil, err
	}
	env = []string{"LTTNG_HOME=" + home, "HOME=" + home}
	pid := filepath.Join(home, "pid")
	daemon := exec.CommandContext(b.ctx, "lttng-sessiond", "--background", "--no-kernel", "--pidfile", pid) // returns when it is ready
	daemon.Env = append(os.Environ(), env...)
	if err := daemon.Run(); err != nil { // its output goes nowhere: what stays behind would hold a pipe open
		return nil, nil, fmt.Errorf("starting lttng-sessiond: %w", err)
	}
	stop = func() {
		_, _ = b.command(env, "lttng", "destroy", "--all")
		if text, err := os.ReadFile(pid); err == nil {
			var n int
			if _, err := fmt.Sscan(string(text), &n); err == nil {
				if p, err := os.FindProcess(n); err == nil {
					_ = p.Signal(os.Interrupt)
				}
			}
		}
	}
	create := []string{"lttng", "create", "bench", "-o", filepath.Join(home, "trace")}
	if kind == "snapshot" {
		create = append(create, "--snapshot")
	}
	for _, c := range [][]string{create,
		{"lttng", "enable-channel", "-u", "--subbuf-size", "4M", "--num-subbuf", "8", "c"},
		{"lttng", "enable-event", "-u", "-c", "c", "sigmatrace_bench:*"}, {"lttng", "start"}} {
		if _, err := b.command(env, c...); err != nil {
			stop()
			return nil, nil, err
		}
	}
	return env, stop, nil
}

func size(dir string) (total int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				total += info.Size()
			}
		}
		return nil
	})
	return total
}

// recording measures one full-field verbs request (13 numbers): our encoder, a fixed-size record, and LTTng-UST.
func recording(b *bench) error {
	encode, err := b.compile("encode", "-lsigmatrace")
	if err != nil {
		return err
	}
	peer, err := b.compile("lttng", "-llttng-ust", "-ldl")
	if err != nil {
		return err
	}
	ours, err := b.profile("recording", "full")
	if err != nil {
		return err
	}
	theirs, stop, err := b.lttng("snapshot")
	if err != nil {
		return err
	}
	defer stop()

	one := func(what string) func(int) []string {
		return func(n int) []string { return []string{encode, what, strconv.Itoa(n)} }
	}
	record, err := b.perEvent(ours, 10000, 60000, nil, one("record"))
	if err != nil {
		return err
	}
	fixed, err := b.perEvent(ours, 10000, 60000, nil, one("fixed"))
	if err != nil {
		return err
	}
	tracepoint, err := b.perEvent(theirs, 10000, 30000, nil, func(n int) []string { return []string{peer, strconv.Itoa(n)} })
	if err != nil {
		return err
	}
	command := "valgrind --tool=callgrind encode record N"
	b.print("encoder_instructions", record, "instructions/event", fixed, "fixed 104-byte record", command)
	b.print("encoder_instructions_lttng", record, "instructions/event", tracepoint, "LTTng-UST tracepoint", command)

	var r, f, l, none []float64
	for range 7 {
		for _, m := range []struct {
			to   *[]float64
			env  []string
			args []string
		}{{&r, ours, one("record")(1000000)}, {&f, ours, one("fixed")(1000000)}, {&l, theirs, []string{peer, "300000"}}, {&none, ours, one("none")(1000000)}} {
			v, err := b.number(m.env, m.args...)
			if err != nil {
				return err
			}
			*m.to = append(*m.to, v)
		}
	}
	b.print("encoder_time", median(r), "ns/event", median(f), "fixed 104-byte record", "encode record 1000000")
	b.print("encoder_time_lttng", median(r), "ns/event", median(l), "LTTng-UST tracepoint", "encode record 1000000")
	b.print("clock_read_time", median(none), "ns/event", -1, "", "encode none 1000000")

	// Bytes on disk of the same requests.
	written, stopWritten, err := b.lttng("write")
	if err != nil {
		return err
	}
	defer stopWritten()
	const n = 200000
	if _, err := b.number(written, peer, strconv.Itoa(n)); err != nil {
		return err
	}
	if _, err := b.command(written, "lttng", "stop"); err != nil {
		return err
	}
	time.Sleep(100 * time.Millisecond)
	disk := float64(size(filepath.Join(b.dir, "lttng-write", "trace"))) / n
	env, err := b.profile("size", "full")
	if err != nil {
		return err
	}
	if _, err := b.number(env, encode, "record", strconv.Itoa(n)); err != nil {
		return err
	}
	bytes, events, err := captured(filepath.Join(b.dir, "size"))
	if err != nil {
		return err
	}
	b.print("encoder_bytes", bytes/events, "bytes/event", disk, "LTTng-UST trace on disk", "encode record "+strconv.Itoa(n))
	return nil
}
