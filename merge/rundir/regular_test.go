package rundir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What stands in the place of a run's files is neither waited for nor read without an end: the job's srun waits for whoever reads it.
func TestWhatIsNoFileOfARunIsNotRead(t *testing.T) {
	places := map[string]func(path string) error{
		"a pipe":             func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a folder":           func(path string) error { return os.Mkdir(path, 0o700) },
		"a link to a device": func(path string) error { return os.Symlink("/dev/zero", path) },
		"a huge file": func(path string) error {
			f, err := os.Create(path)
			if err != nil {
				return err
			}
			defer f.Close()
			return f.Truncate(1 << 40)
		},
	}
	files := map[string]func(*Dir) (path string, read func() error){
		"profile": func(d *Dir) (string, func() error) {
			return d.ResolvedPath(), func() error { _, err := d.ReadResolved(); return err }
		},
		"manifest": func(d *Dir) (string, func() error) {
			return d.ManifestPath(), func() error { _, err := d.ReadManifest(); return err }
		},
		"control": func(d *Dir) (string, func() error) {
			return d.ControlPath(), func() error { _, err := d.readControl(); return err }
		},
		"node": func(d *Dir) (string, func() error) {
			return d.nodePath("n1.1.0"), func() error { _, err := d.ReadNode("n1.1.0"); return err }
		},
		"tasks": func(d *Dir) (string, func() error) {
			return filepath.Join(d.TasksPath(), "n1"), func() error { _, err := d.ReadTasks(); return err }
		},
	}
	for what, make := range places {
		for name, of := range files {
			t.Run(name+" is "+what, func(t *testing.T) {
				dir, err := Create(filepath.Join(t.TempDir(), "run"))
				if err == nil {
					err = dir.MakeTasks()
				}
				if err == nil {
					err = dir.MakeNodes()
				}
				if err != nil {
					t.Fatal(err)
				}
				path, read := of(dir)
				if err := make(path); err != nil {
					t.Fatal(err)
				}
				ended := boundedly(t, read)
				if ended == nil || !strings.Contains(ended.Error(), path) {
					t.Errorf("error %v", ended)
				}
			})
		}
	}
}

// boundedly has something done that must not wait for ever.
func boundedly(t *testing.T, what func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- what() }()
	select {
	case err := <-done:
		return err
	case <-time.After(30 * time.Second):
		t.Fatal("it still reads")
		return nil
	}
}

// A node's file that cannot be read takes nothing from the others.
func TestTasksOfOtherNodesAreRead(t *testing.T) {
	dir, err := Create(filepath.Join(t.TempDir(), "run"))
	if err == nil {
		err = dir.MakeTasks()
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir.TasksPath(), "n1"), []byte(strings.Repeat("x", 1<<20)+"\ntask=0 pid=7 status=256 of=2\n"), 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir.TasksPath(), "n3"), []byte("task=1 pid=7 status=512 of=2\n"), 0o600)
	}
	if err == nil {
		err = unix.Mkfifo(filepath.Join(dir.TasksPath(), "n2"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := dir.ReadTasks()
	if err == nil || !strings.Contains(err.Error(), "n2") {
		t.Errorf("error %v", err)
	}
	if len(tasks.Ends) != 2 || tasks.Of != 2 {
		t.Errorf("ends %v of %d", tasks.Ends, tasks.Of)
	}
}
