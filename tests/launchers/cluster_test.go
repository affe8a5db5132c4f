package launchers

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/tests/needs"
	"github.com/sigmatrace/sigmatrace/tests/ports"
)

// cluster is Slurm with two nodes, n1 and n2, on this machine: a munged, a slurmctld and two slurmd, each slurmd with its own host name
// and its own disk at scratch. All are children of the test and end with it.
type cluster struct {
	dir     string // shared by the nodes, as a home directory is
	scratch string // a disk of each node's own
	environ []string
}

const slurmConf = `ClusterName=test
SlurmctldHost=localhost
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=DIR/munge.sock
SlurmctldPort=PORT0
StateSaveLocation=DIR/state
SlurmctldPidFile=DIR/slurmctld.pid
SlurmdPidFile=DIR/slurmd.%n.pid
SlurmdSpoolDir=DIR/spool/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerParameters=bf_interval=1
TaskProlog=DIR/prolog
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
TmpFS=DIR/tmp/%n
KillWait=5
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port=PORT1 CPUs=4 State=UNKNOWN
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port=PORT2 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=n[1-2] Default=YES MaxTime=10:00 State=UP
`

// prolog is run by Slurm before each task, with the task's environment; what it prints may set variables of the task.
const prolog = "#!/bin/sh\nLC_ALL=C ls / >/dev/null || exit 1\necho export PROLOG=done\n"

func startCluster(t *testing.T) *cluster {
	t.Helper()
	need(t, "srun", "salloc", "slurmctld", "slurmd", "munged", "unshare")
	if os.Getuid() != 0 {
		t.Skip("needs root, for nodes with host names and disks of their own")
	}
	dir, err := os.MkdirTemp("", "slurm") // short: it is in the name of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := &cluster{dir: dir, scratch: filepath.Join(dir, "scratch"), environ: append(overUCX, "SLURM_CONF="+filepath.Join(dir, "slurm.conf"))}
	for _, sub := range []string{"", "state", "spool/n1", "spool/n2", "tmp/n1", "tmp/n2", "scratch"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	conf := strings.ReplaceAll(slurmConf, "DIR", dir)
	for i := range 3 {
		conf = strings.ReplaceAll(conf, fmt.Sprintf("PORT%d", i), fmt.Sprint(ports.Of(t)))
	}
	key := make([]byte, 1024)
	if _, err := rand.Read(key); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]struct {
		text string
		mode os.FileMode
	}{"slurm.conf": {conf, 0o644}, "cgroup.conf": {"CgroupPlugin=cgroup/v1\n", 0o644}, "munge.key": {string(key), 0o400}, "prolog": {prolog, 0o755}} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(file.text), file.mode); err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	c.daemon(t, "munged", "munged", "-F", "--force", "--socket="+in("munge.sock"), "--key-file="+in("munge.key"), "--pid-file="+in("munged.pid"),
		"--log-file="+in("munged.log"), "--seed-file="+in("munged.seed"))
	c.wait(t, "munged's socket", func() bool { _, err := os.Stat(in("munge.sock")); return err == nil })
	c.daemon(t, "slurmctld", "slurmctld", "-D")
	for _, node := range []string{"n1", "n2"} {
		c.daemon(t, "slurmd-"+node, "unshare", "--uts", "--mount", "sh", "-c", `hostname $1 && mount -t tmpfs tmpfs "$2" && exec slurmd -D -N $1`, "node", node, c.scratch)
	}
	c.wait(t, "two idle nodes", func() bool {
		return strings.TrimSpace(execute(t, dir, c.environ, "sinfo", "-h", "-t", "idle", "-o", "%D").stdout) == "2"
	})
	return c
}

// daemon starts a program that ends with the test.
func (c *cluster) daemon(t *testing.T, name string, argv ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(c.dir, name+".out"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, append(os.Environ(), c.environ...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }() //nolint:errcheck // its status says nothing of the test
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended
		select {
		case <-ended:
		case <-time.After(60 * time.Second):
			cmd.Process.Kill() //nolint:errcheck // see above
			<-ended
		}
		log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			t.Logf("%s:\n%s", name, strings.Join(lines[max(0, len(lines)-10):], "\n"))
		}
	})
}

func (c *cluster) wait(t *testing.T, what string, is func() bool) {
	t.Helper()
	for range 900 {
		if is() {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("no %s within 30 s", what)
}

// run runs a command line in a new folder that the nodes share, inside an allocation of both where allocated.
func (c *cluster) run(t *testing.T, allocated bool, argv ...string) (result, string) {
	t.Helper()
	dir, err := os.MkdirTemp(c.dir, "run")
	if err != nil {
		t.Fatal(err)
	}
	if allocated {
		argv = append([]string{"salloc", "--quiet", "--nodes=2"}, argv...)
	}
	return execute(t, dir, c.environ, argv...), dir
}

// launch is `sigmatrace launch` of a command line, with the run directory "run" in the folder.
func (c *cluster) launch(t *testing.T, allocated bool, options []string, argv ...string) (result, string) {
	t.Helper()
	line := append([]string{needs.Built(t, "bin/sigmatrace"), "launch", "-p", "full", "--providers", "ucx", "-o", "run"}, options...)
	r, dir := c.run(t, allocated, append(append(line, "--"), argv...)...)
	return r, filepath.Join(dir, "run")
}
