package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// What launch says of file systems must be what the recorder does on them.
func TestNetworkFileSystemsAreTheRecorders(t *testing.T) {
	text, err := os.ReadFile("../preload/filesystem.c")
	if err != nil {
		t.Fatal(err)
	}
	_, list, found := strings.Cut(string(text), "static const long types[] = {")
	list, _, _ = strings.Cut(list, "};")
	var recorder, ours []uint32
	for _, m := range regexp.MustCompile(`0x[0-9A-Fa-f]+`).FindAllString(list, -1) {
		n, err := strconv.ParseUint(m, 0, 32)
		if err != nil {
			t.Fatal(err)
		}
		recorder = append(recorder, uint32(n))
	}
	for n := range networkFileSystems {
		ours = append(ours, n)
	}
	for n, name := range localFileSystems {
		if name == "zfs" { // written to as to the others, and local all the same
			ours = append(ours, n)
		}
	}
	slices.Sort(recorder)
	slices.Sort(ours)
	if !found || len(recorder) == 0 || !slices.Equal(recorder, ours) {
		t.Errorf("the recorder knows %x, launch %x", recorder, ours)
	}
}

func TestFileSystemOfADirectoryToCome(t *testing.T) {
	if name, network := fileSystem("/dev/shm/not/yet/there"); name != "tmpfs" || network {
		t.Errorf("got %s, network %v, want tmpfs", name, network)
	}
	if name, _ := fileSystem("/proc/self/none"); name != "type 0x9fa0" {
		t.Errorf("got %s, want proc's number", name)
	}
}

func TestPlacementSaysWhereAndWhy(t *testing.T) {
	for want, p := range map[string]placement{
		"": {nodes: 1, fs: "nfs", network: true},
		"captures of 2 nodes go to the run directory by the written back end, since it is on a network file system (nfs)": {nodes: 2, remote: true, fs: "nfs", network: true},
		"captures of all nodes go to the run directory (xfs), since record.scratch is not set":                            {remote: true, fs: "xfs"},
		"captures of 1 node stay in /s/r on each, since record.scratch is set, until srun collects them":                  {nodes: 1, remote: true, collect: true, directory: "/s/r"},
	} {
		if got := p.line("auto"); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// The step must not inherit what the job asks for its own steps: number of tasks, binding, exclusive CPUs.
func TestCollectStep(t *testing.T) {
	environ := map[string]string{"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "SLURM_JOB_ID": "9", "SLURM_JOB_NUM_NODES": "3", "SLURM_NTASKS": "24",
		"SLURM_CPU_BIND": "cores", "SLURM_EXACT": "1", "SRUN_CPUS_PER_TASK": "4", "SLURMD_NODENAME": "n1"}
	argv, env := collectStep("/usr/bin/srun", "/opt/sigmatrace", "/runs/a b", environ)
	want := "/usr/bin/srun|--jobid=9|--nodes=3|--ntasks=3|--ntasks-per-node=1|--overlap|--mpi=none|--input=none|--immediate=60|" +
		"--job-name=sigmatrace-collect|--export=NONE|/opt/sigmatrace|collect|/runs/a b"
	if got := strings.Join(argv, "|"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if want := []string{"PATH=/bin", "SLURM_CONF=/etc/slurm.conf"}; !slices.Equal(env, want) {
		t.Errorf("got environment %q, want %q", env, want)
	}
}

func TestCollectTakesWhatIsThereOnce(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "scratch"), filepath.Join(dir, "capture")
	for _, d := range []string{filepath.Join(from, "n1"), to} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(from, "n1", "a.capture"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds nothing, as a node where no rank ran
		if err := collect(from, to); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(to, "n1", "a.capture")); err != nil || string(text) != "data" {
		t.Errorf("got %q, %v", text, err)
	}
	if _, err := os.Stat(from); !os.IsNotExist(err) {
		t.Errorf("the scratch directory is still there: %v", err)
	}
}

// A copy of a run directory names the first one's captures as its own. They stay where they are.
func TestCollectLeavesAnotherRunAlone(t *testing.T) {
	dir, err := rundir.Create(filepath.Join(t.TempDir(), "first"))
	if err != nil {
		t.Fatal(err)
	}
	fill(t, dir.Path(), map[string]string{"capture/n1/a.capture": "data", "profile.resolved": "sigmatrace.profile=1\ncapture.directory=" + dir.Capture() + "\n"})
	m := &rundir.Manifest{Profile: rundir.Profile{Values: map[string]rundir.ProfileValue{"record.scratch": {}}}}
	if err := dir.WriteManifest(m); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(copied, os.DirFS(dir.Path())); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(copied, "capture", "n1")); err != nil {
		t.Fatal(err)
	}
	if status := run([]string{"sigmatrace", "collect", copied}); status != 0 {
		t.Errorf("status %d", status)
	}
	holds(t, dir.Path(), map[string]string{"capture/n1/a.capture": "data"})
}
