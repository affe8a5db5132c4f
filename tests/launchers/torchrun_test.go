package launchers

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/tests/needs"
)

// F22: the ranks of PyTorch's launcher are those that it gave them. Its agent inherits the recorder and leaves nothing.
func TestTorchrun(t *testing.T) {
	need(t, "torchrun")
	dir := t.TempDir()
	script := filepath.Join(dir, "train.py")
	if err := os.WriteFile(script, []byte("import os, sys\nos.execv(sys.argv[1], sys.argv[1:] + ['-f', 'published.' + os.environ['RANK']])\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Debian 12's PyTorch 1.13 starts nothing under its Python 3.11 but with -r and -t. Later releases spell options with "-" too.
	line := []string{needs.Built(t, "bin/sigmatrace"), "launch", "-p", "full", "--providers", "ucx", "-o", "run", "--",
		"torchrun", "-r", "1", "-t", "1", "--nproc_per_node", "2", script, needs.Built(t, "tests/burst-client"), "-l", "ucp", "-n", "1000"}
	execute(t, dir, []string{"UCX_TLS=posix,sysv,self", "OMP_NUM_THREADS=1"}, line...).succeed(t)
	run := filepath.Join(dir, "run")
	info := account(t, run)
	if info.Ranks.Expected == nil || *info.Ranks.Expected != 2 || info.Ranks.Complete != 2 || info.Processes.Total != 2 || !info.Complete() {
		t.Errorf("ranks %+v, processes %+v", info.Ranks, info.Processes)
	}
	if got, want := info.Operations["ucp"]["put"], (merge.Count{Count: 2000, Bytes: 64 * 2000}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	// A rank's record is made by its Python, and again by what that becomes.
	if got, want := fmt.Sprint(alive(t, run)), fmt.Sprintf("[%[1]s 0 RANK %[1]s 1 RANK]", host); got != want {
		t.Errorf("proofs of life %s, want %s", got, want)
	}
}
