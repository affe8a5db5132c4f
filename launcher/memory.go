package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sigmatrace/sigmatrace/launcher/mover"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
	"github.com/sigmatrace/sigmatrace/profiles"
	"golang.org/x/sys/unix"
)

const (
	sharedMemory = "/dev/shm"
	ampleRoom    = 1 << 30 // free bytes that it must have: others need it too, NCCL and MPI above all
	leastMemory  = 8 << 20 // with less there is no use in it
	tmpfsMagic   = 0x01021994

	memoryAlready = "captures are in memory already"

	// endOfRanks is how long processes of the command may take to be gone when it has ended.
	endOfRanks = 2 * time.Second
	// othersTurn is how long another process may be copying.
	othersTurn = 10 * time.Second
)

// memory decides whether captures have memory on this host, and how many bytes in all its processes. reason: why not.
func (s *session) memory(p *placement) (limit int64, reason string) {
	fsName, network := fileSystem(p.directory)
	back := s.profile.Text("record.back_end")
	switch {
	case s.profile.Text("record.place") == "disk":
		return 0, "record.place is disk"
	case p.remote:
		return 0, "ranks may be on other hosts"
	case back == "written":
		return 0, "record.back_end is written"
	case network && back == "auto":
		return 0, "captures on a network file system (" + fsName + ") are written with write(2)"
	case fsName == "tmpfs":
		return 0, memoryAlready
	}
	return ampleMemory(sharedMemory, s.profile.Size("record.memory"))
}

// ampleMemory is how much of a memory file system a run may take: little of what is free there, of what the machine has left, and of what
// the control group may take. 0 and a reason where that is too little.
func ampleMemory(folder string, most int64) (limit int64, reason string) {
	var st unix.Statfs_t
	if err := unix.Statfs(folder, &st); err != nil {
		return 0, fmt.Sprintf("%s: %v", folder, err)
	}
	if uint32(st.Type) != tmpfsMagic { //nolint:gosec // f_type has 32 bits of meaning
		return 0, folder + " is no memory file system"
	}
	if err := unix.Access(folder, unix.W_OK|unix.X_OK); err != nil {
		return 0, fmt.Sprintf("%s cannot be written to: %v", folder, err)
	}
	free := int64(min(st.Bavail, math.MaxInt64/uint64(st.Bsize))) * st.Bsize //nolint:gosec // bounded
	if free < ampleRoom {
		return 0, fmt.Sprintf("%s has %s free, less than %s", folder, profiles.FormatSize(free>>20<<20), profiles.FormatSize(ampleRoom))
	}
	available := memoryAvailable()
	group := groupLimit("/proc/self/cgroup", "/sys/fs/cgroup")
	if limit = min(most, free/16, available/16, group/20); limit < leastMemory {
		return 0, fmt.Sprintf("a run may take %s of memory here, less than %s", profiles.FormatSize(max(limit, 0)>>20<<20), profiles.FormatSize(leastMemory))
	}
	return limit, ""
}

// memoryAvailable is what the machine can give away without swapping; more than there can be where that is not known.
func memoryAvailable() int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return math.MaxInt64
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if text, is := strings.CutPrefix(lines.Text(), "MemAvailable:"); is {
			if kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(text, "kB")), 10, 64); err == nil {
				return kib << 10
			}
		}
	}
	return math.MaxInt64
}

// groupLimit is the smallest memory limit of this process's control groups, of either version; as in preload/memory.c.
func groupLimit(list, mount string) int64 {
	limit := int64(math.MaxInt64)
	text, err := os.ReadFile(list)
	if err != nil {
		return limit
	}
	for line := range strings.Lines(string(text)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) != 3 {
			continue
		}
		root, name := mount, "memory.max"
		if part[1] != "" {
			if !strings.Contains(","+part[1]+",", ",memory,") {
				continue
			}
			root, name = filepath.Join(mount, "memory"), "memory.limit_in_bytes"
		}
		for group := filepath.Clean("/" + part[2]); ; group = filepath.Dir(group) {
			if text, err := os.ReadFile(filepath.Join(root, group, name)); err == nil {
				if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
					limit = min(limit, n)
				}
			}
			if group == "/" {
				break
			}
		}
	}
	return limit
}

