package parquet

import (
	"strconv"
	"strings"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline"
)

// operation holds the columns that operations of every layer have.
type operation struct {
	PostNS           int64   `parquet:"post_ns,delta" doc:"when it was posted, nanoseconds since the Unix epoch on the run's clock"`
	DoneNS           int64   `parquet:"done_ns,delta" doc:"when it was complete, on the same clock; where unfinished, until when it may have been going on"`
	Operation        string  `parquet:"operation,dict" doc:"what it did, as slices are named in the trace"`
	Event            string  `parquet:"event,dict" doc:"the event of the catalogue that it was recorded as"`
	Kind             string  `parquet:"kind,dict" doc:"request; call: one of mode simple, of one or more requests, or a doorbell of that mode; polls: a run of empty polls; control: moves nothing; phase; launch and kernel: of a GPU"`
	Role             string  `parquet:"role,dict" doc:"initiator: counts; target: a receive, which only cross-checks; one_sided: counts; local: a call of mode simple, polls, control"`
	Bytes            uint64  `parquet:"bytes" doc:"payload; of a completed receive what was received"`
	Requests         uint32  `parquet:"requests,dict" doc:"1, or how many requests of a call, or empty polls"`
	Rank             *int64  `parquet:"rank,optional,dict" doc:"of the process; null where it has none"`
	Host             string  `parquet:"host,dict" doc:"host name of the process"`
	Node             string  `parquet:"node,dict" doc:"host and boot: the folder of its capture"`
	Pid              uint32  `parquet:"pid,dict" doc:"process id"`
	Process          uint32  `parquet:"process,dict" doc:"row of processes.parquet"`
	Thread           uint32  `parquet:"thread,dict" doc:"thread of the process, as in threads.parquet"`
	Sequence         uint64  `parquet:"sequence,delta" doc:"order of recording within the thread"`
	Endpoint         uint32  `parquet:"endpoint,dict" doc:"row of endpoints.parquet"`
	EndpointKind     string  `parquet:"endpoint_kind,dict" doc:"endpoint, worker, qp, srq, cq, track, communicator"`
	EndpointName     string  `parquet:"endpoint_name,dict" doc:"as in the trace"`
	PeerRank         *int64  `parquet:"peer_rank,optional,dict" doc:"rank at the other side; null where the peer is not known or has none"`
	PeerHost         *string `parquet:"peer_host,optional,dict" doc:"host name of the peer"`
	PeerNode         *string `parquet:"peer_node,optional,dict" doc:"node of the peer"`
	PeerProcess      *uint32 `parquet:"peer_process,optional,dict" doc:"row of processes.parquet of the peer; null where the peer is not known"`
	PeerEndpoint     *uint32 `parquet:"peer_endpoint,optional,dict" doc:"row of endpoints.parquet of the peer"`
	PeerName         *string `parquet:"peer_name,optional,dict" doc:"name of the peer's endpoint"`
	Ordinal          uint64  `parquet:"ordinal,delta" doc:"number of the request on its endpoint, from 0"`
	Lane             uint32  `parquet:"lane,dict" doc:"operations of one endpoint and lane never overlap"`
	Outstanding      uint32  `parquet:"outstanding,delta" doc:"requests outstanding on the endpoint just after the post"`
	OutstandingAfter uint32  `parquet:"outstanding_after,delta" doc:"the same just after the completion"`
	TotalBytes       uint64  `parquet:"total_bytes,delta" doc:"bytes posted on the endpoint by this role, this operation included"`
	GPU              *uint32 `parquet:"gpu,optional,dict" doc:"row of gpus.parquet of the GPU that the endpoint belongs to; null where it is not known"`
	PeerGPU          *uint32 `parquet:"peer_gpu,optional,dict" doc:"row of gpus.parquet of the GPU whose memory it addresses, or, at layer doorbell, that of the queue at the other side; null where it is not known"`
	Flow             *uint64 `parquet:"flow,optional" doc:"of a message: the same at send and receive; of a one-sided operation: its own; null where not matched"`
	Status           int32   `parquet:"status,dict" doc:"status of the completion; 0 is success"`
	StatusName       *string `parquet:"status_name,optional,dict" doc:"the status in words; null where it did not fail"`
	Unfinished       bool    `parquet:"unfinished" doc:"no completion was seen"`
	Failed           bool    `parquet:"failed" doc:"completed with an error"`
	Implied          bool    `parquet:"implied" doc:"its completion was implied by a later one of its queue"`
	Ambiguous        bool    `parquet:"ambiguous" doc:"the flow may belong to a neighbour"`
	CompleteOnReturn bool    `parquet:"complete_on_return" doc:"complete when the call returned"`
	CompletionUnseen bool    `parquet:"completion_unseen" doc:"of what GPUs ring for: its completion goes past everything recorded, and done_ns is the time of the doorbell again"`
	Synchronizes     bool    `parquet:"synchronizes" doc:"control of a barrier or signal, which moves no data of the application's: an element, or a doorbell of mode simple for such"`
	NcclCommunicator *string `parquet:"nccl_communicator,optional,dict" doc:"communicator of NCCL that it was posted for; null where there is none or it is not known"`
	NcclFunction     *string `parquet:"nccl_function,optional,dict" doc:"collective or point-to-point operation that it was posted for"`
	NcclSequence     *uint64 `parquet:"nccl_sequence,optional" doc:"number of the collective among those of its function on the communicator"`
	NcclTask         *uint32 `parquet:"nccl_task,optional" doc:"number of the collective or point-to-point operation in its process"`
	NcclChannel      *uint32 `parquet:"nccl_channel,optional,dict" doc:"channel of NCCL"`
	NcclCandidates   *uint32 `parquet:"nccl_candidates,optional,dict" doc:"connections of NCCL that it may have been posted on: over 1, the columns nccl_ hold what these have in common; null: it has to do with none"`
}

