package ofi

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/tests/sources"
)

// The provider, the recorder and the program under each sanitizer: every operation, threads, forks, contexts. Everything is counted as
// without them.
func TestSanitizers(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	own := slices.Concat(sources.Recorder(t), sources.Provider(t, "libfabric"))
	suppressions, err := filepath.Abs("testdata/tsan.supp")
	if err != nil {
		t.Fatal(err)
	}
	for name, flags := range map[string][]string{
		"address": {"-fsanitize=address,undefined", "-fno-sanitize-recover=all"},
		"thread":  {"-fsanitize=thread"},
	} {
		t.Run(name, func(t *testing.T) {
			lib := compile(t, append(append(flags, "-fPIC", "-shared", "-ftls-model=initial-exec", "-Wl,-Bsymbolic"), append(own, "-lpthread", "-ldl")...)...)
			program := func(files ...string) string {
				args := append(append(flags, "-DLINKED"), files...)
				return compile(t, append(args, lib, "-lfabric", "-ldl", "-lpthread")...)
			}
			// not by LD_PRELOAD: the sanitizer's own runtime must come first
			line := func(argv ...string) []string {
				return append([]string{"env", "-u", "LD_PRELOAD", "ASAN_OPTIONS=detect_leaks=0", "TSAN_OPTIONS=halt_on_error=1 suppressions=" + suppressions}, argv...)
			}
			client := program("../clients/ofi-client.c", "../clients/ofi-ops.c")
			for _, mode := range modes {
				t.Run(mode, func(t *testing.T) { sanitized(t, mode, line(client, "-n", "3")) })
			}
			// The thread sanitizer does not follow forks, and takes what the threads of libfabric's provider sockets do to the program's
			// buffers, unseen as their locks are, for races.
			clients, kinds := []string{"-t 4", "-e msg", "-p shm"}, []string{"connections"}
			if name != "thread" {
				clients, kinds = append(clients, "-p sockets"), append(kinds, "scalable", "shared", "alias")
				// one thread: the address sanitizer's allocator is locked for ever in a child forked while another thread is in it
				t.Run("fork", func(t *testing.T) { talked(t, 2, line(program("testdata/user.c"))...) })
			}
			for _, args := range clients {
				t.Run(args, func(t *testing.T) {
					sanitized(t, "full", line(append([]string{client, "-n", "3"}, strings.Fields(args)...)...))
				})
			}
			contexts := program("../clients/ofi-contexts.c")
			for _, kind := range kinds {
				t.Run(kind, func(t *testing.T) { sanitized(t, "full", line(contexts, kind)) })
			}
		})
	}
}

// sanitized runs a client and holds the account to what it says that it sent.
func sanitized(t *testing.T, mode string, argv []string) {
	t.Helper()
	r := &run{t: t, dir: t.TempDir()}
	if out, err := r.command(mode, argv...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r.check("sent")
}
