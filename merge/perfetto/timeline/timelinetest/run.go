// Package timelinetest makes merged runs in memory, for tests of exporters.
package timelinetest

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// Source is a merged run in memory.
type Source struct {
	Info  ops.Run
	Parts [][]ops.Op
}

// Run implements ops.Source.
func (s *Source) Run() *ops.Run { return &s.Info }

// Partition implements ops.Source. It hands out a copy that it clears after each call, so that whoever keeps a slice is found out.
func (s *Source) Partition(ctx context.Context, i int, fn func([]ops.Op) error) error {
	block := make([]ops.Op, 0, 100)
	for rest := s.Parts[i]; len(rest) > 0; {
		block = append(block[:0], rest[:min(cap(block), len(rest))]...)
		rest = rest[len(block):]
		if err := fn(block); err != nil {
			return err
		}
		clear(block)
	}
	return ctx.Err()
}

// Each calls fn with every operation in order.
func (s *Source) Each(fn func(*ops.Op)) {
	for _, part := range s.Parts {
		for i := range part {
			fn(&part[i])
		}
	}
}

// Begin is the time at which made runs begin.
const Begin = int64(1_750_000_000_123_456_789)

// Config says what run to make.
type Config struct {
	Seed       uint64
	Ranks      int
	Messages   int
	Partitions int
	Strays     bool // also failed, unfinished, ambiguous operations and receives stamped before their sends
	Simple     bool // calls of simple mode only
}

type maker struct {
	Config
	r         *rand.Rand
	s         *Source
	ops       []ops.Op
	workers   []uint32   // by rank
	endpoints [][]uint32 // ucp endpoints by rank and peer
	qps       [][]uint32
	cqs       []uint32
	sequence  map[[2]uint32]uint64
}

// New makes a run whose operations are random but obey the contract of package ops.
func New(c Config) *Source {
	m := &maker{Config: c, r: rand.New(rand.NewPCG(c.Seed, 1)), s: &Source{}, sequence: map[[2]uint32]uint64{}}
	m.processes()
	now := Begin
	for i := range c.Messages {
		now += m.r.Int64N(2000)
		from := m.r.IntN(c.Ranks)
		to := m.r.IntN(c.Ranks)
		if c.Simple {
			m.call(now, from, to)
			continue
		}
		m.message(now, from, to, uint64(i)<<32|m.r.Uint64()>>32|1<<63)
	}
	m.finish()
	return m.s
}

func (m *maker) endpoint(process int, layer, kind, name string, peer uint32) uint32 {
	e := &m.s.Info.Endpoints
	*e = append(*e, ops.Endpoint{Process: uint32(process), Object: uint32(len(*e)), Layer: layer, Kind: kind, Name: name, Peer: peer})
	return uint32(len(*e) - 1)
}

func (m *maker) processes() {
	errorNS := 350.0
	m.s.Info = ops.Run{Name: "made", ClockSource: "wall clock", Clocks: []ops.Clock{{Host: "node0", ErrorNS: &errorNS}, {Host: "node1", Reason: "one pair only"}}}
	for r := range m.Ranks {
		// In containers, processes of different hosts have the same id.
		m.s.Info.Processes = append(m.s.Info.Processes, ops.Process{Host: fmt.Sprintf("node%d", r%2), Node: fmt.Sprintf("node%d-boot", r%2),
			Pid: uint32(100 + r/2), Rank: int64(m.Ranks - 1 - r), Executable: "/usr/bin/xhpl", File: fmt.Sprintf("r%d.cap", r), TickNS: 0.5,
			Threads: map[uint32]string{0: fmt.Sprintf("tid %d (xhpl)", 1000+r), 1: fmt.Sprintf("tid %d (progress)", 2000+r)}})
		m.workers = append(m.workers, m.endpoint(r, "ucp", "worker", "worker 0", 0))
		m.cqs = append(m.cqs, m.endpoint(r, "verbs", "cq", "CQ 0x5", 0))
	}
	m.endpoints, m.qps = make([][]uint32, m.Ranks), make([][]uint32, m.Ranks)
	for r := range m.Ranks {
		for q := range m.Ranks {
			m.endpoints[r] = append(m.endpoints[r], m.endpoint(r, "ucp", "endpoint", fmt.Sprintf("ep -> rank %d", m.Ranks-1-q), m.workers[q]+1))
			m.qps[r] = append(m.qps[r], m.endpoint(r, "verbs", "qp", fmt.Sprintf("QP 0x%x -> rank %d", 0x11+q, m.Ranks-1-q), 0))
		}
	}
	for r := range m.Ranks {
		for q := range m.Ranks {
			m.s.Info.Endpoints[m.qps[r][q]].Peer = m.qps[q][r] + 1
		}
	}
}

