package ucx

import (
	"fmt"
	"os"
	"testing"
)

func TestDump(t *testing.T) {
	dir := os.Getenv("DUMP")
	if dir == "" {
		t.Skip()
	}
	for _, p := range readRun(t, dir) {
		fmt.Printf("pid %d rank %d mode %v: totals %v completed %v\n", p.header.Pid, p.header.Rank, p.header.Mode, p.totals, p.completed)
		fmt.Printf("   recorded %v events %d bytes/ev %.2f workers %v eps %d version %v lost %v\n", p.recorded, p.events, float64(p.bytes)/float64(p.events), p.workers, len(p.endpoints), p.versions, p.live)
		for id, e := range p.endpoints {
			fmt.Printf("   ep %d worker %d source %d name %q addr %d ended %v\n", id, e.worker, e.source, e.name, len(e.address), e.ended)
		}
		for _, c := range p.completions { for _, r := range p.requests { if r.id==c.id && r.status==1 && r.event==4 && os.Getenv("V") != "" { fmt.Printf("   recv %+v -> %+v\n", r, c) } } }
		st := map[[3]uint64]int{}
		for _, r := range p.requests {
			st[[3]uint64{uint64(r.event), r.status, r.api}]++
		}
		fmt.Println("   event/status/api", st, "completions", len(p.completions))
		if p.header.Mode == 2 {
			p.check(t)
		}
	}
}
