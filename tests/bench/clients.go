package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// modes of a client's run; the first is the baseline, and all take turns.
var clientModes = []string{"off", "aggregate", "simple", "full", "lttng"}

// client is a real program that says what a call takes, in nanoseconds. run starts it with variables added to its environment; the
// numbers are those of metrics.
type client struct {
	name, provider, command string
	metrics                 []string
	run                     func(env []string) ([]float64, error)
}

const shm, tcp = "UCX_TLS=posix,sysv,self", "UCX_TLS=tcp,self"

// over names a transport in the lines.
func over(transport string) string { return map[string]string{shm: "_shm", tcp: "_tcp"}[transport] }

// perftest runs ucx_perftest and returns the named columns of its final line: iterations, percentile, average and overall latency (us),
// average and overall bandwidth, average and overall messages a second.
func (b *bench) perftest(env []string, columns []int, args ...string) ([]float64, error) {
	out, err := b.two(env, func(port string) (server, client []string) {
		line := append([]string{"ucx_perftest", "-p", port, "-f", "-v"}, args...)
		return line, append(slices.Clone(line), "127.0.0.1")
	})
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	cells := strings.Split(lines[len(lines)-1], ",")
	var values []float64
	for _, c := range columns {
		if c >= len(cells) {
			return nil, fmt.Errorf("ucx_perftest printed %q", out)
		}
		v, err := strconv.ParseFloat(cells[c], 64)
		if err != nil {
			return nil, fmt.Errorf("ucx_perftest printed %q: %w", out, err)
		}
		values = append(values, v)
	}
	return values, nil
}

func (b *bench) rate(transport, test string, n int) client {
	args := []string{"-t", test, "-s", "8", "-n", strconv.Itoa(n)}
	return client{"perftest_" + test + over(transport), "ucx", transport + " ucx_perftest " + strings.Join(args, " "),
		[]string{"message"}, func(env []string) ([]float64, error) {
			v, err := b.perftest(append(env, transport), []int{7}, args...)
			if err != nil {
				return nil, err
			}
			return []float64{1e9 / v[0]}, nil
		}}
}

func (b *bench) latency(transport, test string, n int) client {
	args := []string{"-t", test, "-s", "8", "-n", strconv.Itoa(n), "-R", "99"}
	return client{"perftest_" + test + over(transport), "ucx", transport + " ucx_perftest " + strings.Join(args, " "),
		[]string{"mean", "p99"}, func(env []string) ([]float64, error) {
			v, err := b.perftest(append(env, transport), []int{3, 1}, args...)
			if err != nil {
				return nil, err
			}
			return []float64{v[0] * 1e3, v[1] * 1e3}, nil
		}}
}

// timed is a client that prints median and p99 itself.
func (b *bench) timed(name, provider string, env []string, args ...string) client {
	return client{name, provider, strings.Join(append(slices.Clone(env), args...), " "), []string{"median", "p99"}, func(more []string) ([]float64, error) {
		out, err := b.command(append(more, env...), args...)
		if err != nil {
			return nil, err
		}
		var v [2]float64
		if _, err := fmt.Sscan(out, &v[0], &v[1]); err != nil {
			return nil, fmt.Errorf("%s printed %q: %w", args[0], out, err)
		}
		return v[:], nil
	}}
}

func (b *bench) allreduce(ranks int) client {
	program := filepath.Join(b.build, "tests/allreduce-client")
	args := []string{"mpirun", "--allow-run-as-root", "--oversubscribe", "-np", strconv.Itoa(ranks), "--mca", "plm", "isolated", "--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any",
		"--mca", "pml_ucx_devices", "any", "--mca", "btl", "^openib"}
	c := b.timed(fmt.Sprintf("allreduce_%d_ranks", ranks), "ucx", []string{"UCX_TLS=posix,sysv,self,tcp"}, append(args, program, strconv.Itoa(40000/ranks/ranks))...)
	c.command = fmt.Sprintf("mpirun -np %d allreduce-client %d", ranks, 40000/ranks/ranks)
	return c
}

