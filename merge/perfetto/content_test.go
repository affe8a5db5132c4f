package perfetto_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/perfetto"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline/timelinetest"
	"github.com/sigmatrace/sigmatrace/tests/tp"
)

// compare reports what is in one list and not in the other.
func compare(t *testing.T, what string, got, want []string) {
	t.Helper()
	slices.Sort(got)
	slices.Sort(want)
	if slices.Equal(got, want) {
		return
	}
	have := map[string]int{}
	for _, s := range got {
		have[s]++
	}
	for _, s := range want {
		have[s]--
	}
	shown := 0
	for _, s := range slices.Sorted(maps.Keys(have)) {
		if n := have[s]; n != 0 && shown < 6 {
			t.Errorf("%s: %+d %s", what, n, s)
			shown++
		}
	}
}

func processName(src *timelinetest.Source, process uint32) string {
	q := &src.Info.Processes[process]
	return fmt.Sprintf("rank %d on %s (pid %d, xhpl)", q.Rank, q.Host, q.Pid)
}

// row is what trace_processor should show of an operation.
func row(src *timelinetest.Source, o *ops.Op) string {
	name := map[uint16]string{catalogue.EventUcpPut: "put", catalogue.EventUcpTagSend: "tag_send", catalogue.EventUcpTagRecv: "tag_recv",
		catalogue.EventUcpFlush: "flush", catalogue.EventVerbsSend: "send", catalogue.EventVerbsRecv: "recv", catalogue.EventVerbsWrite: "write",
		catalogue.EventVerbsControl: "local_invalidate", catalogue.EventVerbsEmptyPolls: "empty polls", catalogue.EventVerbsCall: "write"}[o.Event]
	ep := &src.Info.Endpoints[o.Endpoint]
	category := ep.Layer
	if o.Flags&ops.Failed != 0 {
		category += ",error"
	}
	args := map[string]string{"thread": src.Info.Processes[o.Process].Threads[o.Thread]}
	if o.Flags&ops.PollRecord != 0 {
		args["polls"] = fmt.Sprint(o.Requests)
	} else {
		args["bytes"], args["ordinal"] = fmt.Sprint(o.Bytes), fmt.Sprint(o.Ordinal)
	}
	if o.Flags&ops.CallRecord != 0 {
		args["requests"] = fmt.Sprint(o.Requests)
	}
	if o.Peer != 0 {
		peer := &src.Info.Endpoints[o.Peer-1]
		q := &src.Info.Processes[peer.Process]
		args["peer"] = fmt.Sprintf("rank %d on %s: %s", q.Rank, q.Host, peer.Name)
	}
	if o.Flags&ops.Failed != 0 {
		args["status"] = fmt.Sprint(o.Status)
		args["status_name"] = map[int32]string{12: "transport retry counter exceeded", -25: "connection reset"}[o.Status]
	}
	for flag, name := range map[ops.Flag]string{ops.Unfinished: "unfinished", ops.Implied: "implied", ops.Ambiguous: "ambiguous", ops.Immediate: "complete_on_return"} {
		if o.Flags&flag != 0 {
			args[name] = "true"
		}
	}
	hex := func(name string, v uint64) {
		if v != 0 || name == "wr_id" || name == "tag" && o.Event != catalogue.EventUcpPut && o.Event != catalogue.EventUcpFlush {
			args[name] = fmt.Sprintf("0x%x", v)
		}
	}
	f := &o.Fields
	switch o.Event {
	case catalogue.EventUcpPut, catalogue.EventUcpTagSend, catalogue.EventUcpTagRecv, catalogue.EventUcpFlush:
		hex("tag", f[catalogue.UcpRequestTag])
		hex("mask", f[catalogue.UcpRequestMask])
		hex("local_address", f[catalogue.UcpRequestLocalAddress])
		hex("remote_address", f[catalogue.UcpRequestRemoteAddress])
		hex("remote_key", f[catalogue.UcpRequestRemoteKey])
		args["result"] = "pending"
		args["api"] = []string{"blocking", "nb", "nbx"}[f[catalogue.UcpRequestApi]]
		if v := f[catalogue.UcpRequestRequest]; v != 0 {
			args["request"] = fmt.Sprint(v)
		}
		if v := f[catalogue.UcpRequestDuration]; v != 0 {
			args["call_ns"] = fmt.Sprint((v + 1) / 2) // ticks of half a nanosecond
		}
		if v := f[catalogue.UcpRequestBytes]; v != o.Bytes {
			args["posted_bytes"] = fmt.Sprint(v)
		}
	case catalogue.EventVerbsSend, catalogue.EventVerbsWrite, catalogue.EventVerbsControl:
		hex("wr_id", f[catalogue.VerbsRequestWrId])
		hex("local_address", f[catalogue.VerbsRequestLocalAddress])
		hex("local_key", f[catalogue.VerbsRequestLocalKey])
		hex("remote_address", f[catalogue.VerbsRequestRemoteAddress])
		hex("remote_key", f[catalogue.VerbsRequestRemoteKey])
		args["opcode"] = map[uint64]string{0: "rdma_write", 2: "send", 7: "local_invalidate"}[f[catalogue.VerbsRequestOpcode]]
		if f[catalogue.VerbsRequestFlags] == 2 {
			args["flags"] = "signaled"
		}
		if v := f[catalogue.VerbsRequestSges]; v != 0 {
			args["sges"] = fmt.Sprint(v)
		}
	case catalogue.EventVerbsRecv:
		hex("wr_id", f[catalogue.VerbsReceiveWrId])
		args["sges"] = "1"
	}
	var list []string
	for _, k := range slices.Sorted(maps.Keys(args)) {
		list = append(list, k+"="+args[k])
	}
	track := ep.Name
	if o.Lane >= 64 {
		track += ": lanes from 65 on"
	}
	return fmt.Sprintf("%d +%d %s %s [%s / %s / %s] %s", o.Post, o.Done-o.Post, name, category, processName(src, o.Process), ep.Layer, track, strings.Join(list, ";"))
}

