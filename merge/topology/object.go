// Package topology knows the objects that processes communicate through, and which object of which process is at the other side:
// connected queue pairs by number and GID or LID, datagrams by address handle and number, UCP endpoints by their peer's worker address,
// libfabric endpoints by their names.
package topology

import (
	"fmt"
	"math"

	"github.com/sigmatrace/sigmatrace/merge/clock"
)

// Kind of an object that operations belong to.
type Kind uint8

// Kinds of objects. Device and AddressHandle carry no operations.
const (
	Unknown Kind = iota // an object that events name and no definition introduced
	Worker
	Endpoint
	QueuePair
	SharedQueue
	CompletionQueue
	Device
	AddressHandle
	Interface      // of UCT: a transport on a device
	UCTEndpoint    // an endpoint of an interface: a lane
	FabricEndpoint // libfabric: an endpoint or context
	FabricPeer     // its way to one address
	FabricQueue
	FabricCounter
	Track // of marks and phases of the application
	GPUStream
	GPUThread // a thread that launches kernels
	Group     // a communicator of NCCL
)

var kindNames = [...]string{"object", "worker", "endpoint", "qp", "srq", "cq", "device", "ah", "uct_interface", "uct_endpoint",
	"fi_ep", "fi_peer", "fi_cq", "fi_cntr", "track", "gpu_stream", "gpu_thread", "communicator"}

func (k Kind) String() string { return kindNames[k] }

// Queue pair types of the catalogue's enumeration verbs_qp_type.
const (
	TypeRC         = 2
	TypeUC         = 3
	TypeUD         = 4
	TypeXRCSend    = 9
	TypeXRCReceive = 10
	TypeDriver     = 255 // of a device's own kind: mlx5's dynamically connected ones
)

// Forever is the end of an object that was never destroyed.
const Forever = int64(math.MaxInt64)

// Ref names an object of a process, by the process's index in Map.Processes. Object 0 is none.
type Ref struct{ Process, Object uint32 }

// Object is one object of a process. Times are nanoseconds on the run's clock; fields apply to the kinds that have them.
type Object struct {
	ID             uint32
	Local          uint32 // index among the process's objects that carry operations
	Kind           Kind
	Layer          string
	Created, Ended int64
	Worker         uint32 // of an endpoint; of one of UCT its interface
	Peer           Ref    // of an endpoint: the worker at the other side; of one of UCT that of the UCP endpoint that it is a lane of
	Device         uint32
	SendCQ, RecvCQ uint32
	SharedQueue    uint32 // of a queue pair that takes its receives from one
	QPN            uint32
	Type           uint8
	Blind          string // why the queue pair's data path is not seen
	Seen           bool   // its ring is read when it is rung
	GPU            uint32 // 1 + ordinal of the GPU that it belongs to, as the process counts them; 0 not known
	Connections    []Connection
	Path           Path   // of an address handle
	Target         bool   // an address handle of dynamically connected queues: QPN is the number that it leads to
	Label          string // socket address, device name, transport and device, name of a track's thread
	Fabric         *Fabric
	Communicator   *Communicator // of a group
}

// Carries tells whether operations may belong to the object.
func (o *Object) Carries() bool { return o.Kind != Device && o.Kind != AddressHandle }

// Path is where packets of a queue pair or address handle go.
type Path struct {
	Global bool
	GID    [16]byte
	LID    uint32
}

// Connection is a queue pair's life from one reset to the next. Numbers of queue pairs are used again, and one queue pair may be
// connected to several peers in turn: peers hold for a connection, never for a queue pair.
type Connection struct {
	From, To  int64
	Connected bool // the remote number is known
	QPN       uint32
	Path      Path
	Peer      Ref
	PeerIndex int // connection of the peer
}

// At returns the index of the connection that holds at time ns.
func (o *Object) At(ns int64) int {
	i := len(o.Connections) - 1
	for i > 0 && ns < o.Connections[i].From {
		i--
	}
	return i
}

// Reset is the time at which all requests outstanding on an object ended without completion: it was destroyed or reset.
type Reset struct {
	Ticks  uint64
	Object uint32
	End    bool // destroyed
}

// port is a device's address.
type port struct {
	lid, lmc uint32
}

