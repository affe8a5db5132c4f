package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// captured returns the bytes of all event chunks below a capture directory (headers included, definitions and unused reserve not) and
// the number of events in them.
func captured(dir string) (bytes, events float64, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*", "*.capture"))
	if err != nil || len(names) == 0 {
		return 0, 0, fmt.Errorf("no capture in %s (%v)", dir, err)
	}
	for _, name := range names {
		f, err := capture.Open(name)
		if err != nil {
			return 0, 0, err
		}
		var d capture.Decoder
		var ev capture.Event
		chunks := f.Chunks()
		for i := range chunks {
			bytes += 64 + float64(chunks[i].Committed)
			d.Reset(f, &chunks[i], catalogue.Default)
			for {
				ok, err := d.Next(&ev)
				if err != nil {
					return 0, 0, err
				}
				if !ok {
					break
				}
				if ev.ID != 0 {
					events++
				}
			}
		}
		if err := f.Close(); err != nil {
			return 0, 0, err
		}
	}
	return bytes, events, nil
}

// launched traces a command in full mode and returns bytes and events of its captures.
func (b *bench) launched(name, providers string, env []string, args ...string) (bytes, events float64, err error) {
	run := filepath.Join(b.dir, name)
	full := append([]string{filepath.Join(b.build, "bin/sigmatrace"), "launch", "-p", "full", "--providers", providers, "--no-merge", "-o", run, "--"}, args...)
	if _, err := b.command(env, full...); err != nil {
		return 0, 0, err
	}
	return captured(filepath.Join(run, "capture"))
}

func (b *bench) softhca() []string {
	return []string{"LD_LIBRARY_PATH=" + filepath.Join(b.build, "softhca"), "SOFTHCA_SHM=/dev/shm/sigmatrace-bench-" + fmt.Sprint(os.Getpid())}
}

// bytesPerEvent measures real programs in full mode; the baseline is the same fields as plain 8-byte numbers.
func bytesPerEvent(b *bench) error {
	env := b.softhca()
	defer os.Remove(strings.TrimPrefix(env[1], "SOFTHCA_SHM="))
	server, err := b.start(env, "ib_write_bw", "-n", "5000", "-s", "4096", "-p", "18777")
	if err != nil {
		return err
	}
	bytes, events, err := b.launched("ib_write_bw", "ibverbs", env, "ib_write_bw", "-n", "5000", "-s", "4096", "-p", "18777", "127.0.0.1")
	if err != nil {
		return err
	}
	if err := server.Wait(); err != nil {
		return fmt.Errorf("ib_write_bw server: %w", err)
	}
	const plain = 13 * 8
	b.print("bytes_ib_write_bw", bytes/events, "bytes/event", plain, "13 plain numbers", "sigmatrace launch -p full --providers ibverbs -- ib_write_bw -n 5000 -s 4096")

	for _, c := range []struct {
		name string
		args []string
	}{{"bytes_alltoall_4_ranks", []string{"-a", "-n", "1000"}}, {"bytes_mpi_app_4_ranks", []string{"-n", "200"}}} {
		mpi := []string{"mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "4", "--mca", "plm", "isolated", "--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any",
			"--mca", "pml_ucx_devices", "any", "--mca", "btl", "^openib", "-x", "UCX_TLS=posix,sysv,self,tcp", filepath.Join(b.build, "tests/mpi-app")}
		bytes, events, err = b.launched(c.name, "ucx", nil, append(mpi, c.args...)...)
		if err != nil {
			return err
		}
		b.print(c.name, bytes/events, "bytes/event", plain, "13 plain numbers", "sigmatrace launch -p full --providers ucx -- mpirun -np 4 mpi-app "+strings.Join(c.args, " "))
	}
	return nil
}