// Every operation is there with its name, times, place and arguments, and so is every value of a counter and every arrow.
func TestContent(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	tp.Need(t)
	src := timelinetest.New(timelinetest.Config{Seed: 11, Ranks: 4, Messages: 2500, Partitions: 4, Strays: true})
	trace, _ := write(t, src, perfetto.Options{Workers: 2})
	file := save(t, trace)

	t.Run("operations", func(t *testing.T) {
		rows := query(t, file, `select s.ts || ' +' || s.dur || ' ' || s.name || ' ' || s.category || ' [' || p.name || ' / ' || g.name || ' / ' || k.name || '] ' ||
			(select group_concat(substr(key, 7) || '=' || display_value, ';') from (select key, display_value from args where arg_set_id = s.arg_set_id order by key))
			from slice s join process_track k on s.track_id = k.id join process p using (upid) join track g on k.parent_id = g.id
			where s.name not in ('posted', 'completed', 'received')`)
		var want []string
		src.Each(func(o *ops.Op) { want = append(want, row(src, o)) })
		compare(t, "operations", rows, want)
	})

	t.Run("counters", func(t *testing.T) {
		rows := query(t, file, `select p.name || ' / ' || k.name || ' @' || c.ts || ' ' || cast(c.value as int)
			from counter c join process_counter_track k on c.track_id = k.id join process p using (upid)`)
		var want []string
		add := func(o *ops.Op, counter string, time int64, value uint64) {
			want = append(want, fmt.Sprintf("%s / %s: %s @%d %d", processName(src, o.Process), src.Info.Endpoints[o.Endpoint].Name, counter, time, value))
		}
		src.Each(func(o *ops.Op) {
			if o.Flags&ops.PollRecord != 0 {
				return
			}
			add(o, "outstanding requests", o.Post, uint64(o.Outstanding))
			if o.Flags&ops.Unfinished == 0 {
				add(o, "outstanding requests", o.Done, uint64(o.After))
			}
			if o.Bytes > 0 {
				add(o, map[ops.Role]string{ops.Initiator: "send bytes posted", ops.Target: "receive bytes posted", ops.OneSided: "one-sided bytes posted"}[o.Role], o.Post, o.Total)
			}
		})
		compare(t, "counters", rows, want)
	})

	t.Run("flows", func(t *testing.T) {
		rows := query(t, file, `select a.name || ' in ' || pa.name || ' @' || a.ts || ' -> ' || b.name || ' in ' || pb.name || ' @' || b.ts
			from flow join slice a on slice_out = a.id join slice b on slice_in = b.id
			join slice pa on pa.id = a.parent_id join slice pb on pb.id = b.parent_id where pa.depth = 0 and pb.depth = 0
			union all
			select a.name || ' in ' || pa.name || ' @' || a.ts || ' -> ' || b.name || ' in ' || pb.name || ' @' || b.ts
			from flow join slice a on slice_out = a.id join slice b on slice_in = b.id
			join slice m on m.id = b.parent_id join slice pb on pb.id = m.parent_id join slice pa on pa.id = a.parent_id where m.depth = 1`)
		type side struct {
			at   int64
			text string
		}
		ends := map[uint64][]side{}
		name := map[uint16]string{catalogue.EventUcpPut: "put", catalogue.EventUcpTagSend: "tag_send", catalogue.EventUcpTagRecv: "tag_recv",
			catalogue.EventVerbsSend: "send", catalogue.EventVerbsRecv: "recv", catalogue.EventVerbsWrite: "write"}
		src.Each(func(o *ops.Op) {
			if o.Flow == 0 {
				return
			}
			if o.Role != ops.Target {
				ends[o.Flow] = append(ends[o.Flow], side{o.Post, "posted in " + name[o.Event]})
			}
			switch o.Role {
			case ops.Target:
				ends[o.Flow] = append(ends[o.Flow], side{o.Done, "received in " + name[o.Event]})
			case ops.OneSided:
				ends[o.Flow] = append(ends[o.Flow], side{o.Done, "completed in " + name[o.Event]})
			}
		})
		var want []string
		for _, e := range ends {
			// Arrows go forward in time, also where the clocks say that a message was received before it was sent. At equal times
			// they go as the operations do in the run.
			slices.SortStableFunc(e, func(a, b side) int { return cmp.Compare(a.at, b.at) })
			want = append(want, fmt.Sprintf("%s @%d -> %s @%d", e[0].text, e[0].at, e[1].text, e[1].at))
		}
		compare(t, "flows", rows, want)
	})

	t.Run("processes in order of rank", func(t *testing.T) {
		rows := query(t, file, `select name from process where name is not null order by (select int_value from args where args.arg_set_id = process.arg_set_id and key = 'process_sort_index_hint')`)
		for i, name := range rows {
			if want := fmt.Sprintf("rank %d on ", i); !strings.HasPrefix(name, want) {
				t.Errorf("process %d is %q", i, name)
			}
		}
		if len(rows) != len(src.Info.Processes) {
			t.Errorf("%d processes, not %d", len(rows), len(src.Info.Processes))
		}
	})
}

// query returns the single column of a statement.
func query(t *testing.T, file, sql string) []string {
	t.Helper()
	rows, err := tp.Query(file, sql)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range rows {
		out = append(out, r[0])
	}
	return out
}
