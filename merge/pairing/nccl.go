package pairing

import (
	"slices"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/topology"
)

// GroupKey names what is summed up of NCCL in a process: a function on a communicator. Object 0 and function 0 stand for those that are not known.
type GroupKey struct{ Object, Function uint32 }

// Group sums up the tasks of one function on one communicator.
type Group struct {
	Tasks, Bytes        uint64          // as NCCL counts them
	Unfinished          uint64          // tasks and proxy operations that did not end
	Proxies, ProxyBytes uint64          // proxy operations that ended, and what NCCL said that they sent
	Traffic             map[uint8]Count // by layer's index: what was posted for them
	Ambiguous           map[uint8]Count // the part of Traffic of which it is not known which task of these it was for
}

// task is a collective or point-to-point operation that proxy operations may name.
type task struct {
	entry        int32
	open, kept   bool
	communicator *state
	function     uint32
	sequence     uint64
	number       uint32
}

// connection is what NCCL posts on: a request's queue belongs to one as long as it lives.
type connection struct {
	communicator uint32
	channel      uint64
	peer         int64
	send         bool
}

// proxy is a proxy operation that has begun.
type proxy struct {
	entry      int32
	kept       bool
	number     uint64
	connection connection
	task       *task // nil where it is not known
	progress   bool  // it may post
}

// groups is what is known of NCCL in a process.
type groups struct {
	tasks   map[uint64]*task
	order   []uint64 // of tasks, the oldest first
	proxies map[uint64]*proxy
	threads map[uint32][]*proxy // that a thread works on, in order of their begin
	posted  map[uint32]*state   // what the thread last posted on, since it last handed a step to the network
	bound   map[*state][]connection
}

// Bounds of what is kept: tasks after their end, for proxy operations that begin later; proxy operations under way.
const (
	maxTasks   = 1 << 16
	maxProxies = 1 << 16
)

func (p *Pairer) nccl(ev *capture.Event) {
	g := &p.groups
	if g.tasks == nil {
		*g = groups{tasks: map[uint64]*task{}, proxies: map[uint64]*proxy{}, threads: map[uint32][]*proxy{}, posted: map[uint32]*state{}, bound: map[*state][]connection{}}
	}
	switch ev.ID {
	case catalogue.EventNcclCollective, catalogue.EventNcclPointToPoint:
		p.beginTask(ev)
	case catalogue.EventNcclTaskEnd:
		if t := g.tasks[ev.Fields[catalogue.NcclTaskEndTask]]; t != nil && t.open {
			t.open = false
			p.group(t.communicator, t.function).Unfinished--
			if t.kept {
				p.complete(t.entry, p.process.Clock.NS(ev.Time), 0, 0)
			}
		}
	case catalogue.EventNcclProxy:
		p.beginProxy(ev)
	case catalogue.EventNcclProxyProgress:
		if x := g.proxies[ev.Fields[catalogue.NcclProxyStateProxy]]; x != nil {
			x.progress = true
		}
	case catalogue.EventNcclProxyEnd:
		p.endProxy(ev)
	case catalogue.EventNcclStepPosted:
		p.stepPosted(ev)
	}
}

func (p *Pairer) group(s *state, function uint32) *Group {
	key := GroupKey{Function: function}
	if s != nil {
		key.Object = s.object.ID
	}
	x := p.Counts.Groups[key]
	if x == nil {
		x = &Group{Traffic: map[uint8]Count{}, Ambiguous: map[uint8]Count{}}
		p.Counts.Groups[key] = x
	}
	return x
}

