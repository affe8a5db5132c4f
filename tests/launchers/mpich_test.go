package launchers

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/tests/needs"
)

func TestMPICH(t *testing.T) {
	need(t, "mpiexec.hydra", "mpicc.mpich")
	dir := t.TempDir()
	app := filepath.Join(dir, "app")
	if out, err := exec.Command("mpicc.mpich", "-O2", "-Wno-stringop-overflow", "-o", app, "../clients/mpi-app.c").CombinedOutput(); err != nil {
		t.Fatalf("building the client: %v\n%s", err, out)
	}
	sigmatrace := needs.Built(t, "bin/sigmatrace")
	// MPICH 4.0 over UCX's tcp hangs in MPI_Finalize now and then, with and without a recorder.
	launch := func(run string, argv ...string) result {
		line := []string{sigmatrace, "launch", "-p", "full", "--providers", "ucx", "-o", filepath.Join(dir, run), "--"}
		return execute(t, dir, []string{"UCX_TLS=posix,sysv,self"}, append(line, argv...)...)
	}
	t.Run("Ranks", func(t *testing.T) {
		r := launch("ranks", "mpirun.mpich", "-n", "3", app, "-n", "5").succeed(t)
		if !strings.Contains(r.stdout, "mpi-app ok 3 5") {
			t.Errorf("the program printed\n%s", r.stdout)
		}
		complete(t, filepath.Join(dir, "ranks"), 3)
	})
	t.Run("Contexts", func(t *testing.T) {
		launch("contexts", "mpiexec.hydra", "-genvlist", "PATH,UCX_TLS", "-n", "1", app, "-n", "2", ":", "-n", "2", "-env", "A", "1", app, "-n", "2").succeed(t)
		complete(t, filepath.Join(dir, "contexts"), 3)
	})
	// The estimate is that of the run above, to the number of events.
	t.Run("SizeOfTheLastRun", func(t *testing.T) {
		line := []string{sigmatrace, "launch", "--dry-run", "-p", "full", "--providers", "ucx", "-o", filepath.Join(dir, "next"), "--", "mpirun.mpich", "-n", "3", app, "-n", "5"}
		out := execute(t, dir, nil, line...).succeed(t).stdout
		if !strings.Contains(out, "# trace size of the last run of this command, "+filepath.Join(dir, "ranks")+" (") {
			t.Errorf("got\n%s", out)
		}
	})
}