// end is an endpoint with its process, as columns show it.
type end struct {
	process, endpoint, pid uint32
	rank                   *int64
	host, node, kind, name string
}

var roles = [...]string{ops.Initiator: "initiator", ops.Target: "target", ops.OneSided: "one_sided", ops.Local: "local"}

// fill sets every column.
func (r *operation) fill(e *encoder, op *ops.Op) {
	own := &e.ends[op.Endpoint]
	*r = operation{
		PostNS: op.Post, DoneNS: op.Done, Operation: e.plan.Symbols[e.plan.Name(op)], Event: e.events[op.Event].name, Kind: e.events[op.Event].kind,
		Role: roles[op.Role], Bytes: op.Bytes, Requests: op.Requests, Rank: own.rank, Host: own.host, Node: own.node, Pid: own.pid,
		Process: op.Process, Thread: op.Thread, Sequence: op.Sequence, Endpoint: op.Endpoint, EndpointKind: own.kind, EndpointName: own.name,
		Ordinal: op.Ordinal, Lane: uint32(op.Lane), Outstanding: op.Outstanding, OutstandingAfter: op.After, TotalBytes: op.Total, Status: op.Status,
		Unfinished: op.Flags&ops.Unfinished != 0, Failed: op.Flags&ops.Failed != 0, Implied: op.Flags&ops.Implied != 0,
		Ambiguous: op.Flags&ops.Ambiguous != 0, CompleteOnReturn: op.Flags&ops.Immediate != 0,
		CompletionUnseen: op.Flags&ops.Unseen != 0, Synchronizes: op.Flags&ops.Synchronizes != 0, GPU: e.gpus[e.plan.Run.Endpoints[op.Endpoint].GPU], PeerGPU: e.gpus[op.PeerGPU],
	}
	if op.Peer > 0 && int(op.Peer) <= len(e.ends) {
		p := &e.ends[op.Peer-1]
		r.PeerRank, r.PeerHost, r.PeerNode, r.PeerProcess, r.PeerEndpoint, r.PeerName = p.rank, &p.host, &p.node, &p.process, &p.endpoint, &p.name
	}
	if op.Flow != 0 {
		r.Flow = &op.Flow
	}
	r.fillFor(e, op)
	if r.Failed {
		if name, ok := e.plan.Status(op); ok {
			r.StatusName = &e.plan.Symbols[name]
		}
	}
}

// name is a text that an operation's process told by its number, nil where it did not.
func (e *encoder) name(op *ops.Op, number uint64) *string {
	name, ok := e.plan.Run.Processes[op.Process].Names[uint32(number)]
	if !ok {
		return nil
	}
	return &name
}

