package timeline

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// Sym is an index into Plan.Symbols.
type Sym int32

// ArgKind says how an argument's value is to be shown.
type ArgKind uint8

// Kinds of arguments.
const (
	Uint ArgKind = iota // Arg.Value
	Int                 // int64(Arg.Value)
	Hex                 // Arg.Value: an address, key or id
	Text                // Arg.Text
	True                // a fact that holds
)

// Arg is an argument of a slice.
type Arg struct {
	Name  int // index into Plan.ArgNames
	Kind  ArgKind
	Text  Sym
	Value uint64
}

// Arguments that do not come from a record's layout.
const (
	argBytes = iota
	argPeer
	argOrdinal
	argThread
	argRequests
	argPolls
	argRoom
	argStatus
	argStatusName
	argUnfinished
	argImplied
	argAmbiguous
	argImmediate
	argReversed
	argElements
	argFirst
	argGPU
	argPeerGPU
	argUnseen
	argCommunicator
	argFunction
	argSequence
	argTask
	argChannel
	argCandidates
	ownArgs // how many there are
)

var ownArgNames = [ownArgs]string{"bytes", "peer", "ordinal", "thread", "requests", "polls", "posted_bytes", "status", "status_name",
	"unfinished", "implied", "ambiguous", "complete_on_return", "ends_before_post_ns", "elements", "first", "gpu", "peer_gpu", "completion_unseen",
	"communicator", "collective", "sequence", "task", "channel", "candidates"}

// renamed are the fields of records that are called otherwise in traces, because their name says something else there, or that are
// shown by an argument of the operation itself ("").
var renamed = map[string]map[string]string{
	"ucp_request":       {"status": "result", "duration": "call_ns"},
	"uct_request":       {"status": "result", "duration": "call_ns", "parent": "parent_request"},
	"call":              {"operation": "", "requests": "", "peer": "remote_qpn", "duration": ""},
	"verbs_empty_polls": {"count": "", "duration": ""},
	"ofi_message":       {"duration": "call_ns"},
	"ofi_access":        {"duration": "call_ns"},
	"ofi_empty_polls":   {"count": "", "duration": ""},
	"app_phase":         {"name": "", "range": ""},
	"gpu_launch":        {"function": "", "duration": "call_ns"},
	"gpu_graph_launch":  {"duration": "call_ns"},
	"gpu_kernel":        {"function": "", "running": ""},
	"doorbell_request":  {"form": ""}, // bits of the control segment: for who rebuilds the element's bytes (merge/elements)
	"nccl_task":         {"task": "", "sequence": "", "function": "", "peer": "peer_rank"},
	"nccl_proxy":        {"task": "", "process": "task_process", "channel": "", "peer": "peer_rank"},
}

// keepsZero says whether a zero in a field says something; other numbers are left out when zero.
func keepsZero(e *catalogue.Event, field string) bool {
	switch field {
	case "wr_id":
		return true
	case "peer":
		return e.ID == catalogue.EventNcclProxy || e.ID == catalogue.EventNcclPointToPoint
	case "tag":
		return e.Operation == "tag_send" || e.Operation == "tag_recv" || e.Operation == "am_send" ||
			e.Operation == "tagged_send" || e.Operation == "tagged_recv"
	}
	return false
}

type fieldText struct {
	arg      int // index into Plan.ArgNames
	field    int // index into Op.Fields
	kind     ArgKind
	keepZero bool
	object   bool  // shown by its name
	ticks    bool  // of the recording clock, shown as ns
	name     bool  // number of a name that the process told
	values   []Sym // names of an enumeration's values or of a set of flags; noSym where there is none
}

type eventText struct {
	event    *catalogue.Event
	name     Sym
	layer    Sym
	fields   []fieldText
	byOpcode []Sym // names by the opcode field, where the event counts as no operation
	opcode   int
	bytes    int // index of the field that holds the posted bytes, or -1
	function int // index of the field that names a kernel's function, or -1
}

// texts holds what turns operations into names and arguments.
type texts struct {
	events    []*eventText // by event id
	peers     []Sym        // by endpoint, with its process
	endpoints []Sym        // by endpoint
	gpus      []Sym        // by GPU
	threads   []map[uint32]Sym
	names     []map[uint32]Sym // of phases, and of what NCCL names
	objects   []map[uint32]Sym // of functions and streams
	statuses  map[string][]Sym // by layer
}

// Well-known symbols of every plan.
const (
	SymError     Sym = iota // category of operations that failed
	SymPosted               // instant that a flow leaves from
	SymComplete             // instant that the flow of a one-sided operation arrives at
	SymReceived             // instant that the flow of a message arrives at
	SymStarted              // instant that the flow of a launch arrives at
	SymControl              // category of what only synchronizes
	SymAddressed            // instant that the flow of an element arrives at
	symPolls
	symUnknownThread
	symDoorbell
	symControlDoorbell
)

