package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sigmatrace/sigmatrace/launcher/mover"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/profiles"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

// collectTime is how long a node has at the end of its last task. The plugin ends what takes a second more.
const collectTime = 4 * time.Second

// The measure of the way from a node to the run directory: all nodes measure at once, as they collect at once.
const (
	probeBytes = 8 << 20
	probeTime  = 100 * time.Millisecond // of writing; the wait for the disk comes on top
	probeLeast = 64 << 10
)

func slurmNodeCommand() *cli.Command {
	return &cli.Command{Name: "node", Usage: "decide where this node's tasks have their captures until the last has ended: prints local or shared", ArgsUsage: "RUN",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "part", Usage: "the tasks are `HOST.JOB.STEP`"},
			&cli.IntFlag{Name: "tasks", Usage: "the step has `N` tasks here", Value: 1},
			&cli.BoolFlag{Name: "no-ranks", Usage: "its tasks are no ranks but start some"}},
		Action: slurmNode}
}

// keepsOnNodes says whether a profile wants captures to be on the nodes while a step runs.
func keepsOnNodes(res *profiles.Resolved) bool {
	return res.Text("record.scratch") != "" || res.Text("record.place") == "memory"
}

// slurmNode writes the account of a node, and the flat profile of its recorders where that is another than the run's.
func slurmNode(c *cli.Context) error {
	part := c.String("part")
	if err := rundir.CheckPart(part); err != nil || c.NArg() != 1 {
		return &usageError{err: errors.Join(err, errors.New("node takes --part and one run directory"))}
	}
	dir, err := rundir.Open(c.Args().First())
	if err != nil {
		return err
	}
	m, err := dir.ReadManifest()
	if err != nil {
		return err
	}
	n := &rundir.Node{Part: part, Host: nodeName(), Place: rundir.PlaceShared, Ranks: max(slurmWorld(c.Int("tasks"), m.Run.Command), 1), Seconds: collectTime.Seconds()}
	if c.Bool("no-ranks") {
		n.Ranks = max(n.Ranks, mostOnANode(os.Getenv("SLURM_JOB_CPUS_PER_NODE")), mostOnANode(os.Getenv("SLURM_TASKS_PER_NODE")))
	}
	if start := mover.StartTime(os.Getppid()); start != "" {
		n.Owner = fmt.Sprintf("%d.%s", os.Getppid(), start)
	}
	ch := &choice{dir: dir, node: n, value: func(key string) string { return m.Profile.Values[key].Value }}
	if err := ch.choose(); err != nil {
		return err
	}
	if n.Place != rundir.PlaceShared {
		if err := ch.settle(); err != nil {
			os.Remove(n.Directory) // empty
			n.Place, n.Reason, n.Directory = rundir.PlaceShared, err.Error(), ""
		}
	}
	if err := dir.WriteNode(n); err != nil {
		return err
	}
	answer := "local"
	if n.Place == rundir.PlaceShared {
		answer = "shared"
	}
	_, err = fmt.Fprintln(c.App.Writer, answer)
	return err
}

// nodeName is this host's, as the plugin has it in the names of parts.
func nodeName() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return strings.ReplaceAll(name, "/", "_")
}

// mostOnANode is the largest number in what Slurm writes of all nodes: "4(x2),3". 0 where there is none.
func mostOnANode(text string) (most int) {
	for word := range strings.SplitSeq(text, ",") {
		number, _, _ := strings.Cut(word, "(")
		if n, err := strconv.Atoi(number); err == nil {
			most = max(most, n)
		}
	}
	return most
}

// choice is the choice of a place.
type choice struct {
	dir   *rundir.Dir
	node  *rundir.Node
	value func(key string) string
}

// choose takes the first place that the profile wants and from which everything could be moved in time.
func (c *choice) choose() error {
	budget, err := profiles.ParseSize(c.value("record.budget"))
	if err != nil {
		return fmt.Errorf("record.budget of the run: %w", err)
	}
	n := c.node
	n.Bytes = times(budget, n.Ranks)
	if n.Bandwidth, err = bandwidth(c.dir.NodesPath(), n.Part); err != nil {
		n.Reason = fmt.Sprintf("the way to the run directory cannot be measured: %v", err)
		return nil
	}
	if movable := float64(n.Bandwidth) * collectTime.Seconds(); float64(n.Bytes) > movable {
		n.Reason = fmt.Sprintf("%s of %d ranks could not be moved in %v at %s/s", profiles.FormatSize(n.Bytes), n.Ranks, collectTime, formatMiB(n.Bandwidth))
		return nil
	}
	var refused []string
	if c.value("record.place") == "memory" {
		reason := c.memory()
		if reason == "" {
			return nil
		}
		refused = append(refused, reason)
	}
	if c.value("record.scratch") != "" {
		reason := c.scratch()
		if reason == "" {
			return nil
		}
		refused = append(refused, reason)
	}
	n.Reason = strings.Join(refused, "; ")
	return nil
}