// device is what packets find a process's opened device by.
type device struct {
	gids  map[[16]byte]bool
	ports []port
}

func (d *device) owns(p Path) bool {
	if d == nil {
		return false
	}
	if p.Global {
		return d.gids[p.GID]
	}
	for _, x := range d.ports {
		if x.lid != 0 && p.LID>>x.lmc == x.lid>>x.lmc {
			return true
		}
	}
	return false
}

// Process is one capture's process.
type Process struct {
	Index    uint32
	Node     string
	Identity uint64 // hash of node, pid, start time and image
	Clock    *clock.Clock
	Objects  map[uint32]*Object
	Carry    []*Object // those that carry operations, by Local
	Resets   []Reset   // in order of time
	Off      []Off
	Kernels  Kernels
	Bells    Doorbells
	Plugins  []Plugin
	devices  map[uint32]*device
	ways     map[way]*Object     // libfabric: ways of endpoints to addresses, the last of each
	members  map[uint32][]uint32 // libfabric: contexts of a scalable endpoint, endpoints of a shared receive context
	groups   map[uint64][]int64  // NCCL: ranks in communicators, by hash
	shared   map[uint32][]uint32 // libfabric: shared receive contexts that complete to a queue
	unknown  []*Object
	gpus     gpus
}

// Off is a layer, or a part of one, that a process did not record though it was asked to.
type Off struct{ Layer, Reason string }

// Mix hashes two numbers into one (the finaliser of splitmix64 over a multiplied sum).
func Mix(a, b uint64) uint64 {
	x := a*0x9e3779b97f4a7c15 + b + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Identify returns the identity of an object of the process, the same in every merge.
func (p *Process) Identify(object uint32) uint64 { return Mix(p.Identity, uint64(object)) }

// Object returns an object that operations of a layer name. One that no definition introduced is made, for each layer its own.
func (p *Process) Object(id uint32, layer string) *Object {
	if o := p.Objects[id]; o != nil && o.Carries() && o.Layer == layer {
		return o
	}
	for _, o := range p.unknown {
		if o.ID == id && o.Layer == layer {
			return o
		}
	}
	o := &Object{ID: id, Kind: Unknown, Layer: layer, Created: math.MinInt64, Ended: Forever, Local: uint32(len(p.Carry))}
	p.Carry = append(p.Carry, o)
	p.unknown = append(p.unknown, o)
	return o
}

func (p *Process) add(o *Object) {
	o.Layer = "verbs"
	switch o.Kind {
	case Worker, Endpoint:
		o.Layer = "ucp"
	case Interface, UCTEndpoint:
		o.Layer = "uct"
	case FabricEndpoint, FabricPeer, FabricQueue, FabricCounter:
		o.Layer = "ofi"
	case Track:
		o.Layer = "app"
	case GPUStream, GPUThread:
		o.Layer = "gpu"
	case Group:
		o.Layer = "nccl"
	}
	p.Objects[o.ID] = o
	if o.Carries() {
		o.Local = uint32(len(p.Carry))
		p.Carry = append(p.Carry, o)
	}
}

// Name is the object's short name for people, without its peer.
func (o *Object) Name() string {
	switch o.Kind {
	case QueuePair:
		return fmt.Sprintf("QP %#x", o.QPN)
	case Endpoint:
		return fmt.Sprintf("ep %d", o.ID)
	case Interface, GPUStream, GPUThread:
		return o.Label
	case UCTEndpoint:
		return fmt.Sprintf("%s ep %d", o.Label, o.ID)
	case SharedQueue:
		return fmt.Sprintf("SRQ %d", o.ID)
	case CompletionQueue, FabricQueue:
		return fmt.Sprintf("CQ %d", o.ID)
	case FabricEndpoint, FabricPeer:
		return fmt.Sprintf("fi ep %d", o.ID)
	case FabricCounter:
		return fmt.Sprintf("counter %d", o.ID)
	case Track:
		return "phases " + o.Label
	case Group:
		return o.Communicator.String()
	case Unknown:
		if o.ID == 0 {
			return "unknown object"
		}
		return fmt.Sprintf("object %d", o.ID)
	}
	return fmt.Sprintf("%s %d", o.Kind, o.ID)
}
