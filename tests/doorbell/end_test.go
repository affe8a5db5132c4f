package doorbell

import (
	"strings"
	"testing"
)

// A program may part with its queues in any order: with their memory before them, of GPUs and hosts; with a page that it never took back from its driver, whose address is another
// page's then; or not at all, and end its driver before the process's destructors run. It ends as it does by itself, and all that was rung is seen, also by a driver that is slow;
// but what it frees before the thread that copies got to it is counted as lost.
func TestProgramsPartWithQueues(t *testing.T) {
	for name, want := range map[string]int64{"memory_first": 200, "host_memory_first": 200, "reset_last": 200, "page_first": 400, "not_at_all": 16} {
		t.Run(name, func(t *testing.T) {
			r := recording{program: "softhca/end_check", mode: "full"}
			if name == "not_at_all" {
				r.env = []string{"STANDIN_TO_HOST=20000"}
			}
			_, info, counts := r.run(t, name)
			if counts["write"].Count != want {
				t.Errorf("the adapter counted %d writes, the program has %d", counts["write"].Count, want)
			}
			accounted(t, info, want, !strings.Contains(name, "memory") && name != "reset_last")
		})
	}
}
