package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const tasksName = "tasks"

// TasksPath is the directory in which each node of a step writes how its tasks ended, a file a node.
func (d *Dir) TasksPath() string { return filepath.Join(d.path, tasksName) }

// MakeTasks makes it.
func (d *Dir) MakeTasks() error {
	if err := MkdirPrivate(d.TasksPath()); err != nil {
		return fmt.Errorf("creating directory of the tasks' ends: %w", err)
	}
	return nil
}

// Untraced is a node whose tasks ran without the recorder, and why.
type Untraced struct {
	Node   string `json:"node"`
	Reason string `json:"reason"`
}

// Tasks is what the nodes wrote.
type Tasks struct {
	Ends     []unix.WaitStatus
	Of       int        // tasks that the step had, 0 where no node has said so
	script   bool       // Ends is that of a batch script or a shell: what its mpirun had Slurm start has no say
	Untraced []Untraced // by node
	ends     map[taskOf]unix.WaitStatus
}

// taskOf is a task, or a batch script, as its node knows it.
type taskOf struct {
	node string
	pid  uint32
}

// EndOf tells how the process ended, where it was a task of the node or its batch script.
func (t *Tasks) EndOf(host string, pid uint32) (status unix.WaitStatus, known bool) {
	status, known = t.ends[taskOf{shortName(host), pid}]
	return status, known
}

// shortName is what Slurm's name of a node and the name that it has itself have in common.
func shortName(host string) string {
	short, _, _ := strings.Cut(host, ".")
	return short
}

// ReadTasks reads the nodes' files: lines "task=NUMBER pid=PID status=STATUS of=TASKS", the status as wait(2) gives it,
// "script=0 pid=PID status=STATUS of=1" of a batch script, and "untraced=REASON". A line
// that was not written whole is passed over, as is what is not known. Files that cannot be read are told in the error, beside what the others say.
func (d *Dir) ReadTasks() (*Tasks, error) {
	t := &Tasks{ends: map[taskOf]unix.WaitStatus{}}
	names, err := os.ReadDir(d.TasksPath())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return t, fmt.Errorf("reading the tasks' ends: %w", err)
	}
	var failed []error
	for _, name := range names {
		if err := t.read(filepath.Join(d.TasksPath(), name.Name()), name.Name()); err != nil {
			failed = append(failed, fmt.Errorf("reading the tasks' ends: %w", err))
		}
	}
	return t, errors.Join(failed...)
}

func (t *Tasks) read(path, node string) error {
	text, err := readRegular(path, mostTasks)
	if err != nil {
		return err
	}
	before := "" // a line may be there twice, if who wrote it was ended and it was written again
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if line == before {
			continue
		}
		before = line
		if reason, is := strings.CutPrefix(line, "untraced="); is {
			if u := (Untraced{node, reason}); !slices.Contains(t.Untraced, u) {
				t.Untraced = append(t.Untraced, u)
			}
			continue
		}
		t.end(line, node)
	}
	return nil
}

// end reads how one task ended.
func (t *Tasks) end(line, node string) {
	fields := map[string]uint64{}
	for word := range strings.FieldsSeq(line) {
		key, text, _ := strings.Cut(word, "=")
		if n, err := strconv.ParseUint(text, 10, 32); err == nil {
			fields[key] = n
		}
	}
	status, whole := fields["status"]
	of, last := fields["of"]
	_, script := fields["script"]
	if !whole || !last {
		return
	}
	if pid, is := fields["pid"]; is {
		t.ends[taskOf{shortName(node), uint32(pid)}] = unix.WaitStatus(status)
	}
	switch {
	case t.script && !script:
		return
	case script && !t.script:
		t.script, t.Ends, t.Of = true, nil, 0
	}
	t.Ends = append(t.Ends, unix.WaitStatus(status))
	t.Of = max(t.Of, int(of))
}

// Outcome is the highest status of the step's tasks, 128+n for a signal, and that signal: nil where how a task ended is not known and no
// other failed.
func (t *Tasks) Outcome() (status *int, signal *string) {
	highest := -1
	for _, end := range t.Ends {
		n, name := end.ExitStatus(), ""
		if end.Signaled() {
			n, name = 128+int(end.Signal()), unix.SignalName(end.Signal())
		}
		if n <= highest {
			continue
		}
		highest, signal = n, nil
		if name != "" {
			signal = &name
		}
	}
	if highest < 0 || highest == 0 && (t.Of == 0 || len(t.Ends) < t.Of) {
		return nil, nil
	}
	return &highest, signal
}
