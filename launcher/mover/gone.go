package mover

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// gone says whether no process can write to the file any more. In doubt one can.
func (f *file) gone() bool {
	var h [64]byte
	if _, err := f.in.ReadAt(h[:], 0); err != nil {
		return false
	}
	pid, namespace, start := binary.LittleEndian.Uint32(h[40:]), binary.LittleEndian.Uint64(h[48:]), binary.LittleEndian.Uint64(h[56:])
	var own unix.Stat_t
	if unix.Stat("/proc/self/ns/pid", &own) == nil && own.Ino == namespace {
		return ended(pid, start)
	}
	return !inUse(f.in)
}

// ended says whether the process of a pid and start time, in this namespace, has no memory any more. One that has executed another
// program counts as there.
func ended(pid uint32, start uint64) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if os.IsNotExist(err) {
		return true
	}
	// the program's name, field 2, may hold anything: count from the last parenthesis (proc(5))
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if err != nil || len(fields) < 20 {
		return false
	}
	if fields[19] != strconv.FormatUint(start, 10) {
		return true
	}
	if fields[0] != "Z" && fields[0] != "X" {
		return false
	}
	// threads may go on when main has ended
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return err == nil && len(tasks) <= 1 || os.IsNotExist(err)
}

// inUse says whether a process that can be looked at has the file mapped, or there may be one that cannot.
func inUse(f *os.File) bool {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return true
	}
	want := fmt.Sprintf(" %02x:%02x %d ", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	lists, err := filepath.Glob("/proc/[0-9]*/maps")
	if err != nil {
		return true
	}
	for _, l := range lists {
		if l == fmt.Sprintf("/proc/%d/maps", os.Getpid()) {
			continue
		}
		maps, err := os.Open(l)
		if err != nil {
			continue // ended meanwhile, or another user's, who could not open the file
		}
		found := false
		for lines := bufio.NewScanner(maps); lines.Scan() && !found; {
			found = strings.Contains(lines.Text(), want)
		}
		maps.Close()
		if found {
			return true
		}
	}
	return false
}