// pingpong is libfabric's own; it says microseconds a transfer, of all transfers.
func (b *bench) pingpong(provider string) client {
	return client{"fi_pingpong_" + provider, "libfabric", "fi_pingpong -p " + provider + " -e rdm -I 20000 -S 64", []string{"transfer"}, func(env []string) ([]float64, error) {
		out, err := b.two(env, func(port string) (server, client []string) {
			line := []string{"fi_pingpong", "-p", provider, "-e", "rdm", "-I", "20000", "-S", "64"}
			return append(slices.Clone(line), "-B", port), append(line, "-P", port, "127.0.0.1")
		})
		if err != nil {
			return nil, err
		}
		lines := strings.Split(strings.TrimSpace(out), "\n") // bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec
		cells := strings.Fields(lines[len(lines)-1])
		if len(cells) != 8 {
			return nil, fmt.Errorf("fi_pingpong printed %q", out)
		}
		v, err := strconv.ParseFloat(cells[6], 64)
		return []float64{v * 1e3}, err
	}}
}

// clients measures what recording adds to real programs in each mode, beside LTTng-UST tracepoints on the same calls.
func clients(b *bench) error {
	call := func(what, transport string, n int) client {
		name := "call_" + what + over(transport)
		return b.timed(name, "ucx", []string{transport}, filepath.Join(b.build, "tests/call-client"), "-o", what, "-n", strconv.Itoa(n))
	}
	send := func(provider string, n int) client {
		return b.timed("call_ofi_send_"+provider, "libfabric", nil, filepath.Join(b.build, "tests/ofi-call-client"), "-p", provider, "-n", strconv.Itoa(n))
	}
	table := []client{
		call("put", shm, 200000), call("tag", shm, 200000), call("am", shm, 200000), call("tag", tcp, 20000),
		b.rate(shm, "tag_bw", 200000), b.rate(tcp, "tag_bw", 50000), b.rate(shm, "ucp_put_bw", 200000),
		b.latency(shm, "tag_lat", 50000), b.latency(tcp, "tag_lat", 10000),
		b.allreduce(2), b.allreduce(4),
		send("tcp", 20000), send("shm", 200000), b.pingpong("tcp"), b.pingpong("shm"),
	}
	built, err := b.allProviders()
	if err != nil {
		return err
	}
	wraps := map[string]string{} // by provider
	for provider, source := range map[string]string{"ucx": "calls", "libfabric": "calls_ofi"} {
		if wraps[provider], err = b.compile(source, "-shared", "-fPIC", "-llttng-ust", "-ldl"); err != nil {
			return err
		}
	}
	return b.lttng(filepath.Join(b.dir, "lttng-clients"), true, func() error {
		for i := range table {
			c := &table[i]
			if !slices.Contains(built, c.provider) {
				fmt.Fprintf(os.Stderr, "bench: %s is left out: provider %s is not built\n", c.name, c.provider)
				continue
			}
			if err := b.interleaved(c, wraps[c.provider]); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
		return nil
	})
}

// interleaved runs a client in all modes in turn and prints its lines.
func (b *bench) interleaved(c *client, wraps string) error {
	const rounds = 3
	environment := map[string][]string{"off": nil, "lttng": {"LD_PRELOAD=" + wraps, "LTTNG_UST_REGISTER_TIMEOUT=-1"}}
	for _, mode := range clientModes[1:4] {
		config, err := b.profile("clients-"+mode, mode)
		if err != nil {
			return err
		}
		environment[mode] = append(config, b.preload(c.provider))
	}
	values := map[string][][]float64{} // by mode, by metric
	for round := range rounds {
		for i := range clientModes {
			mode := clientModes[(i+round)%len(clientModes)]
			v, err := c.run(environment[mode])
			if err != nil {
				return fmt.Errorf("mode %s: %w", mode, err)
			}
			if values[mode] == nil {
				values[mode] = make([][]float64, len(v))
			}
			for k := range v {
				values[mode][k] = append(values[mode][k], v[k])
			}
		}
		for _, mode := range clientModes[1:4] {
			if err := os.RemoveAll(filepath.Join(b.dir, "clients-"+mode)); err != nil {
				return err
			}
			if err := os.Mkdir(filepath.Join(b.dir, "clients-"+mode), 0o700); err != nil {
				return err
			}
		}
	}
	for k, metric := range c.metrics {
		off := median(values["off"][k])
		b.print(c.name+"_"+metric+"_off", off, "ns", -1, "", c.command)
		lttng := median(values["lttng"][k]) - off
		b.print(c.name+"_"+metric+"_added_lttng", lttng, "ns", -1, "", c.command)
		for _, mode := range clientModes[1:4] {
			b.print(c.name+"_"+metric+"_added_"+mode, median(values[mode][k])-off, "ns", lttng, "what LTTng-UST adds", c.command)
		}
	}
	return nil
}
