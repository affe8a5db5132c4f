// Command bench prints the project's numbers as JSON lines: name, value, unit, baseline, ratio, command. A value and its baseline are
// measured in the same run, taking turns. See README.md beside it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// result is one line. Ratio is value over baseline, null where that is 0; both are null where there is nothing to compare with.
type result struct {
	Name     string   `json:"name"`
	Value    float64  `json:"value"`
	Unit     string   `json:"unit"`
	Baseline *float64 `json:"baseline"`
	Ratio    *float64 `json:"ratio"`
	Of       string   `json:"baseline_of,omitempty"`
	Command  string   `json:"command"`
}

// bench is the state of one run.
type bench struct {
	ctx   context.Context
	build string // absolute build folder
	dir   string // scratch
}

// groups is the table of what can be measured; each has a file of its own.
var groups = []struct {
	name string
	run  func(*bench) error
}{
	{"recording", recording},
	{"start", start},
	{"clients", clients},
	{"pauses", pauses},
	{"hooks", hooks},
	{"bytes", bytesPerEvent},
	{"merge", merging},
	{"export", exporting},
	{"slurm", slurm},
	{"spread", spreading},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench: error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string) error {
	build, err := filepath.Abs("build")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sigmatrace-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, g := range groups {
		if len(names) > 0 && !slices.Contains(names, g.name) {
			continue
		}
		if err := g.run(&bench{ctx, build, dir}); err != nil {
			return fmt.Errorf("measuring %s: %w", g.name, err)
		}
	}
	return nil
}

// print writes one line; a negative baseline means none.
func (b *bench) print(name string, value float64, unit string, baseline float64, of, command string) {
	r := result{Name: name, Value: value, Unit: unit, Of: of, Command: command}
	if baseline >= 0 {
		r.Baseline = &baseline
	}
	if ratio := value / baseline; baseline > 0 {
		r.Ratio = &ratio
	}
	line, err := json.Marshal(r)
	if err != nil {
		panic(err) // no field of result can fail
	}
	fmt.Println(strings.ReplaceAll(string(line), b.dir, "DIR"))
}

// command runs a program and returns its standard output.
func (b *bench) command(env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(b.ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var errors strings.Builder
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", strings.Join(args, " "), err, out, errors.String())
	}
	return string(out), nil
}

// number runs a program that prints one number.
func (b *bench) number(env []string, args ...string) (float64, error) {
	out, err := b.command(env, args...)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(out), 64)
}

// profile writes a flat profile, its captures in the scratch folder, and returns the environment that selects it.
func (b *bench) profile(name, mode string) ([]string, error) { return b.profileIn("", name, mode) }

// profileIn does so with captures below another folder, and with more lines; the first of a key that is there twice does not count.
func (b *bench) profileIn(dir, name, mode string, more ...string) ([]string, error) {
	if dir == "" {
		dir = b.dir
	}
	captures := filepath.Join(dir, name)
	if err := os.MkdirAll(captures, 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(b.dir, name+".resolved")
	lines := append([]string{"sigmatrace.profile=1", "name=bench", "mode=" + mode, "providers=ucx,ibverbs", fmt.Sprintf("record.budget=%d", 1<<30), "record.chunk=65536",
		"capture.directory=" + captures}, more...)
	return []string{"SIGMATRACE_CONFIG=" + path}, os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}

// median of a few values.
func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
