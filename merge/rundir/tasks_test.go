package rundir

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestOutcomeOfTasks(t *testing.T) {
	number := func(n int) *int { return &n }
	for name, c := range map[string]struct {
		nodes  map[string]string
		status *int
		signal string
	}{
		"nothing known":     {map[string]string{}, nil, ""},
		"all well":          {map[string]string{"n1": "task=0 pid=7 status=0 of=2\n", "n2": "task=1 pid=9 status=0 of=2\n"}, number(0), ""},
		"one not known":     {map[string]string{"n1": "task=0 pid=7 status=0 of=2\n"}, nil, ""},
		"one failed":        {map[string]string{"n1": "task=0 pid=7 status=768 of=3\ntask=1 pid=8 status=256 of=3\n"}, number(3), ""},
		"a signal":          {map[string]string{"n1": "task=0 pid=7 status=9 of=2\ntask=1 pid=8 status=256 of=2\n"}, number(137), "SIGKILL"},
		"cut off":           {map[string]string{"n1": "task=0 pid=7 status=0 of=1\ntask=1 pid=8 sta"}, number(0), ""},
		"cut off in status": {map[string]string{"n1": "task=0 pid=7 status=25"}, nil, ""},
		"written twice":     {map[string]string{"n1": "task=0 pid=7 status=0 of=2\ntask=0 pid=7 status=0 of=2\n"}, nil, ""},
		"a script":          {map[string]string{"n1": "task=0 pid=7 status=9 of=4\nscript=0 pid=3 status=0 of=1\n", "n2": "task=1 pid=8 status=9 of=4\n"}, number(0), ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := Create(filepath.Join(t.TempDir(), "run"))
			if err == nil {
				err = dir.MakeTasks()
			}
			for node, text := range c.nodes {
				if err == nil {
					err = os.WriteFile(filepath.Join(dir.TasksPath(), node), []byte(text+"untraced=because of "+node+"\n"), 0o600)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			tasks, err := dir.ReadTasks()
			if err != nil {
				t.Fatal(err)
			}
			status, signal := tasks.Outcome()
			if (status == nil) != (c.status == nil) || status != nil && *status != *c.status {
				t.Errorf("status %v, want %v", status, c.status)
			}
			if (signal == nil) != (c.signal == "") || signal != nil && *signal != c.signal {
				t.Errorf("signal %v, want %q", signal, c.signal)
			}
			if name == "all well" {
				if want := []Untraced{{"n1", "because of n1"}, {"n2", "because of n2"}}; !slices.Equal(tasks.Untraced, want) {
					t.Errorf("untraced %v, want %v", tasks.Untraced, want)
				}
			}
		})
	}
}