// fillFor sets the columns that say for which of NCCL's operations it was posted.
func (r *operation) fillFor(e *encoder, op *ops.Op) {
	x := &op.For
	if x.Candidates == 0 {
		return
	}
	n := uint32(x.Candidates)
	r.NcclCandidates = &n
	if x.Communicator > 0 && int(x.Communicator) <= len(e.ends) {
		r.NcclCommunicator = &e.ends[x.Communicator-1].name
	}
	r.NcclFunction = e.name(op, uint64(x.Function))
	if x.Task > 0 {
		r.NcclTask, r.NcclSequence = &x.Task, &x.Sequence
	}
	if x.Channel > 0 {
		channel := uint32(x.Channel) - 1
		r.NcclChannel = &channel
	}
}

// eventText is how columns name an event.
type eventText struct{ name, kind string }

var kinds = map[catalogue.Kind]string{catalogue.Request: "request", catalogue.Call: "call", catalogue.Poll: "polls", catalogue.Control: "control",
	catalogue.Phase: "phase", catalogue.Launch: "launch", catalogue.Kernel: "kernel"}

// encoder turns operations into rows. It is used by one goroutine at a time.
type encoder struct {
	plan    *timeline.Plan
	ends    []end
	gpus    []*uint32   // by 1 + number
	events  []eventText // by event id
	layouts []uint8     // by event id
	layer   []string    // by event id
	text    []texts     // by enumeration
}

func newEncoder(p *timeline.Plan) *encoder {
	e := &encoder{plan: p, ends: make([]end, len(p.Run.Endpoints))}
	for i := range p.Run.Endpoints {
		x := &p.Run.Endpoints[i]
		q := &p.Run.Processes[x.Process]
		e.ends[i] = end{process: x.Process, endpoint: uint32(i), pid: q.Pid, host: q.Host, node: q.Node, kind: x.Kind, name: x.Name, rank: rankOf(q)}
	}
	e.gpus = append(e.gpus, nil)
	for i := range p.Run.GPUs {
		n := uint32(i)
		e.gpus = append(e.gpus, &n)
	}
	for _, v := range catalogue.Default.Events {
		for int(v.ID) >= len(e.events) {
			e.events, e.layouts, e.layer = append(e.events, eventText{}), append(e.layouts, layoutNone), append(e.layer, "")
		}
		e.events[v.ID] = eventText{v.Name, kinds[v.Kind]}
		e.layouts[v.ID], e.layer[v.ID] = layoutNumbers[v.Layout.Name], v.Layer
	}
	for _, n := range enumerations {
		e.text = append(e.text, texts{enumeration: n, names: map[uint64]*string{}})
	}
	return e
}

// rankOf is a process's rank, nil where it has none.
func rankOf(p *ops.Process) *int64 {
	if p.Rank < 0 {
		return nil
	}
	return &p.Rank
}

// nanoseconds turns a duration in ticks of an operation's recording clock into nanoseconds, which it puts into v.
func (e *encoder) nanoseconds(op *ops.Op, ticks uint64, v *int64) *int64 {
	*v = int64(float64(ticks)*e.plan.Run.Processes[op.Process].TickNS + 0.5)
	return v
}

// enumeration is one of the catalogue, of single values or of flags.
type enumeration struct {
	name  string
	flags bool
}

// texts are the names of an enumeration's values, each made when it is first used.
type texts struct {
	enumeration
	names map[uint64]*string
}

// of is the name of a value, or its number where it has none; set flags are joined by |.
func (t *texts) of(v uint64) *string {
	s := t.names[v]
	if s == nil {
		name := ""
		if t.flags {
			name = t.set(v)
		} else {
			name = catalogue.Default.EnumName(t.name, v)
		}
		s = &name
		if len(t.names) < 1<<12 {
			t.names[v] = s
		}
	}
	return s
}

func (t *texts) set(v uint64) string {
	var set []string
	for bit := uint64(1); bit != 0 && v != 0; bit <<= 1 {
		if v&bit == 0 {
			continue
		}
		v &^= bit
		name := catalogue.Default.EnumName(t.name, bit)
		if name == strconv.FormatUint(bit, 10) {
			name = "0x" + strconv.FormatUint(bit, 16)
		}
		set = append(set, name)
	}
	return strings.Join(set, "|")
}