func (m *maker) add(o ops.Op) {
	o.Process = m.s.Info.Endpoints[o.Endpoint].Process
	o.Thread = uint32(m.r.IntN(2))
	if o.Requests == 0 {
		o.Requests = 1
	}
	o.Peer = m.s.Info.Endpoints[o.Endpoint].Peer
	if m.Strays && o.Flags == 0 {
		switch m.r.IntN(40) {
		case 0:
			o.Flags, o.Status = ops.Failed, 12
			if m.s.Info.Endpoints[o.Endpoint].Layer == "ucp" {
				o.Status = -25
			}
		case 1:
			o.Flags, o.Flow = ops.Unfinished, 0
		case 2:
			o.Flags = ops.Ambiguous
		case 3:
			o.Flags = ops.Implied
		}
	}
	m.ops = append(m.ops, o)
}

func (m *maker) fields(o ops.Op, values map[string]uint64) ops.Op {
	l := catalogue.Default.Event(o.Event).Layout
	for n, v := range values {
		o.Fields[l.FieldIndex(n)] = v
	}
	return o
}

func (m *maker) call(now int64, from, to int) {
	o := ops.Op{Post: now, Done: now + m.r.Int64N(3000), Endpoint: m.qps[from][to], Event: catalogue.EventVerbsCall, Role: ops.Local,
		Flags: ops.CallRecord, Requests: 1 + uint32(m.r.IntN(64)), Bytes: 4096}
	m.add(m.fields(o, map[string]uint64{"operation": catalogue.EventVerbsWrite, "requests": uint64(o.Requests), "bytes": o.Bytes, "duration": 77}))
}

// message adds one message: its operation at the initiator and, for two-sided ones, the receive at the target.
func (m *maker) message(now int64, from, to int, flow uint64) {
	bytes := uint64(1) << m.r.IntN(22)
	took := int64(bytes/10) + m.r.Int64N(3000) // some are of no length
	if m.r.IntN(20) == 0 {
		took = 0
	}
	address := 0x7f0000000000 + m.r.Uint64N(1<<30)
	ucp := map[string]uint64{"bytes": bytes, "local_address": address, "request": 5, "status": 1, "api": 2, "duration": 900}
	verbs := map[string]uint64{"bytes": bytes, "wr_id": m.r.Uint64(), "local_address": address, "local_key": 0x1234, "flags": 2, "sges": 1}
	base := ops.Op{Post: now, Done: now + took, Bytes: bytes, Flow: flow}
	kind := m.r.IntN(8)
	if kind < 4 {
		base.Endpoint = m.endpoints[from][to]
	} else {
		base.Endpoint = m.qps[from][to]
	}
	o := base
	switch kind {
	case 0:
		o.Event, o.Role, o.Flow = catalogue.EventUcpFlush, ops.OneSided, 0
		o.Bytes = 0
		m.add(m.fields(o, map[string]uint64{"status": 1, "api": 2}))
	case 1:
		o.Event, o.Role = catalogue.EventUcpPut, ops.OneSided
		ucp["remote_address"], ucp["remote_key"], ucp["duration"] = address+4096, 0xabc, 301
		o.Flags |= ops.Immediate
		m.add(m.fields(o, ucp))
	case 2, 3:
		o.Event, o.Role = catalogue.EventUcpTagSend, ops.Initiator
		ucp["tag"] = 0
		m.two(m.fields(o, ucp), m.fields(ops.Op{Endpoint: m.workers[to], Event: catalogue.EventUcpTagRecv, Role: ops.Target, Bytes: bytes},
			map[string]uint64{"bytes": bytes + 8, "tag": 7, "mask": ^uint64(0), "status": 1}))
	case 4, 5:
		o.Event, o.Role = catalogue.EventVerbsSend, ops.Initiator
		verbs["opcode"] = 2
		m.two(m.fields(o, verbs), m.fields(ops.Op{Endpoint: m.qps[to][from], Event: catalogue.EventVerbsRecv, Role: ops.Target, Bytes: bytes},
			map[string]uint64{"bytes": bytes, "wr_id": 0, "sges": 1}))
	case 6:
		o.Event, o.Role = catalogue.EventVerbsWrite, ops.OneSided
		verbs["remote_address"], verbs["remote_key"] = address, 0xffffffff
		m.add(m.fields(o, verbs))
	case 7:
		m.add(m.fields(ops.Op{Post: now, Done: now + took, Endpoint: m.cqs[from], Event: catalogue.EventVerbsEmptyPolls, Role: ops.Local,
			Flags: ops.PollRecord, Requests: 100}, map[string]uint64{"count": 100, "duration": 5}))
		o.Event, o.Role, o.Flow, o.Bytes = catalogue.EventVerbsControl, ops.Local, 0, 0
		m.add(m.fields(o, map[string]uint64{"opcode": 7}))
	}
}