func (p *Pairer) beginTask(ev *capture.Event) {
	g, f := &p.groups, &ev.Fields
	s := p.state(uint32(f[catalogue.NcclTaskCommunicator]), nccl)
	i, ok := p.post(ev, s, ops.Local, f[catalogue.NcclTaskBytes])
	p.nextLocal(i, s)
	t := &task{entry: i, open: true, kept: ok, communicator: s, function: uint32(f[catalogue.NcclTaskFunction]), sequence: f[catalogue.NcclTaskSequence],
		number: uint32(f[catalogue.NcclTaskTask])}
	x := p.group(s, t.function)
	x.Tasks++
	x.Bytes += f[catalogue.NcclTaskBytes]
	x.Unfinished++
	p.slab.at(i).op.For = t.is(s)
	if !ok {
		p.overflow(i)
	}
	g.tasks[f[catalogue.NcclTaskTask]] = t
	g.order = append(g.order, f[catalogue.NcclTaskTask])
	if len(g.order) > maxTasks {
		if old := g.tasks[g.order[0]]; old != nil && !old.open {
			delete(g.tasks, g.order[0])
		}
		g.order = g.order[1:]
	}
}

// is says that something belongs to a task.
func (t *task) is(s *state) ops.For {
	return ops.For{Candidates: 1, Communicator: 1 + s.object.Local, Task: t.number, Function: t.function, Sequence: t.sequence}
}

func (p *Pairer) beginProxy(ev *capture.Event) {
	g, f := &p.groups, &ev.Fields
	s := p.state(uint32(f[catalogue.NcclProxyCommunicator]), nccl)
	if len(g.proxies) >= maxProxies {
		p.Counts.Overflow++
		return
	}
	i, ok := p.post(ev, s, ops.Local, 0)
	p.nextLocal(i, s)
	x := &proxy{entry: i, kept: ok, number: f[catalogue.NcclProxyProxy],
		connection: connection{s.object.ID, f[catalogue.NcclProxyChannel], int64(f[catalogue.NcclProxyPeer]), f[catalogue.NcclProxyDirection] == catalogue.NcclDirectionSend}}
	what := ops.For{Candidates: 1, Communicator: 1 + s.object.Local}
	if f[catalogue.NcclProxyProcess] == 0 {
		if x.task = g.tasks[f[catalogue.NcclProxyTask]]; x.task != nil {
			what = x.task.is(s)
		}
	}
	what.Channel = 1 + uint16(x.connection.channel)
	p.slab.at(i).op.For = what
	if !ok {
		p.overflow(i)
	}
	g.proxies[x.number] = x
	g.threads[ev.Thread] = append(g.threads[ev.Thread], x)
	p.group(s, x.function()).Unfinished++
}

func (x *proxy) function() uint32 {
	if x.task == nil {
		return 0
	}
	return x.task.function
}

func (p *Pairer) endProxy(ev *capture.Event) {
	g, number := &p.groups, ev.Fields[catalogue.NcclProxyStateProxy]
	x := g.proxies[number]
	if x == nil {
		return
	}
	delete(g.proxies, number)
	for thread, all := range g.threads {
		if i := slices.Index(all, x); i >= 0 {
			g.threads[thread] = slices.Delete(all, i, i+1)
			break
		}
	}
	sum := p.group(p.state(x.connection.communicator, nccl), x.function())
	sum.Unfinished--
	sum.Proxies++
	if x.connection.send {
		sum.ProxyBytes += ev.Fields[catalogue.NcclProxyStateBytes]
	}
	if x.kept {
		p.slab.at(x.entry).op.Bytes = ev.Fields[catalogue.NcclProxyStateBytes]
		p.complete(x.entry, p.process.Clock.NS(ev.Time), 0, 0)
	}
}

// stepPosted learns which connection a queue is part of: NCCL says so just after it has posted.
func (p *Pairer) stepPosted(ev *capture.Event) {
	g := &p.groups
	x, s := g.proxies[ev.Fields[catalogue.NcclStepProxy]], g.posted[ev.Thread]
	delete(g.posted, ev.Thread)
	if x == nil || s == nil || slices.Contains(g.bound[s], x.connection) {
		return
	}
	g.bound[s] = append(g.bound[s], x.connection)
}

