package files

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/tests/faults/rig"
	"github.com/sigmatrace/sigmatrace/tests/needs"
)

// F62: node-local staging: captures are written on another file system than the run directory's and moved to it at the end. When there
// is no room for them there, they stay where they are, and the run says where.
func TestF62StagedOnAnotherFileSystem(t *testing.T) {
	needs.Time(t)
	for _, room := range []bool{true, false} {
		t.Run(map[bool]string{true: "room", false: "no room"}[room], func(t *testing.T) {
			scratch, home := rig.Tmpfs(t, "size=32m"), rig.Tmpfs(t, map[bool]string{true: "size=32m", false: "size=512k"}[room])
			r := rig.New(t, rig.Spec{Layer: "verbs", Sets: []string{"record.scratch=" + scratch}}, home)
			r.Both(rig.Do("post 100000"), rig.Do("threads 4 1000"))
			staged, _ := filepath.Glob(filepath.Join(scratch, "*/*/*.capture"))
			if !room {
				if len(staged) != 1 || len(r.Captures()) != 0 || !strings.Contains(r.Errors(), "captures stay in "+scratch) || !strings.Contains(r.Errors(), "no space left") {
					t.Fatalf("staged %v, moved %v: %s", staged, r.Captures(), r.Errors())
				}
				rig.Grow(t, home, "size=32m") // as it is told
				if err := os.RemoveAll(filepath.Join(r.Path, "capture")); err != nil {
					t.Fatal(err)
				}
				if err := os.CopyFS(filepath.Join(r.Path, "capture"), os.DirFS(filepath.Dir(filepath.Dir(staged[0])))); err != nil {
					t.Fatal(err)
				}
			} else if len(staged) != 0 || len(r.Captures()) != 1 {
				t.Errorf("staged %v, moved %v", staged, r.Captures())
			}
			if errs, status := r.Merge(); status != 0 {
				t.Errorf("merge ended with %d: %s", status, errs)
			}
			r.Exact(r.Info())
		})
	}
}

// F63: names that scripts, formats and shells trip over.
func TestF63OddNames(t *testing.T) {
	needs.Time(t)
	for _, name := range []string{"a b  c", "ü✓ 漢字 é", `it's "q" $HOME x`, "colon:semi;comma,", "percent %d %s %n", "-p", "a=b", "[x]*?{y}"} {
		t.Run(fmt.Sprintf("%q", name), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), name)
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			r := rig.New(t, rig.Spec{Layer: "ucp"}, dir)
			r.Both(rig.Do("post 1000"))
			if errs, status := r.Merge(); status != 0 {
				t.Errorf("merge ended with %d: %s", status, errs)
			}
			r.Exact(r.Info())
		})
	}
}

// F63: names that the settings' file cannot hold are refused before the program starts.
func TestF63NamesThatAreRefused(t *testing.T) {
	for name, why := range map[string]string{"tab\tx": "control character", "line\nx": "control character", "\xff\xfe": "not UTF-8"} {
		dir := filepath.Join(t.TempDir(), name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		r := rig.New(t, rig.Spec{Layer: "ucp"}, dir).Start()
		if !r.Refused() || !strings.Contains(r.Errors(), why) {
			t.Errorf("%q: %s", name, r.Errors())
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%q: left behind: %v, %v", name, left, err)
		}
	}
}

// F63: a path that is nearly, or quite, as long as the system allows. Either the run is refused before the program starts, or it is
// recorded, or it says that it is not; the program does not notice.
func TestF63LongPaths(t *testing.T) {
	needs.Time(t)
	const most = 4095 // PATH_MAX with its NUL
	recorded := false
	for _, length := range []int{1000, most - 200, most - 90, most - 50, most - 4} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			dir := t.TempDir()
			for left := length - len(dir) - 5; left > 0; left = length - len(dir) - 5 { // "/run" comes behind
				dir = filepath.Join(dir, strings.Repeat("x", max(1, min(200, left))))
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			r := rig.New(t, rig.Spec{Layer: "ucp"}, dir)
			r.Elsewhere = t.TempDir()
			r.Start()
			if r.Refused() {
				if length < most-200 || !strings.Contains(r.Errors(), "name too long") && !strings.Contains(r.Errors(), "at most 4095 fit") {
					t.Errorf("refused: %s", r.Errors())
				}
				return
			}
			r.Do("post 1000")
			r.End()
			r.Alike(rig.Do("total"), rig.Do("post 1000"))
			if len(r.Captures()) == 0 {
				if i := r.Info(); len(i.Ranks.Incomplete) == 0 {
					t.Error("not recorded, and complete")
				}
				return
			}
			recorded = true
			if errs, status := r.Merge(); status != 0 {
				t.Errorf("merge ended with %d: %s", status, errs)
			}
			r.Exact(r.Info())
		})
	}
	if !recorded {
		t.Error("nothing was recorded at any length")
	}
}

// F20: a job that is requeued keeps its number, and an array task has one of its own: each gets a directory of its own, and nothing of an
// earlier run is touched.
func TestF20RequeueOverwritesNothing(t *testing.T) {
	base := t.TempDir()
	seen := map[string]map[string]string{}
	for _, env := range [][]string{
		{"SLURM_JOB_ID=7", "SLURM_STEP_ID=0"}, {"SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_RESTART_COUNT=1"}, {"SLURM_JOB_ID=7", "SLURM_STEP_ID=1"},
		{"SLURM_JOB_ID=8", "SLURM_ARRAY_JOB_ID=7", "SLURM_ARRAY_TASK_ID=0"}, {"SLURM_JOB_ID=7", "SLURM_STEP_ID=0"}, {"SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_RESTART_COUNT=1"},
	} {
		r := rig.New(t, rig.Spec{Layer: "ucp", Sets: []string{"output.directory=" + base}, Env: env}, "")
		r.Generated = true
		r.Start()
		r.Do("post 10")
		if status := r.End(); status != 0 {
			t.Fatalf("%v ended with %d: %s", env, status, r.Errors())
		}
		now := map[string]map[string]string{}
		entries, err := os.ReadDir(base)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			now[e.Name()] = rig.Snapshot(t, filepath.Join(base, e.Name()))
		}
		for name, before := range seen {
			rig.Same(t, name, before, now[name])
		}
		if len(now) != len(seen)+1 {
			t.Errorf("%v: %d run directories after %d", env, len(now), len(seen))
		}
		seen = now
	}
	restart := 0
	for name := range seen {
		if strings.Contains(name, ".r1.") {
			restart++
		}
	}
	if restart != 2 {
		t.Errorf("%d of 2 directories tell of the restart: %v", restart, seen)
	}
}
