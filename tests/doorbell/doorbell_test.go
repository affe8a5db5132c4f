// Package doorbell tests what is recorded of queues that GPU kernels fill and ring, with kernels of the stand-in CUDA driver (tests/standin) on the software HCA:
// what the run says is held against what the adapter counted.
package doorbell

import (
	"testing"

	"github.com/sigmatrace/sigmatrace/tests/needs"
)

// Every element that the adapter executed is seen once, in every mode: of queues rung one by one, of two that share a page of doorbells which each overwrites before
// the other's has been seen, and of queues between two processes with a GPU each. On the shared page the adapter looks at the queues' records by itself, and may be
// a whole ring ahead of what was passed on to it; what was overwritten then is counted as lost, element by element.
func TestEveryElementOnce(t *testing.T) {
	for _, name := range []string{"one_by_one", "shared_page", "between"} {
		for _, mode := range needs.Modes() {
			t.Run(name+"/"+mode, func(t *testing.T) {
				info, want := record(t, mode, name)
				total, lost := int64(0), int64(info.Lost.Events)
				for operation, w := range want {
					got := info.Operations["doorbell"][operation]
					if name == "shared_page" && operation == "write" {
						got.Count += uint64(lost)
						got.Bytes += uint64(4 * lost)
					}
					if int64(got.Count) != w.Count || int64(got.Bytes) != w.Bytes {
						t.Errorf("%s: %d of %d bytes in all, the adapter counted %d of %d", operation, got.Count, got.Bytes, w.Count, w.Bytes)
					}
					total += w.Count
				}
				if total < 1000 {
					t.Errorf("the adapter counted %d requests", total)
				}
				if lost != 0 && name != "shared_page" {
					t.Errorf("lost: %+v", info.Lost)
				}
				if info.Exact != (lost == 0) {
					t.Errorf("exact: %v with %d lost", info.Exact, lost)
				}
				if mode == "full" && info.Events.Total+lost < total {
					t.Errorf("%d events of %d requests", info.Events.Total, total)
				}
			})
		}
	}
}
