package doorbell

import "testing"

// Programs that end, or lose something, while their doorbells are watched: each runs as it does without the recorder, and what it did is seen or counted
// as lost: what it frees before the thread that copies got to it.
func TestRoughEnds(t *testing.T) {
	for _, name := range []string{"plain", "memory_gone", "memory_gone_at_exit", "memory_of_one_gone", "refused", "busy", "reset", "cancelled", "forked_meanwhile"} {
		t.Run(name, func(t *testing.T) {
			more := recording{program: "softhca/rough_check", mode: "full"}
			if name == "busy" {
				more.env = []string{"SOFTHCA_FAULT=busy_every=1"}
			}
			_, info, want := more.run(t, name)
			accounted(t, info, want["write"].Count, false)
		})
	}
}

// A program that a signal's handler ends, while its thread waits for the recorder, ends.
func TestExitInHandler(t *testing.T) {
	for range 3 {
		_, info, want := recording{program: "softhca/rough_check", mode: "full", env: []string{"STANDIN_TO_HOST=20000"}}.run(t, "exit_in_handler")
		accounted(t, info, want["write"].Count, false)
	}
}

// A driver that keeps the thread that copies, to the end of the process or while pages and queues go, keeps nothing from being counted.
func TestDriverThatKeepsTheThread(t *testing.T) {
	waits := recording{program: "softhca/rough_check", mode: "full", env: []string{"STANDIN_TO_HOST=waits"}}
	_, info, want := waits.run(t, "gone_meanwhile")
	accounted(t, info, want["write"].Count, false)
	_, info, want = waits.run(t, "exit_in_thread") // rung to the end, so that not all was executed
	if sum := int64(info.Operations["doorbell"]["write"].Count + info.Lost.Events); sum < want["write"].Count || info.Lost.Events == 0 || info.Exact {
		t.Errorf("%d decoded or lost of %d, exact: %v", sum, want["write"].Count, info.Exact)
	}
}

// Where there is no room for threads or queues, kernels ring at the device.
func TestNoRoom(t *testing.T) {
	_, info, _ := recording{program: "softhca/rough_check", mode: "full"}.run(t, "no_room")
	if info.Operations["doorbell"]["write"].Count == 0 {
		t.Error("nothing was seen where there was room")
	}
}

// The recorder's threads have stacks of their own size, in which there is room for a driver, however small those of the program are.
func TestSmallStacks(t *testing.T) {
	_, info, want := recording{program: "softhca/rough_check", mode: "full", env: []string{"STANDIN_TO_HOST=deep"}, before: []string{"sh", "-c", `ulimit -s 64 && exec "$@"`, "sh"}}.run(t, "plain")
	accounted(t, info, want["write"].Count, true)
}
