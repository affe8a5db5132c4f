package perfetto_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/perfetto"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline/timelinetest"
	"github.com/sigmatrace/sigmatrace/tests/tp"
)

// Endpoints of one name, lanes up to the highest number there is, processes without a rank, and two images of one process stay apart
// and are all there.
func TestOddNamesAndNumbers(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	tp.Need(t)
	src := timelinetest.New(timelinetest.Config{Seed: 41, Ranks: 4, Messages: 600, Partitions: 2})
	var qps []int
	for e := range src.Info.Endpoints {
		if ep := &src.Info.Endpoints[e]; ep.Process == 0 && ep.Kind == "qp" {
			ep.Name = "QP \"x\" \u00e9\n"
			qps = append(qps, e)
		}
	}
	src.Info.Endpoints[qps[1]].Lanes = 1 << 16
	src.Each(func(o *ops.Op) {
		if int(o.Endpoint) == qps[1] {
			o.Lane += 1<<16 - 20
		}
	})
	src.Info.Processes[0].Rank, src.Info.Processes[0].Executable = -1, ""
	src.Info.Processes[2] = src.Info.Processes[1]
	src.Info.Processes[2].Image = 1
	trace, s := write(t, src, perfetto.Options{Workers: 2})
	file := save(t, trace)
	if err := verify(file, s, s.FlowBegins); err != nil {
		t.Fatal(err)
	}
	compare(t, "processes", query(t, file, "select name from process where name is not null"),
		[]string{"rank 2 on node1 (pid 100, xhpl)", "rank 2 on node1 (pid 100, xhpl, image 1)", "rank 0 on node1 (pid 101, xhpl)", "pid 100 on node0"})
	deep := ": lanes from 65 on" // where all of the second one's are
	names := []string{"QP \"x\" \u00e9\n", "QP \"x\" \u00e9\n (2)" + deep, "QP \"x\" \u00e9\n (3)", "QP \"x\" \u00e9\n (4)"}
	count := map[uint32]int{}
	src.Each(func(o *ops.Op) { count[o.Endpoint]++ })
	var want []string
	for i, e := range qps {
		want = append(want, fmt.Sprintf("%s: %d", names[i], count[uint32(e)]))
	}
	compare(t, "operations of queue pairs", query(t, file, `select t.name || ': ' || count(*) from process_track t join slice s on s.track_id = t.id
		where s.depth = 0 and t.name glob 'QP "x"*' group by t.name`), want)
	pids := query(t, file, "select pid from process where name is not null")
	slices.Sort(pids)
	if len(slices.Compact(pids)) != 4 {
		t.Errorf("process ids %v", pids)
	}
}