// memoryFolder is the folder for the captures' memory of a run: of no other run, whoever's.
func (s *session) memoryFolder(dir string) string {
	name := fmt.Sprintf("%d-%s-%s", s.facts.PID, s.start.UTC().Format("20060102T150405.000000Z"), filepath.Base(dir))
	return filepath.Join(sharedMemory, "sigmatrace-"+name[:min(len(name), 200)])
}

// makeMemory makes the folder for the captures' memory, or gives it up.
func (p *prepared) makeMemory(wanted string) error {
	if p.memory == "" {
		return nil
	}
	err := mover.Create(p.memory, p.memoryLimit)
	if err == nil {
		return nil
	}
	if wanted == "memory" {
		return fmt.Errorf("making room for captures in memory: %w", err)
	}
	p.withoutMemory = err.Error()
	p.memory, p.flat.Memory = "", ""
	return nil
}

// place says whether records go to memory first, and why not.
func (p *placement) place() string {
	if p.memory != "" {
		return fmt.Sprintf("records go to shared memory first (at most %s in %s) and from there to %s", profiles.FormatSize(p.memoryLimit), p.memory, p.directory)
	}
	return fmt.Sprintf("records go to %s at once, since %s", p.directory, p.withoutMemory)
}

// moving copies captures out of memory while the command runs; end stops that.
func (p *placement) moving() (end func() (left int, err error)) {
	none := func() (int, error) { return 0, nil }
	if p.memory == "" {
		return none
	}
	m, err := mover.Open(p.memory, p.directory)
	if err != nil {
		warn(os.Stderr, "", "captures stay in %s until sigmatrace merge: %v", p.memory, err)
		return none
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Run(ctx)
	}()
	return func() (int, error) {
		stop()
		<-done
		return m.End(endOfRanks)
	}
}

// fetchMemory copies what is in this host's memory of a run, and takes it away where the launcher is gone.
func fetchMemory(w io.Writer, dir *rundir.Dir) {
	folder, err := recordedMemory(dir)
	if err != nil || folder == "" {
		return
	}
	var own unix.Stat_t
	if err := unix.Lstat(folder, &own); err != nil || own.Mode&unix.S_IFMT != unix.S_IFDIR || own.Mode&0o077 != 0 || !ownedAs(&own, dir.Path()) {
		return
	}
	captures, err := recordedDirectory(dir)
	if err != nil || !isDirectory(captures) {
		captures = dir.Capture()
	}
	m, err := mover.Open(folder, captures)
	left := 0
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err == nil && m.Owner():
		left, err = m.End(endOfRanks)
	case err == nil:
		err = m.Copy(othersTurn) // the launcher is at work
	}
	tellLeft(w, dir, folder, left, err)
}

// ownedAs says whether a folder is this user's or that of the run: root may merge the run of somebody else.
func ownedAs(st *unix.Stat_t, run string) bool {
	var of unix.Stat_t
	return int(st.Uid) == os.Geteuid() || unix.Stat(run, &of) == nil && of.Uid == st.Uid
}

// tellLeft warns of captures that could not leave memory. Those of a run that somebody has removed go too: nobody would look for them.
func (p *placement) tellLeft(dir *rundir.Dir, left int, err error) {
	if _, gone := os.Lstat(p.directory); p.memory != "" && err != nil && errors.Is(gone, fs.ErrNotExist) {
		warn(os.Stderr, "", "%s was removed while the command ran: so is what was in memory", p.directory)
		os.RemoveAll(p.memory)
		return
	}
	tellLeft(os.Stderr, dir, p.memory, left, err)
}

// tellLeft warns of captures that could not leave memory.
func tellLeft(w io.Writer, dir *rundir.Dir, folder string, left int, err error) {
	again := "then run: sigmatrace merge " + quote(dir.Path())
	switch {
	case err != nil:
		warn(w, "see to it, "+again, "captures are still in memory, in %s: %v", folder, err)
	case left > 0:
		warn(w, "when they have ended, "+again, "%d processes of the run go on: the end of their captures is in memory, in %s", left, folder)
	}
}

// recordedMemory is the folder of captures' memory that the recorder was told: capture.memory of the flat profile.
func recordedMemory(dir *rundir.Dir) (string, error) {
	text, err := dir.ReadResolved()
	if err != nil {
		return "", err
	}
	pairs, err := profiles.ParseFlat(text)
	return pairs["capture.memory"], err
}
