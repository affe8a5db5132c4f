package doorbell

import (
	"testing"
)

// A program may part with its queues in any order: with their memory before them, of GPUs and hosts; with a page that it never took back from its driver, whose address is another
// page's then; one of two registers of a page before the other, or a page that others have too; or not at all, and end its driver before the process's destructors run. It ends as it does by itself, and all that was rung is seen, also by a driver that is slow;
// but memory of the host that it unmaps before the thread that looks got to it is counted as lost.
func TestProgramsPartWithQueues(t *testing.T) {
	for name, want := range map[string]int64{"memory_first": 200, "mapping_first": 200, "host_memory_first": 200, "reset_last": 200, "page_first": 400, "not_at_all": 16,
		"first_register_first": 300, "second_register_first": 300, "page_of_all": 200} {
		t.Run(name, func(t *testing.T) {
			r := recording{program: "softhca/end_check", mode: "full"}
			switch name {
			case "not_at_all":
				r.env = []string{"STANDIN_TO_HOST=20000"}
			case "memory_first", "mapping_first":
				r.env = []string{"STANDIN_TO_HOST=2000"}
			}
			_, info, counts := r.run(t, name)
			if counts["write"].Count != want {
				t.Errorf("the adapter counted %d writes, the program has %d", counts["write"].Count, want)
			}
			accounted(t, info, want, name != "host_memory_first")
		})
	}
}