// memory takes the node's memory, where that has ample room for all that its ranks may write.
func (c *choice) memory() (refused string) {
	if reason := c.tooMuchFor(sharedMemory); reason != "" {
		return reason
	}
	return c.take(rundir.PlaceMemory, sharedMemory, "record.place is memory, and there is ample room")
}

// tooMuchFor says why a memory file system does not have ample room for the ranks: what it holds is taken from the job's memory.
func (c *choice) tooMuchFor(folder string) string {
	limit, reason := ampleMemory(folder, math.MaxInt64)
	if reason == "" && c.node.Bytes > limit {
		reason = fmt.Sprintf("%d ranks may write %s, and a run may take %s of memory here", c.node.Ranks, profiles.FormatSize(c.node.Bytes), formatMiB(limit))
	}
	return reason
}

// scratch takes the node's scratch directory, where that has room.
func (c *choice) scratch() (refused string) {
	facts, err := profiles.CurrentFacts(os.Getenv, time.Now())
	if err != nil {
		return err.Error()
	}
	base, err := facts.Expand(c.value("record.scratch"))
	if err != nil {
		return fmt.Sprintf("record.scratch: %v", err)
	}
	var st unix.Statfs_t
	switch err := unix.Statfs(base, &st); {
	case !filepath.IsAbs(base):
		return fmt.Sprintf("scratch directory %s is no absolute path", base)
	case err != nil:
		return fmt.Sprintf("scratch directory %s: %v", base, err)
	}
	if free := int64(min(st.Bavail, math.MaxInt64/uint64(st.Bsize))) * st.Bsize; free < c.node.Bytes { //nolint:gosec // bounded
		return fmt.Sprintf("scratch directory %s has %s free, and %d ranks may write %s", base, formatMiB(free), c.node.Ranks, profiles.FormatSize(c.node.Bytes))
	}
	if uint32(st.Type) == tmpfsMagic { //nolint:gosec // f_type has 32 bits of meaning
		if reason := c.tooMuchFor(base); reason != "" {
			return reason
		}
	}
	return c.take(rundir.PlaceScratch, base, "record.scratch is set")
}

// take makes the part's own directory below base.
func (c *choice) take(place, base, why string) (refused string) {
	name := c.dir.Name() + "-" + c.node.Part
	for i := 1; ; i++ {
		path := filepath.Join(base, "sigmatrace-node-"+name)
		if i > 1 {
			path += "-" + strconv.Itoa(i)
		}
		err := rundir.MkdirPrivate(path)
		if errors.Is(err, fs.ErrExist) && i < 100 {
			continue
		}
		if err != nil {
			return err.Error()
		}
		c.node.Place, c.node.Directory = place, path
		c.node.Reason = fmt.Sprintf("%s; %s of %d ranks can be moved in %v at %s/s", why, profiles.FormatSize(c.node.Bytes), c.node.Ranks, collectTime, formatMiB(c.node.Bandwidth))
		return ""
	}
}

// settle writes the flat profile of the part's recorders: the run's, with another directory.
func (c *choice) settle() error {
	text, err := c.dir.ReadResolved()
	if err != nil {
		return err
	}
	if _, err := profiles.ParseFlat(text); err != nil {
		return fmt.Errorf("reading the run's profile: %w", err)
	}
	var b bytes.Buffer
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "capture.directory=") {
			line = "capture.directory=" + c.node.Directory + "\n"
		}
		b.WriteString(line)
	}
	if _, err := profiles.ParseFlat(b.Bytes()); err != nil {
		return fmt.Errorf("profile for the node: %w", err)
	}
	return rundir.WriteWhole(c.dir.NodeResolvedPath(c.node.Part), writerOf(b.Bytes()))
}

// bandwidth is how many bytes a second go from here to the folder, on disk: of what compresses not at all, and little of what is free.
func bandwidth(folder, part string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(folder, &st); err != nil {
		return 0, err
	}
	most := min(probeBytes, int64(min(st.Bavail/8, math.MaxInt64/uint64(st.Bsize)))*st.Bsize) //nolint:gosec // bounded
	if most < probeLeast {
		return 0, unix.ENOSPC
	}
	path := filepath.Join(folder, ".probe-"+part)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	defer os.Remove(path)
	block := make([]byte, min(1<<20, most))
	source := rand.NewChaCha8([32]byte{})
	source.Read(block) //nolint:errcheck // never fails
	start, written := time.Now(), int64(0)
	for written < most && time.Since(start) < probeTime {
		n, err := f.Write(block[:min(int64(len(block)), most-written)])
		if err != nil {
			return 0, err
		}
		written += int64(n)
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	return int64(float64(written) / max(time.Since(start).Seconds(), 1e-6)), nil
}

// times multiplies, and stays at the largest number.
func times(size int64, n int) int64 {
	if size > math.MaxInt64/int64(max(n, 1)) {
		return math.MaxInt64
	}
	return size * int64(n)
}

// formatMiB writes a size that is not meant to the byte.
func formatMiB(n int64) string {
	if n >= 1<<20 {
		n = n >> 20 << 20
	}
	return profiles.FormatSize(n)
}
