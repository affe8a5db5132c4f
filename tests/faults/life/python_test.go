package life

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sigmatrace/sigmatrace/tests/needs"
)

// F34, F39: a Python program that imports an RDMA library, and the process pool of its data loader, forked or spawned, ended in each way
// that such pools have.
func TestF34F39PythonWorkers(t *testing.T) {
	needs.Time(t)
	const python = "/usr/bin/python3" // Debian's, for Debian's pyverbs
	if err := exec.Command(python, "-c", "import pyverbs").Run(); err != nil {
		t.Skip("python3-pyverbs is not installed")
	}
	script, err := filepath.Abs("testdata/workers.py")
	if err != nil {
		t.Fatal(err)
	}
	for _, start := range []string{"fork", "spawn"} {
		for _, how := range []string{"return", "os._exit", "terminate"} {
			t.Run(start+"/"+how, func(t *testing.T) {
				r := newRig(t)
				r.same(0, python, script, start, how, "3", "50")
				posts := uint64(4) // the workers' and the parent's last
				if start == "fork" {
					posts++
				}
				r.expect(4, "verbs.write", 50*posts)
			})
		}
	}
}