var wellKnown = []string{SymError: "error", SymPosted: "posted", SymComplete: "completed", SymReceived: "received", SymStarted: "started",
	SymControl: "control", SymAddressed: "addressed", symPolls: "empty polls", symUnknownThread: "unknown thread",
	symDoorbell: "doorbell", symControlDoorbell: "control doorbell"}

func (p *Plan) makeTexts() {
	index := map[string]Sym{}
	sym := func(s string) Sym {
		i, ok := index[s]
		if !ok {
			i = Sym(len(p.Symbols))
			index[s] = i
			p.Symbols = append(p.Symbols, s)
		}
		return i
	}
	for _, s := range wellKnown {
		sym(s)
	}
	p.ArgNames = append(p.ArgNames, ownArgNames[:]...)
	argIndex := map[string]int{}
	for i, n := range p.ArgNames {
		argIndex[n] = i
	}
	arg := func(name string) int {
		i, ok := argIndex[name]
		if !ok {
			i = len(p.ArgNames)
			argIndex[name] = i
			p.ArgNames = append(p.ArgNames, name)
		}
		return i
	}
	for _, e := range catalogue.Default.Events {
		for int(e.ID) >= len(p.text.events) {
			p.text.events = append(p.text.events, nil)
		}
		p.text.events[e.ID] = p.eventText(e, sym, arg)
	}
	p.text.statuses = map[string][]Sym{}
	for _, layer := range slices.Sorted(maps.Keys(statusNames)) {
		for _, n := range statusNames[layer] {
			if n == "" {
				p.text.statuses[layer] = append(p.text.statuses[layer], noSym)
				continue
			}
			p.text.statuses[layer] = append(p.text.statuses[layer], sym(n))
		}
	}
	p.text.peers, p.text.endpoints = make([]Sym, len(p.Run.Endpoints)), make([]Sym, len(p.Run.Endpoints))
	for e := range p.Run.Endpoints {
		ep := &p.Run.Endpoints[e]
		if int(ep.Process) < len(p.Run.Processes) {
			p.text.peers[e] = sym(p.title(int(ep.Process)) + ": " + ep.Name)
		}
		if ep.Layer == "nccl" {
			p.text.endpoints[e] = sym(ep.Name)
		}
	}
	for i := range p.Run.GPUs {
		p.text.gpus = append(p.text.gpus, sym(p.Run.GPUs[i].Name))
	}
	symbolsOf := func(names map[uint32]string) map[uint32]Sym {
		table := map[uint32]Sym{}
		for _, n := range slices.Sorted(maps.Keys(names)) {
			table[n] = sym(names[n])
		}
		return table
	}
	for i := range p.Run.Processes {
		p.text.threads = append(p.text.threads, symbolsOf(p.Run.Processes[i].Threads))
		p.text.names = append(p.text.names, symbolsOf(p.Run.Processes[i].Names))
		p.text.objects = append(p.text.objects, symbolsOf(p.Run.Processes[i].Objects))
	}
}

func (p *Plan) eventText(e *catalogue.Event, sym func(string) Sym, arg func(string) int) *eventText {
	t := &eventText{event: e, layer: sym(e.Layer), bytes: e.Layout.FieldIndex("bytes"), opcode: -1, function: e.Layout.FieldIndex("function")}
	switch {
	case e.Operation != "":
		t.name = sym(e.Operation)
	default:
		t.name = sym(strings.TrimPrefix(e.Name, e.Layer+"_"))
		if i := e.Layout.FieldIndex("opcode"); i >= 0 && e.Layout.Fields[i].Type == catalogue.Enum {
			t.opcode = i
			t.byOpcode = symbols(catalogue.Default.Enums[e.Layout.Fields[i].Of], sym)
		}
	}
	for i, f := range e.Layout.Fields {
		name := f.Name
		if r, ok := renamed[e.Layout.Name][f.Name]; ok {
			name = r
		}
		ft := fieldText{field: i, keepZero: keepsZero(e, f.Name)}
		switch f.Type {
		case catalogue.Uint, catalogue.Parent:
			ft.kind = Uint
		case catalogue.Int:
			ft.kind = Int
		case catalogue.Address, catalogue.Key:
			ft.kind = Hex
		case catalogue.Ticks:
			ft.kind, ft.ticks = Uint, true
		case catalogue.Name:
			ft.name = true
		case catalogue.Enum:
			ft.kind, ft.keepZero, ft.values = Text, true, symbols(catalogue.Default.Enums[f.Of], sym)
		case catalogue.Flags:
			ft.kind, ft.values = Text, symbols(flagSets(catalogue.Default.Enums[f.Of]), sym)
		case catalogue.Object:
			if i == 0 || e.Layer != "gpu" {
				continue
			}
			ft.kind, ft.object = Text, true
		default: // objects are the endpoint itself; bytes are the operation's own; the rest cannot be in Op.Fields
			continue
		}
		if name != "" {
			ft.arg = arg(name)
			t.fields = append(t.fields, ft)
		}
	}
	return t
}