// forGroup says for which of NCCL's operations a thread posts a request, by those that it works on.
func (p *Pairer) forGroup(ev *capture.Event, s *state, role ops.Role, bytes uint64) ops.For {
	g := &p.groups
	all := g.threads[ev.Thread]
	if len(all) == 0 || s.layer == p.ncclLayer || s.layer == p.appLayer {
		return ops.For{}
	}
	switch p.catalogue.Event(ev.ID).Kind {
	case catalogue.Request, catalogue.Call, catalogue.Control:
	default:
		return ops.For{}
	}
	g.posted[ev.Thread] = s
	candidates := p.candidates(all, s, p.process.Clock.NS(ev.Time))
	if len(candidates) == 0 {
		return ops.For{}
	}
	what, common := p.inCommon(candidates)
	if role != ops.Target {
		n := uint64(1)
		if p.catalogue.Event(ev.ID).Kind == catalogue.Call {
			n = ev.Fields[catalogue.CallRequests]
		}
		sum := p.group(common, what.Function)
		add(sum.Traffic, s.layer, n, bytes)
		if what.Task == 0 {
			add(sum.Ambiguous, s.layer, n, bytes)
		}
	}
	return what
}

func add(to map[uint8]Count, layer uint8, requests, bytes uint64) {
	c := to[layer]
	c.Requests += requests
	c.Bytes += bytes
	to[layer] = c
}

// candidates are the proxy operations that a queue's request may be for: of each connection the first that is under way, since NCCL works on those of one connection in turn.
func (p *Pairer) candidates(all []*proxy, s *state, ns int64) []*proxy {
	var found []*proxy
	bound := p.groups.bound[s]
	remote, known := p.remote(s, ns)
	for _, x := range all {
		switch {
		case !x.progress:
		case len(bound) > 0 && !slices.Contains(bound, x.connection):
		case len(bound) == 0 && known && !p.leadsTo(x, remote):
		case slices.ContainsFunc(found, func(y *proxy) bool { return y.connection == x.connection }):
		default:
			found = append(found, x)
		}
	}
	return found
}

// remote is the process at the other side of a queue, where it is known.
func (p *Pairer) remote(s *state, ns int64) (*topology.Process, bool) {
	r := p.topology.Peer(s.object, ns)
	if r.Object == 0 || int(r.Process) >= len(p.topology.Processes) || p.topology.Processes[r.Process] == nil {
		return nil, false
	}
	return p.topology.Processes[r.Process], true
}

// leadsTo says whether a proxy operation's peer may be a process. What is not known may.
func (p *Pairer) leadsTo(x *proxy, remote *topology.Process) bool {
	o := p.process.Objects[x.connection.communicator]
	if o == nil || o.Communicator == nil {
		return true
	}
	ranks := remote.RanksIn(o.Communicator.Hash)
	return len(ranks) == 0 || slices.Contains(ranks, x.connection.peer)
}

// inCommon is what all candidates agree in.
func (p *Pairer) inCommon(candidates []*proxy) (ops.For, *state) {
	var common ops.For
	for i, x := range candidates {
		s := p.state(x.connection.communicator, nccl)
		one := ops.For{Channel: 1 + uint16(x.connection.channel), Communicator: 1 + s.object.Local}
		if x.task != nil {
			one.Task, one.Function, one.Sequence = x.task.number, x.task.function, x.task.sequence
		}
		if i == 0 {
			common = one
			continue
		}
		if common.Channel != one.Channel {
			common.Channel = 0
		}
		if common.Communicator != one.Communicator {
			common.Communicator = 0
		}
		if common.Task != one.Task {
			common.Task, common.Sequence = 0, 0
		}
		if common.Function != one.Function {
			common.Function = 0
		}
	}
	common.Candidates = uint16(min(len(candidates), 1<<16-1))
	if common.Communicator == 0 {
		return common, nil
	}
	return common, p.state(candidates[0].connection.communicator, nccl)
}
