package mover

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// pidNamespace is that of this process, 0 where it is not known.
func pidNamespace() uint64 {
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/pid", &st) != nil {
		return 0
	}
	return st.Ino
}

// gone says whether the process of a memory file, PID.START.IMAGE.capture, can write to it no more. In doubt it can.
func (m *Mover) gone(name string) bool {
	if own := pidNamespace(); own == 0 || own != atomic.LoadUint64(number(m.pool, poolSpace)) {
		return false
	}
	parts := strings.Split(filepath.Base(name), ".")
	pid, err := strconv.Atoi(parts[0])
	return err == nil && len(parts) == 4 && ended(pid, parts[1])
}

// StartTime is a process's, as it is in a capture's name: in clock ticks since the machine's start. "" where it is not known.
func StartTime(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	if fields := statFields(text); len(fields) >= 20 {
		return fields[19]
	}
	return ""
}

// statFields are the fields of /proc/PID/stat from the third on. The program's name, field 2, may hold anything: they begin behind the last
// parenthesis (proc(5)).
func statFields(text []byte) []string {
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}

// ended says whether the process of a pid and start time has no memory any more. One that has executed another program counts as there.
func ended(pid int, start string) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil { // that of another user may be hidden (hidepid of proc(5))
		return unix.Kill(pid, 0) == unix.ESRCH
	}
	fields := statFields(text)
	if len(fields) < 20 {
		return false
	}
	if fields[19] != start {
		return true
	}
	if fields[0] != "Z" && fields[0] != "X" {
		return false
	}
	// threads may go on when main has ended
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return err == nil && len(tasks) <= 1 || os.IsNotExist(err)
}

// Ended says the same of the numbers in a capture's name, of this process's pid namespace.
func Ended(pid, start string) bool {
	n, err := strconv.Atoi(pid)
	return err != nil || ended(n, start)
}
