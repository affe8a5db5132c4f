package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
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

// lttng runs fn with an LTTng session of the tracepoint: kept in memory (snapshot) or written to dir. It starts a session daemon
// where none answers (as root there is one for the machine), and ends the one that it started.
func (b *bench) lttng(dir string, snapshot bool, fn func() error) error {
	env := []string{"LTTNG_HOME=" + b.dir}
	if _, err := b.command(env, "lttng", "list"); err != nil {
		pid := filepath.Join(b.dir, "sessiond.pid")
		daemon := exec.CommandContext(b.ctx, "lttng-sessiond", "--background", "--no-kernel", "--pidfile", pid) // returns when it is ready
		daemon.Env = append(os.Environ(), env...)
		if err := daemon.Run(); err != nil { // its output goes nowhere: what stays behind would hold a pipe open
			return fmt.Errorf("starting lttng-sessiond: %w", err)
		}
		defer endDaemon(pid)
	}
	session := fmt.Sprintf("sigmatrace-bench-%d", os.Getpid()) // others may be measuring too
	create := []string{"lttng", "create", session, "-o", dir}
	if snapshot {
		create = append(create, "--snapshot")
	}
	defer func() { _, _ = b.command(env, "lttng", "destroy", session) }()
	for _, c := range [][]string{create,
		{"lttng", "enable-channel", "-u", "--subbuf-size", "4M", "--num-subbuf", "8", "c"},
		{"lttng", "enable-event", "-u", "-c", "c", "sigmatrace_bench:*"}, {"lttng", "start"}} {
		if _, err := b.command(env, c...); err != nil {
			return err
		}
	}
	return fn()
}

// endDaemon ends the daemon whose number is in a file, and waits until it has gone.
func endDaemon(pidfile string) {
	text, err := os.ReadFile(pidfile)
	if err != nil {
		return
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return
	}
	for i := range 100 {
		if syscall.Kill(n, map[bool]syscall.Signal{true: syscall.SIGTERM, false: 0}[i == 0]) != nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
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
	const instructions = "valgrind --tool=callgrind encode record N"
	b.print("encoder_instructions", record, "instructions/event", fixed, "fixed 104-byte record", instructions)
	err = b.lttng(filepath.Join(b.dir, "lttng-snapshot"), true, func() error {
		tracepoint, err := b.perEvent(nil, 10000, 30000, nil, func(n int) []string { return []string{peer, strconv.Itoa(n)} })
		if err != nil {
			return err
		}
		b.print("encoder_instructions_lttng", record, "instructions/event", tracepoint, "LTTng-UST tracepoint", instructions)
		return b.times(ours, encode, peer)
	})
	if err != nil {
		return err
	}

	// Bytes on disk of the same requests.
	const n = 200000
	out := filepath.Join(b.dir, "lttng-written")
	err = b.lttng(out, false, func() error {
		_, err := b.number(nil, peer, strconv.Itoa(n))
		return err
	})
	if err != nil {
		return err
	}
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
	b.print("encoder_bytes", bytes/events, "bytes/event", float64(size(out))/n, "LTTng-UST trace on disk", "encode record "+strconv.Itoa(n))
	return nil
}

// times lets recording, its peers and the bare clock read take turns.
func (b *bench) times(ours []string, encode, peer string) error {
	var record, fixed, tracepoint, none []float64
	for range 7 {
		for _, m := range []struct {
			to   *[]float64
			env  []string
			args []string
		}{
			{&record, ours, []string{encode, "record", "1000000"}}, {&fixed, ours, []string{encode, "fixed", "1000000"}},
			{&tracepoint, nil, []string{peer, "300000"}}, {&none, ours, []string{encode, "none", "1000000"}},
		} {
			v, err := b.number(m.env, m.args...)
			if err != nil {
				return err
			}
			*m.to = append(*m.to, v)
		}
	}
	const command = "encode record 1000000"
	b.print("encoder_time", median(record), "ns/event", median(fixed), "fixed 104-byte record", command)
	b.print("encoder_time_lttng", median(record), "ns/event", median(tracepoint), "LTTng-UST tracepoint", command)
	b.print("clock_read_time", median(none), "ns/event", -1, "", "encode none 1000000")
	return nil
}
