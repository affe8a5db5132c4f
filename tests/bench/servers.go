package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sigmatrace/sigmatrace/tests/ports"
)

var errNoServer = errors.New("does not listen")

// two runs a server, waits until it listens, then its client, both with env, and returns what the client prints. lines makes their command
// lines for a port. A port that was free a moment ago may be somebody else's by now: then another one is tried.
func (b *bench) two(env []string, lines func(port string) (server, client []string)) (string, error) {
	for try := 1; ; try++ {
		port, err := ports.Free()
		if err != nil {
			return "", err
		}
		server, client := lines(strconv.Itoa(port))
		out, err := b.pair(env, port, server, client)
		if try == 3 || !errors.Is(err, errNoServer) {
			return out, err
		}
	}
}

func (b *bench) pair(env []string, port int, server, client []string) (string, error) {
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	var errs strings.Builder
	cmd := exec.CommandContext(ctx, server[0], server[1:]...)
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), &errs
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	deadline := time.After(20 * time.Second)
	for !listens(cmd.Process.Pid, port) {
		select {
		case err := <-ended:
			return "", fmt.Errorf("%s %w: it ended (%v)\n%s", strings.Join(server, " "), errNoServer, err, &errs)
		case <-deadline:
			cancel()
			<-ended
			return "", fmt.Errorf("%s %w\n%s", strings.Join(server, " "), errNoServer, &errs)
		case <-time.After(10 * time.Millisecond):
		}
	}
	out, err := b.command(env, client...)
	if err != nil {
		cancel()
		<-ended
		return "", err
	}
	if err := <-ended; err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(server, " "), err, &errs)
	}
	return out, nil
}

// listens tells whether a process listens at a port. It looks at the kernel's tables: to connect would be taken for the client.
func listens(pid, port int) bool {
	sockets := map[string]bool{}
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return false
	}
	for _, f := range files {
		if to, err := os.Readlink(f); err == nil {
			sockets[to] = true
		}
	}
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		// sl local_address rem_address st tx:rx tr:tm retrnsmt uid timeout inode ...; state 0A listens (proc(5))
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) > 9 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) && f[3] == "0A" && sockets["socket:["+f[9]+"]"] {
				return true
			}
		}
	}
	return false
}
