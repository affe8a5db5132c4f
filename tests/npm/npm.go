// Package npm runs programs that tests judge by, which Node.js runs and which come in packages of npm.
package npm

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// Program is a script beside a fetch.sh, which brings what it runs on.
type Program struct {
	name, script, variable string
	assets                 func() (string, error)
}

// New is for a Go file beside the script. What is fetched, once a process, goes by name in errors; its folder is in the variable of the
// script's environment.
func New(name, script, variable string) *Program {
	_, file, _, _ := runtime.Caller(1)
	folder := filepath.Dir(file)
	return &Program{name, filepath.Join(folder, script), variable, sync.OnceValues(func() (string, error) {
		out, err := output(exec.Command(filepath.Join(folder, "fetch.sh")))
		if err != nil {
			return "", fmt.Errorf("fetch %s: %w", name, err)
		}
		return strings.TrimSpace(string(out)), nil
	})}
}

// Need makes sure that the program is there. Where it cannot be had, the test is skipped, and failed in CI.
func (p *Program) Need(t testing.TB) {
	t.Helper()
	_, err := p.assets()
	if err == nil {
		_, err = exec.LookPath("node")
	}
	switch {
	case err == nil:
	case os.Getenv("CI") != "":
		t.Fatalf("%s is needed: %v", p.name, err)
	default:
		t.Skipf("%s is not to be had: %v", p.name, err)
	}
}

// Run runs the script in dir ("": here) and returns its standard output. An error has what came on standard error.
func (p *Program) Run(dir string, args ...string) ([]byte, error) {
	assets, err := p.assets()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("node", append([]string{p.script}, args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), p.variable+"="+assets)
	return output(cmd)
}

func output(cmd *exec.Cmd) ([]byte, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil && stderr.Len() > 0 {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return out, err
}
