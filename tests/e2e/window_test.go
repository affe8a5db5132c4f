package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/match"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// windows counts the changes of the window that all processes have noticed so far.
func (r *run) windows() (n int) {
	r.t.Helper()
	names, err := filepath.Glob(filepath.Join(r.path, "capture", "*", "*"+capture.Extension))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, name := range names {
		f, err := capture.Open(name)
		if err != nil {
			continue // it is in the making
		}
		if err := f.Definitions(catalogue.Default, func(d *capture.Definition) error {
			if d.ID == catalogue.DefWindow {
				n++
			}
			return nil
		}); err != nil {
			r.t.Error(err)
		}
		f.Close()
	}
	return n
}

// A stream of tagged messages of a real MPI program, each with a place in memory that says its number, under a window that is closed and
// opened again. Messages of the first window are matched, and said to be sure; those of the second have numbers that nobody knows, so none of
// them is. No message that is said to be sure has another's receive.
func TestTagsAroundAWindow(t *testing.T) {
	notQuick(t)
	r := newRun(t, spec{mode: "full", providers: "ucx", env: transports["shm"], options: []string{"--set", "ucx.level=ucp"}})
	end := filepath.Join(r.dir, "end")
	cmd := r.command(r.mpirun(2, built(t, "tests/mpi-app"), "-n", "1", "-s", end)...)
	out, err := os.Create(filepath.Join(r.dir, "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	output := func() string {
		text, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	at := regexp.MustCompile(`numbered (\d) (\d+)`)
	await(t, "the ranks' messages", func() bool { return len(at.FindAllString(output(), -1)) == 2 })
	sent := func() (n uint64) {
		for _, one := range r.sent() {
			n += one
		}
		return n
	}
	for i, word := range []string{"stop", "start"} {
		if _, errs, status := execute(t, sigmatrace(t, "window", word, r.path)); status != 0 {
			t.Fatalf("window %s ended with %d: %s", word, status, errs)
		}
		await(t, "the ranks to notice", func() bool { return r.windows() == 2*(i+1) })
		n := sent()
		await(t, "more messages", func() bool { return sent() > n+500 })
	}
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, output())
	}
	base := map[string]uint64{}
	for _, m := range at.FindAllStringSubmatch(output(), -1) {
		base[m[1]], _ = strconv.ParseUint(m[2], 10, 64)
	}
	number := func(op *ops.Op, rank string) (uint64, bool) {
		n := (op.Fields[catalogue.UcpRequestLocalAddress] - base[rank]) / 8
		return n, n < 1<<20
	}

	dir, err := rundir.Open(r.path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := merge.Open(t.Context(), dir, merge.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	sends, receives := map[uint64]ops.Op{}, map[uint64]ops.Op{} // by flow
	recorded := 0
	for i := range m.Run().Partitions {
		if err := m.Partition(t.Context(), i, func(batch []ops.Op) error {
			for _, op := range batch {
				_, a := number(&op, "0")
				_, b := number(&op, "1")
				switch {
				case op.Event == catalogue.EventUcpTagSend && a:
					recorded++
					sends[op.Flow] = op
				case op.Event == catalogue.EventUcpTagRecv && b:
					receives[op.Flow] = op
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	delete(sends, 0)
	var sure, vague, wrong, first, last uint64
	first = 1 << 20
	for flow, s := range sends {
		v, ok := receives[flow]
		if !ok {
			continue
		}
		a, _ := number(&s, "0")
		b, _ := number(&v, "1")
		switch {
		case s.Flags&ops.Ambiguous != 0:
			vague++
			first = min(first, a)
			if a != b {
				wrong++
			}
		case a != b:
			t.Errorf("send %d is said to be receive %d for sure", a, b)
		default:
			sure++
			last = max(last, a)
		}
	}
	i := m.Info()
	t.Logf("%d sends recorded; %d surely matched, to number %d; %d not surely, from number %d, %d of them wrong; unmatched %v", recorded, sure, last, vague, first, wrong, i.Flows.Unmatched)
	if sure == 0 || sure != last+1 || vague == 0 || first <= last {
		t.Errorf("sure are %d messages to number %d, others %d from number %d", sure, last, vague, first)
	}
	if i.Flows.Unmatched[match.LostRecords] != 0 || i.Lost.Events != 0 {
		t.Errorf("what a window leaves out is told as lost: %v, %+v", i.Flows.Unmatched, i.Lost)
	}
}
