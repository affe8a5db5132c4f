// Package ports finds ports for servers that tests start.
package ports

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"testing"
)

// first is above the ports that well-known services have, and those that tests choose themselves.
const first = 20000

// Free returns a TCP port that nothing listens on at any address. It is below those that the system gives to connections (ip_local_port_range, ip(7)): one of these could be
// another program's before the server listens.
func Free() (int, error) {
	var from, to int
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	if _, err := fmt.Sscan(string(text), &from, &to); err != nil || from <= first {
		return 0, fmt.Errorf("find a free port below the system's own %q: %w", text, errors.Join(err, errors.ErrUnsupported))
	}
	for range 1000 {
		port := first + rand.IntN(from-first)
		if l, err := net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("find a free port: nothing can listen on 1,000 ports from %d to %d", first, from)
}

// Of returns such a port for a test.
func Of(t testing.TB) int {
	t.Helper()
	port, err := Free()
	if err != nil {
		t.Fatal(err)
	}
	return port
}