// noSym stands for a value without a name; values over maxNamed have none.
const (
	noSym    Sym = -1
	maxNamed     = 1 << 12
)

// symbols makes a table by value. Symbols are made in order of value: Plan.Symbols is the same every time.
func symbols(names map[string]uint64, sym func(string) Sym) []Sym {
	var table []Sym
	byValue := slices.SortedFunc(maps.Keys(names), func(a, b string) int {
		return cmp.Or(cmp.Compare(names[a], names[b]), cmp.Compare(a, b))
	})
	for _, n := range byValue {
		if v := names[n]; v < maxNamed {
			for uint64(len(table)) <= v {
				table = append(table, noSym)
			}
			table[v] = sym(n)
		}
	}
	return table
}

// flagSets gives every set of the flags of an enumeration a name: "signaled|inline".
func flagSets(flags map[string]uint64) map[string]uint64 {
	sets := map[uint64]string{0: ""}
	for bit := uint64(1); bit < maxNamed; bit <<= 1 {
		for name, v := range flags {
			if v == bit {
				with := maps.Clone(sets)
				for set, s := range sets {
					with[set|bit] = strings.TrimPrefix(s+"|"+name, "|")
				}
				sets = with
			}
		}
	}
	out := map[string]uint64{}
	for set, name := range sets {
		out[name] = set
	}
	return out
}

// named is the name of value v in a table.
func named(table []Sym, v uint64) (Sym, bool) {
	if v >= uint64(len(table)) || table[v] == noSym {
		return 0, false
	}
	return table[v], true
}

// Name is the name of an operation's slice.
func (p *Plan) Name(op *ops.Op) Sym {
	t := p.text.events[op.Event]
	switch {
	case op.Flags&ops.PollRecord != 0:
		return symPolls
	case op.Flags&(ops.Doorbell|ops.Synchronizes) == ops.Doorbell:
		return symDoorbell
	case op.Flags&ops.Doorbell != 0:
		return symControlDoorbell
	case op.Flags&ops.CallRecord != 0:
		if id := op.Fields[catalogue.CallOperation]; id < uint64(len(p.text.events)) && p.text.events[id] != nil {
			return p.text.events[id].name
		}
	case t.event.Layer == "nccl":
		if s, ok := p.text.names[op.Process][op.For.Function]; ok && t.event.ID != catalogue.EventNcclProxy {
			return s
		}
	case t.event.Kind == catalogue.Phase:
		if s, ok := p.text.names[op.Process][uint32(op.Fields[catalogue.AppPhaseName])]; ok {
			return s
		}
	case t.function >= 0:
		if s, ok := p.text.objects[op.Process][uint32(op.Fields[t.function])]; ok {
			return s
		}
	case t.byOpcode != nil:
		if s, ok := named(t.byOpcode, op.Fields[t.opcode]); ok {
			return s
		}
	}
	return t.name
}

// Layer is the category of an operation's slice.
func (p *Plan) Layer(op *ops.Op) Sym { return p.text.events[op.Event].layer }

// Status is the name of an operation's status, false where there is none.
func (p *Plan) Status(op *ops.Op) (Sym, bool) {
	names := p.text.statuses[p.text.events[op.Event].event.Layer]
	if n := abs(op.Status); int(n) < len(names) {
		return names[n], true
	}
	return 0, false
}

