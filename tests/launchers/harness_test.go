// Package launchers runs the built sigmatrace with real parallel launchers: Slurm, on nodes of its own that live in this test alone,
// MPICH, Open MPI and PyTorch. It needs root, for the nodes' host names and disks.
package launchers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/tests/needs"
)

func need(t *testing.T, programs ...string) {
	t.Helper()
	needs.Time(t)
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
}

// result is a command that has ended.
type result struct {
	stdout, stderr string
	status         int
}

// execute runs a command line in dir, two minutes at most.
func execute(t *testing.T, dir string, environ []string, argv ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Dir, cmd.Env = dir, append(os.Environ(), environ...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, errs.String())
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// succeed fails the test where the status is not 0.
func (r result) succeed(t *testing.T) result {
	t.Helper()
	if r.status != 0 {
		t.Fatalf("status %d\n%s\n%s", r.status, r.stdout, r.stderr)
	}
	return r
}

// says fails the test where standard error has no line of this beginning.
func (r result) says(t *testing.T, beginning string) {
	t.Helper()
	if !strings.Contains("\n"+r.stderr, "\n"+beginning) {
		t.Errorf("standard error has no line %q:\n%s", beginning, r.stderr)
	}
}

// account is what `sigmatrace info --json` says of a run directory.
func account(t *testing.T, run string) *merge.Info {
	t.Helper()
	r := execute(t, ".", nil, needs.Built(t, "bin/sigmatrace"), "info", "--json", run).succeed(t)
	var info merge.Info
	if err := json.Unmarshal([]byte(r.stdout), &info); err != nil {
		t.Fatal(err)
	}
	return &info
}

// complete checks that each expected rank is there, whole, and that every message at the UCP layer has both its ends.
func complete(t *testing.T, run string, ranks int) *merge.Info {
	t.Helper()
	info := account(t, run)
	if info.Ranks.Expected == nil || *info.Ranks.Expected != ranks || info.Ranks.Complete != ranks || !info.Complete() {
		t.Errorf("ranks %+v, want %d complete", info.Ranks, ranks)
	}
	if info.Flows.Matched == 0 || len(info.Flows.Unmatched) > 0 {
		t.Errorf("messages %+v, want all matched", info.Flows)
	}
	return info
}

// alive are the proofs of life below a run directory, as "node rank source", each once: a task's prolog and its shells have its rank too.
func alive(t *testing.T, run string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(run, "capture", "*", "alive"))
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, name := range names {
		records, err := capture.ReadAlive(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range records {
			list = append(list, fmt.Sprintf("%s %d %s", a.Hostname, a.Rank, a.RankSource))
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// nodes are the hosts that captures are of.
func nodes(t *testing.T, run string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(run, "capture", "*", "*.capture"))
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, f := range files {
		host, _, _ := strings.Cut(filepath.Base(filepath.Dir(f)), ".")
		list = append(list, host)
	}
	slices.Sort(list)
	return list
}

// overUCX makes Open MPI take UCX over tcp, as on a cluster without shared memory between nodes.
var overUCX = []string{"UCX_TLS=tcp,self", "OMPI_MCA_pml=ucx", "OMPI_MCA_pml_ucx_tls=any", "OMPI_MCA_pml_ucx_devices=any", "OMPI_MCA_btl=^openib",
	"OMPI_MCA_osc=ucx", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"}