func (m *maker) two(send, recv ops.Op) {
	recv.Flow = send.Flow
	recv.Post = send.Post - m.r.Int64N(5000)
	recv.Done = max(recv.Post, send.Done-m.r.Int64N(100))
	if recv.Done < send.Post {
		recv.Done = send.Post
	}
	if m.Strays && m.r.IntN(50) == 0 {
		recv.Post, recv.Done = send.Post-6000, send.Post-1 // the clocks disagree
	}
	m.add(send)
	m.add(recv)
	if a, b := &m.ops[len(m.ops)-2], &m.ops[len(m.ops)-1]; a.Flow == 0 || b.Flow == 0 {
		a.Flow, b.Flow = 0, 0 // an unfinished end matches nothing
	}
}

// finish orders the operations, numbers them, gives them lanes and counters, and cuts partitions.
func (m *maker) finish() {
	run := &m.s.Info
	run.First, run.Last = Begin, Begin
	for _, o := range m.ops {
		run.First, run.Last = min(run.First, o.Post), max(run.Last, o.Done)
	}
	slices.SortStableFunc(m.ops, func(a, b ops.Op) int { return cmp.Compare(a.Post, b.Post) })
	free := make([][]int64, len(run.Endpoints))
	ordinal := make([]uint64, len(run.Endpoints))
	total := map[[2]uint32]uint64{}
	outstanding := make([]uint32, len(run.Endpoints))
	var ends []int // operations in flight
	for i := range m.ops {
		o := &m.ops[i]
		if o.Flags&ops.Unfinished != 0 {
			o.Done = run.Last
		}
		// Completions up to the post come before it.
		slices.SortStableFunc(ends, func(a, b int) int { return cmp.Compare(m.ops[a].Done, m.ops[b].Done) })
		for len(ends) > 0 && m.ops[ends[0]].Done <= o.Post {
			m.complete(ends[0], outstanding)
			ends = ends[1:]
		}
		key := [2]uint32{o.Process, o.Thread}
		o.Sequence = m.sequence[key]
		m.sequence[key]++
		lanes := &free[o.Endpoint]
		l := slices.IndexFunc(*lanes, func(t int64) bool { return t <= o.Post })
		if l < 0 {
			l = len(*lanes)
			*lanes = append(*lanes, 0)
		}
		(*lanes)[l] = o.Done
		o.Lane = uint16(l)
		if o.Flags&ops.PollRecord != 0 {
			continue
		}
		o.Ordinal = ordinal[o.Endpoint]
		ordinal[o.Endpoint]++
		role := [2]uint32{o.Endpoint, uint32(o.Role)}
		total[role] += o.Bytes
		o.Total = total[role]
		if o.Flags&ops.CallRecord == 0 {
			outstanding[o.Endpoint]++
			o.Outstanding = outstanding[o.Endpoint]
			ends = append(ends, i)
		}
	}
	slices.SortStableFunc(ends, func(a, b int) int { return cmp.Compare(m.ops[a].Done, m.ops[b].Done) })
	for _, i := range ends {
		m.complete(i, outstanding)
	}
	for e := range run.Endpoints {
		run.Endpoints[e].Lanes = len(free[e])
	}
	run.Operations = int64(len(m.ops))
	run.Partitions = m.Partitions
	for p := range m.Partitions {
		m.s.Parts = append(m.s.Parts, m.ops[len(m.ops)*p/m.Partitions:len(m.ops)*(p+1)/m.Partitions])
	}
}

func (m *maker) complete(i int, outstanding []uint32) {
	o := &m.ops[i]
	if o.Flags&ops.Unfinished == 0 {
		outstanding[o.Endpoint]--
	}
	o.After = outstanding[o.Endpoint]
}
