//go:build vm

package check

import (
	"strings"
	"testing"
)

// UCX puts its messages on rc_verbs: the lane's transport and device are in the matrix, each with its peer, which the UCP endpoint tells.
func TestLanesOnTheDevice(t *testing.T) {
	for script, names := range map[string][]string{"one": {"ucx", "mpi"}, "two": {"ucx", "mpi"}, "debian13": {"mpi", "three"}} {
		for _, name := range names {
			t.Run(script+"-"+name, func(t *testing.T) {
				r := load(t, script, name)
				l := r.matrix.Layers["uct"]
				if l == nil {
					t.Fatal("no layer uct")
				}
				onDevice := uint64(0)
				for _, row := range l.Endpoint {
					if strings.HasPrefix(row.Source.Name, "rc_verbs/rxe0:1 ep ") {
						onDevice += row.Count
						if row.Destination == nil {
							t.Errorf("%d %s of %s to nobody", row.Count, row.Operation, row.Source.Name)
						}
					}
				}
				// Every message of UCP between processes is one of UCT at least.
				between := uint64(0)
				for _, row := range r.matrix.Layers["ucp"].Endpoint {
					if row.Operation == "tag_send" && row.Destination != nil && (row.Destination.Pid != row.Source.Pid || row.Destination.Host != row.Source.Host) {
						between += row.Count
					}
				}
				if between == 0 || onDevice < between {
					t.Errorf("%d operations on rc_verbs, %d messages between processes", onDevice, between)
				}
			})
		}
	}
}
