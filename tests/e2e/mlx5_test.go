package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// UCX's mlx5 transports write to rings and doorbells themselves, whoever makes the queues. UCX's own calls show what the application did; at the verbs
// every queue pair on which the adapter executed something is named, since no call tells of it, and nothing is counted.
func TestRingsPastVerbs(t *testing.T) {
	ways := map[string][]string{
		"made by DEVX":      nil,
		"sends by DEVX":     {"UCX_IB_MLX5_DEVX_OBJECTS=rcqp"},
		"made by verbs":     {"UCX_IB_MLX5_DEVX=n"},
		"made by verbs, ud": {"UCX_IB_MLX5_DEVX=n", "UCX_TLS=ud_x,self"},
	}
	for name, env := range ways {
		for _, providers := range []string{"ucx,ibverbs,mlx5dv", "ibverbs,mlx5dv"} {
			t.Run(name+"/"+providers, func(t *testing.T) {
				tree := t.TempDir()
				if out, err := exec.CommandContext(t.Context(), "../softhca/sysfs.sh", tree).CombinedOutput(); err != nil {
					t.Fatalf("making a tree for /sys: %v: %s", err, out)
				}
				if _, err := os.Stat("/dev/infiniband/uverbs0"); err != nil {
					t.Skip("UCX looks for the device node /dev/infiniband/uverbs0: tests/softhca/setup.sh makes it")
				}
				r := newRun(t, spec{mode: "full", providers: providers, hca: true,
					env: append([]string{"SOFTHCA_DEVX=1", "SOFTHCA_SYSFS=" + tree, "UCX_TLS=rc_x,self"}, env...)})
				r.launch(r.pair("ucx_perftest", "-t", "tag_lat", "-n", "100", "-w", "5", "-s", "64")...).succeed()
				i := r.info()
				if truth := sum(r.truth("ucp")); truth["tag_send"].Count < 200 {
					t.Fatalf("the counter saw %v", truth)
				} else if strings.Contains(providers, "ucx") {
					equal(t, "at UCP", i.layer("ucp"), truth)
				}
				if v := i.layer("verbs"); len(v) != 0 {
					t.Errorf("at the verbs: %v", v)
				}
				var named []string
				for _, b := range i.Blind {
					named = append(named, fmt.Sprintf("%d %s", b.Pid, b.Name))
					if !strings.Contains(b.Reason, "mlx5dv_init_obj") && !strings.Contains(b.Reason, "mlx5dv_devx_obj_create") {
						t.Errorf("%s: %s", b.Name, b.Reason)
					}
				}
				used := r.used()
				if len(used) < 2 {
					t.Fatalf("the adapter executed requests of %v only", used)
				}
				for _, q := range used {
					if !slices.Contains(named, q) {
						t.Errorf("the adapter executed requests of %s, which is not among those named: %v", q, named)
					}
				}
			})
		}
	}
}

// used are the queue pairs of which the adapter executed requests, as traces name them, each after its process's id.
func (r *run) used() []string {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, "stats"))
	if err != nil {
		r.t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(string(text)) {
		var s struct {
			Pid        int
			QueuePairs []struct {
				QPN  uint32
				Send []uint64
			} `json:"queue_pairs"`
		}
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			r.t.Fatalf("%v: %s", err, line)
		}
		for _, q := range s.QueuePairs {
			if q.Send != nil {
				all = append(all, fmt.Sprintf("%d QP %#x", s.Pid, q.QPN))
			}
		}
	}
	return all
}