// Args appends the arguments of an operation's slice to args.
func (p *Plan) Args(op *ops.Op, args []Arg) []Arg {
	t := p.text.events[op.Event]
	num := func(name int, v uint64) { args = append(args, Arg{Name: name, Kind: Uint, Value: v}) }
	text := func(name int, s Sym) { args = append(args, Arg{Name: name, Kind: Text, Text: s}) }
	if op.Flags&ops.PollRecord != 0 {
		num(argPolls, uint64(op.Requests))
	} else {
		if t.bytes >= 0 {
			num(argBytes, op.Bytes)
			if op.Fields[t.bytes] != op.Bytes {
				num(argRoom, op.Fields[t.bytes])
			}
		}
		switch {
		case op.Flags&ops.Doorbell != 0:
			num(argElements, uint64(op.Requests))
			if id := op.Fields[catalogue.CallOperation]; id < uint64(len(p.text.events)) && p.text.events[id] != nil {
				text(argFirst, p.text.events[id].name)
			}
		case op.Flags&ops.CallRecord != 0:
			num(argRequests, uint64(op.Requests))
		}
		num(argOrdinal, op.Ordinal)
	}
	if op.Peer > 0 && int(op.Peer) <= len(p.text.peers) {
		text(argPeer, p.text.peers[op.Peer-1])
	}
	if gpu := p.Run.Endpoints[op.Endpoint].GPU; gpu > 0 && int(gpu) <= len(p.text.gpus) {
		text(argGPU, p.text.gpus[gpu-1])
	}
	if gpu := op.PeerGPU; gpu > 0 && int(gpu) <= len(p.text.gpus) {
		text(argPeerGPU, p.text.gpus[gpu-1])
	}
	if t.event.Layer != doorbellLayer { // a thread of the recorder tells of what a GPU does
		thread, ok := p.text.threads[op.Process][op.Thread]
		if !ok {
			thread = symUnknownThread
		}
		text(argThread, thread)
	}
	for i := range t.fields {
		f := &t.fields[i]
		v := op.Fields[f.field]
		switch {
		case v == 0 && !f.keepZero:
		case f.object:
			if s, ok := p.text.objects[op.Process][uint32(v)]; ok {
				text(f.arg, s)
			}
		case f.name:
			if s, ok := p.text.names[op.Process][uint32(v)]; ok {
				text(f.arg, s)
			}
		case f.ticks:
			num(f.arg, uint64(float64(v)*p.Run.Processes[op.Process].TickNS+0.5))
		case f.kind == Text:
			if s, ok := named(f.values, v); ok {
				text(f.arg, s)
			} else {
				num(f.arg, v)
			}
		default:
			args = append(args, Arg{Name: f.arg, Kind: f.kind, Value: v})
		}
	}
	args = p.forArgs(op, args)
	if op.Flags&ops.Failed != 0 {
		args = append(args, Arg{Name: argStatus, Kind: Int, Value: uint64(int64(op.Status))})
		if name, ok := p.Status(op); ok {
			text(argStatusName, name)
		}
	}
	for _, f := range flagArgs {
		if op.Flags&f.flag != 0 {
			args = append(args, Arg{Name: f.arg, Kind: True})
		}
	}
	if op.Done < op.Post {
		num(argReversed, uint64(op.Post-op.Done))
	}
	return args
}

// forArgs appends for which of NCCL's operations a request was posted.
func (p *Plan) forArgs(op *ops.Op, args []Arg) []Arg {
	x := &op.For
	if x.Candidates == 0 {
		return args
	}
	if x.Communicator > 0 && int(x.Communicator) <= len(p.text.peers) {
		args = append(args, Arg{Name: argCommunicator, Kind: Text, Text: p.text.endpoints[x.Communicator-1]})
	}
	if s, ok := p.text.names[op.Process][x.Function]; ok {
		args = append(args, Arg{Name: argFunction, Kind: Text, Text: s})
	}
	if x.Task > 0 {
		args = append(args, Arg{Name: argSequence, Kind: Uint, Value: x.Sequence}, Arg{Name: argTask, Kind: Uint, Value: uint64(x.Task)})
	}
	if x.Channel > 0 {
		args = append(args, Arg{Name: argChannel, Kind: Uint, Value: uint64(x.Channel - 1)})
	}
	if x.Candidates > 1 {
		args = append(args, Arg{Name: argCandidates, Kind: Uint, Value: uint64(x.Candidates)})
	}
	return args
}

var flagArgs = []struct {
	flag ops.Flag
	arg  int
}{{ops.Unfinished, argUnfinished}, {ops.Implied, argImplied}, {ops.Ambiguous, argAmbiguous}, {ops.Immediate, argImmediate}, {ops.Unseen, argUnseen}}

func abs(v int32) uint32 {
	if v < 0 {
		return uint32(-int64(v))
	}
	return uint32(v)
}

// check refuses what would index past the plan's tables.
func (p *Plan) check(op *ops.Op) error {
	switch {
	case int(op.Event) >= len(p.text.events) || p.text.events[op.Event] == nil:
		return fmt.Errorf("operation with event id %d, which the catalogue does not have", op.Event)
	case int(op.PeerGPU) > len(p.Run.GPUs):
		return fmt.Errorf("operation that goes to GPU %d of a run with %d", op.PeerGPU-1, len(p.Run.GPUs))
	case int(op.Process) >= len(p.Run.Processes) || int(op.Endpoint) >= len(p.Run.Endpoints):
		return fmt.Errorf("operation of process %d and endpoint %d of a run with %d and %d", op.Process, op.Endpoint, len(p.Run.Processes), len(p.Run.Endpoints))
	}
	lanes, name := p.endpoints[op.Endpoint].lanes, p.Run.Endpoints[op.Endpoint].Name
	if p.ranks[op.Process] && p.layers[p.text.events[op.Event].event.Layer] && int(op.Lane) >= lanes {
		return fmt.Errorf("operation on lane %d of endpoint %q, which has %d", op.Lane, name, lanes)
	}
	return nil
}
