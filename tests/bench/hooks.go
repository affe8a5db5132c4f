package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sigmatrace/sigmatrace/tests/objects"
)

// start begins a server whose client follows.
func (b *bench) start(env []string, args ...string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(b.ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	time.Sleep(time.Second) // the clients try once: their servers must be listening
	return cmd, nil
}

// hooks measures whole hooks, from entry to return without the real call, in real programs: instructions executed inside our libraries
// for one more request. The baseline is the same program's instructions in all other code for it.
func hooks(b *bench) error {
	for _, mode := range []string{"aggregate", "simple", "full"} {
		config, err := b.profile("hooks-"+mode, mode)
		if err != nil {
			return err
		}
		for _, c := range []struct {
			name, provider string
			env            []string
			args           func(int) []string
		}{
			{"ucp_put", "ucx", []string{"UCX_TLS=self"}, func(n int) []string {
				return []string{filepath.Join(b.build, "tests/burst-client"), "-l", "ucp", "-f", filepath.Join(b.dir, "published"), "-n", strconv.Itoa(n)}
			}},
			{"verbs_write", "ibverbs", b.softhca(), func(n int) []string {
				return []string{filepath.Join(b.build, "tests/burst-client"), "-l", "verbs", "-f", filepath.Join(b.dir, "published"), "-n", strconv.Itoa(n)}
			}},
		} {
			env := append(append(config, b.preload(c.provider)), c.env...)
			in, err := b.perEvent(env, 5000, 20000, []string{filepath.Base(objects.Whole("", c.provider))}, c.args)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			all, err := b.perEvent(env, 5000, 20000, nil, c.args)
			if err != nil {
				return err
			}
			b.print("hook_"+c.name+"_"+mode, in, "instructions/request", all-in, "the program's own", "valgrind --tool=callgrind "+strings.Join(c.args(20000), " "))
		}
	}
	return nil
}
