package topology

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// Bits of fi_ep_bind's flags and of an endpoint's capabilities, as rdma/fabric.h has them.
const (
	fiRead   = 1 << 8
	fiWrite  = 1 << 9
	fiRecv   = 1 << 10
	fiSend   = 1 << 11
	fiSource = 1 << 57
)

// Address formats of libfabric, and families of socket addresses.
const (
	formatSockaddr    = 1
	formatSockaddrIn  = 2
	formatSockaddrIn6 = 3
	formatSockaddrIB  = 4
	formatString      = 9
	formatEFA         = 12
	familyInet        = 2
	familyInet6       = 10
	efaAddress        = 24 // what follows is a pointer of the process that has it
)

// Fabric is what is known of a libfabric endpoint (FabricEndpoint) or of its way to an address (FabricPeer), which has its endpoint's
// number in Object.Worker.
type Fabric struct {
	Provider  string
	Connected bool   // one peer
	sources   bool   // completions tell who sent
	Parent    uint32 // scalable endpoint of a context
	Index     uint32 // of a context; of a way, the context that its address names
	Address   uint64 // of a way: fi_addr_t
	Format    uint32 // of a queue
	Counters  []FabricCount
	name      string // own name; of a way, that of the address
	peerName  string // of a connected endpoint, the other side's name
	class     uint32
	format    uint32
}

// FabricCount is a counter that counts completed operations of an endpoint: which ones, by fi_ep_bind's flags.
type FabricCount struct {
	Counter uint32
	flags   uint64
}

// Counts tells whether the counter counts an operation.
func (c FabricCount) Counts(event uint16) bool {
	switch event {
	case catalogue.EventOfiSend, catalogue.EventOfiTaggedSend:
		return c.flags&fiSend != 0
	case catalogue.EventOfiRecv, catalogue.EventOfiTaggedRecv:
		return c.flags&fiRecv != 0
	case catalogue.EventOfiRead:
		return c.flags&fiRead != 0
	case catalogue.EventOfiWrite:
		return c.flags&fiWrite != 0
	case catalogue.EventOfiAtomic:
		return c.flags&(fiWrite|fiRead) != 0
	}
	return false
}

// way names the way of an endpoint to an address.
type way struct {
	endpoint uint32
	address  uint64
}

// defineFabric takes the definitions of libfabric; nil where it is none that makes an object.
func (p *Process) defineFabric(d *capture.Definition, now int64) *Object {
	u := func(i int) uint32 { return uint32(d.Uint(i)) }
	fresh := func(kind Kind, id int) *Object {
		return &Object{ID: u(id), Kind: kind, Created: now, Ended: Forever, Fabric: &Fabric{}}
	}
	switch d.ID {
	case catalogue.DefOfiEndpoint:
		o := fresh(FabricEndpoint, catalogue.DefOfiEndpointObject)
		o.Fabric.Provider = d.String(catalogue.DefOfiEndpointProvider)
		o.Fabric.Connected = d.Uint(catalogue.DefOfiEndpointType) == catalogue.OfiEndpointTypeMsg
		o.Fabric.sources = d.Uint(catalogue.DefOfiEndpointCaps)&fiSource != 0
		o.Fabric.Parent, o.Fabric.Index = u(catalogue.DefOfiEndpointParent), u(catalogue.DefOfiEndpointIndex)
		o.Fabric.class, o.Fabric.format = u(catalogue.DefOfiEndpointClass), u(catalogue.DefOfiEndpointAddressFormat)
		if parent := o.Fabric.Parent; parent != 0 {
			p.members[parent] = append(p.members[parent], o.ID)
		}
		return o
	case catalogue.DefOfiName:
		if o := p.Objects[u(catalogue.DefOfiNameEndpoint)]; o != nil && o.Kind == FabricEndpoint {
			o.Fabric.name = p.fabricName(o.Fabric.format, d.Bytes(catalogue.DefOfiNameName))
			o.Fabric.peerName = p.fabricName(o.Fabric.format, d.Bytes(catalogue.DefOfiNamePeer))
		}
	case catalogue.DefOfiPeer:
		o := fresh(FabricPeer, catalogue.DefOfiPeerObject)
		o.Worker = u(catalogue.DefOfiPeerEndpoint)
		o.Fabric.Address, o.Fabric.Index = d.Uint(catalogue.DefOfiPeerAddress), u(catalogue.DefOfiPeerContext)
		if e := p.Objects[o.Worker]; e != nil && e.Kind == FabricEndpoint {
			o.Fabric.Provider = e.Fabric.Provider
			o.Fabric.name = p.fabricName(e.Fabric.format, d.Bytes(catalogue.DefOfiPeerName))
		}
		p.ways[way{o.Worker, o.Fabric.Address}] = o
		return o
	case catalogue.DefOfiCq:
		o := fresh(FabricQueue, catalogue.DefOfiCqObject)
		o.Fabric.Format = u(catalogue.DefOfiCqFormat)
		return o
	case catalogue.DefOfiCounter:
		return fresh(FabricCounter, catalogue.DefOfiCounterObject)
	case catalogue.DefOfiBind:
		p.bindFabric(u(catalogue.DefOfiBindEndpoint), u(catalogue.DefOfiBindObject), d.Uint(catalogue.DefOfiBindFlags))
	}
	return nil
}

func (p *Process) bindFabric(endpoint, object uint32, flags uint64) {
	e, o := p.Objects[endpoint], p.Objects[object]
	if e == nil || o == nil || e.Kind != FabricEndpoint {
		return
	}
	switch o.Kind {
	case FabricQueue:
		if flags&fiSend != 0 {
			e.SendCQ = object
		}
		if flags&fiRecv != 0 {
			e.RecvCQ = object
		}
	case FabricCounter:
		e.Fabric.Counters = append(e.Fabric.Counters, FabricCount{object, flags})
	case FabricEndpoint:
		e.SharedQueue = object
		p.members[object] = append(p.members[object], endpoint)
	}
	shared := e.SharedQueue
	if e.Fabric.class == catalogue.OfiClassSharedReceiveContext {
		shared = e.ID
	}
	if q := e.RecvCQ; shared != 0 && q != 0 && !slices.Contains(p.shared[q], shared) {
		p.shared[q] = append(p.shared[q], shared)
	}
}

// SharedContexts returns the shared receive contexts of which completions come to a queue: those of the endpoints that are bound to it.
func (p *Process) SharedContexts(queue uint32) []uint32 { return p.shared[queue] }

// fabricName makes a name comparable: socket addresses without what varies between copies of one, strings without their scheme, and
// what holds within a node only with the node.
func (p *Process) fabricName(format uint32, b []byte) string {
	if len(b) == 0 {
		return ""
	}
	// verbs calls the address of an endpoint that takes a connection one of InfiniBand, whatever it is.
	if format == formatSockaddrIB && len(b) >= 2 && slices.Contains([]uint16{familyInet, familyInet6}, binary.NativeEndian.Uint16(b)) {
		format = formatSockaddr
	}
	switch format {
	case formatString:
		if n := bytes.IndexByte(b, 0); n >= 0 {
			b = b[:n]
		}
		if _, rest, ok := bytes.Cut(b, []byte("://")); ok {
			b = rest
		}
		return fmt.Sprintf("%s %q", p.Node, b)
	case formatSockaddr, formatSockaddrIn, formatSockaddrIn6:
		return p.socketName(b)
	case formatEFA:
		b = b[:min(len(b), efaAddress)]
	}
	return fmt.Sprintf("%d %x", format, b)
}

func (p *Process) socketName(b []byte) string {
	family := uint16(0)
	if len(b) >= 8 {
		family = binary.NativeEndian.Uint16(b)
	}
	switch {
	case family == familyInet:
		if b[4] == 127 {
			return fmt.Sprintf("%s %x", p.Node, b[2:8])
		}
		return fmt.Sprintf("%x", b[2:8])
	case family == familyInet6 && len(b) >= 24:
		address := b[8:24]
		loopback := bytes.Equal(address, append(make([]byte, 15), 1))
		linkLocal := address[0] == 0xfe && address[1]&0xc0 == 0x80
		if loopback || linkLocal {
			return fmt.Sprintf("%s %x%x", p.Node, b[2:4], address)
		}
		return fmt.Sprintf("%x%x", b[2:4], address)
	}
	return fmt.Sprintf("%s %x", p.Node, b)
}

// Way returns what the way of an endpoint to an address leads to. A context that only receives has none: its endpoints', or those of the
// transmit contexts beside it, are asked, which have the same addresses unless they disagree.
func (p *Process) Way(endpoint uint32, address uint64) Ref {
	if o := p.ways[way{endpoint, address}]; o != nil {
		return o.Peer
	}
	beside := p.members[endpoint]
	if e := p.Objects[endpoint]; e != nil && e.Fabric != nil && e.Fabric.Parent != 0 {
		beside = p.members[e.Fabric.Parent]
	}
	var found Ref
	for _, m := range beside {
		switch o := p.ways[way{m, address}]; {
		case o == nil || o.Peer == found:
		case found != Ref{}:
			return Ref{}
		default:
			found = o.Peer
		}
	}
	return found
}

// TellsSources: completions of an endpoint's receives tell who sent, by its capabilities, or, of a context, by those of what it is part of.
func (p *Process) TellsSources(endpoint *Object) bool {
	f := endpoint.Fabric
	if f == nil {
		return false
	}
	tells := func(id uint32) bool {
		o := p.Objects[id]
		return o != nil && o.Fabric != nil && o.Fabric.sources
	}
	return f.sources || tells(f.Parent) || slices.ContainsFunc(p.members[endpoint.ID], tells)
}

// FabricOwner returns the endpoint that an endpoint or way of libfabric belongs to.
func (p *Process) FabricOwner(o *Object) *Object {
	if o.Kind == FabricPeer {
		if e := p.Objects[o.Worker]; e != nil {
			return e
		}
	}
	return o
}

// FabricQueues returns the completion queues of an endpoint; those of its scalable endpoint where a context has none. A shared receive
// context has several, its endpoints': its own number stands for them.
func (p *Process) FabricQueues(e *Object) (send, receive uint32) {
	send, receive = e.SendCQ, e.RecvCQ
	if e.Fabric != nil && e.Fabric.class == catalogue.OfiClassSharedReceiveContext {
		return send, e.ID
	}
	if e.Fabric != nil && e.Fabric.Parent != 0 {
		if parent := p.Objects[e.Fabric.Parent]; parent != nil {
			if send == 0 {
				send = parent.SendCQ
			}
			if receive == 0 {
				receive = parent.RecvCQ
			}
		}
	}
	return send, receive
}

// connectFabric finds the peers of libfabric's endpoints: ways by the name that the other side has, connected endpoints by the two names
// of the connection.
func (m *Map) connectFabric() {
	named, connected := map[string][]Ref{}, map[[2]string][]Ref{}
	each := func(f func(Ref, *Object)) {
		for i, p := range m.Processes {
			if p == nil {
				continue
			}
			for _, o := range p.Carry {
				if o.Fabric != nil {
					f(Ref{uint32(i), o.ID}, o)
				}
			}
		}
	}
	each(func(r Ref, o *Object) {
		switch {
		case o.Kind != FabricEndpoint || o.Fabric.name == "":
		case o.Fabric.Connected:
			key := [2]string{o.Fabric.name, o.Fabric.peerName}
			connected[key] = append(connected[key], r)
		default:
			named[o.Fabric.name] = append(named[o.Fabric.name], r)
		}
	})
	each(func(r Ref, o *Object) {
		switch {
		case o.Kind == FabricPeer && o.Fabric.name != "":
			o.Peer = m.contextOf(m.nearest(o, named[o.Fabric.name]), o.Fabric.Index)
		case o.Kind == FabricEndpoint && o.Fabric.Connected && o.Fabric.name != "":
			o.Peer = m.nearest(o, connected[[2]string{o.Fabric.peerName, o.Fabric.name}])
		}
	})
}

// nearest returns the one of the objects whose life overlaps that of o most; none where two do alike.
func (m *Map) nearest(o *Object, refs []Ref) Ref {
	var best Ref
	most := int64(-1)
	for _, r := range refs {
		x := m.Object(r)
		n := max(min(o.Ended, x.Ended)-max(o.Created, x.Created), 0)
		switch {
		case x == o:
		case n > most:
			best, most = r, n
		case n == most:
			best = Ref{}
		}
	}
	return best
}

// contextOf returns the receive context of a scalable endpoint, or the endpoint where it is none.
func (m *Map) contextOf(r Ref, index uint32) Ref {
	o := m.Object(r)
	if o == nil || o.Fabric.class != catalogue.OfiClassScalable {
		return r
	}
	for _, c := range m.Processes[r.Process].Carry {
		if c.Kind == FabricEndpoint && c.Fabric.Parent == r.Object && c.Fabric.class == catalogue.OfiClassReceiveContext && c.Fabric.Index == index {
			return Ref{r.Process, c.ID}
		}
	}
	return r
}

// Receiver returns where messages to an endpoint of libfabric find their receives: at the endpoint, or its shared context.
func (m *Map) Receiver(r Ref) Ref {
	if o := m.Object(r); o != nil && o.SharedQueue != 0 {
		return Ref{r.Process, o.SharedQueue}
	}
	return r
}

// Sender returns what sends from where a way leads to. Of a scalable endpoint that is a transmit context: which one is known where there
// is one only.
func (m *Map) Sender(r Ref) Ref {
	o := m.Object(r)
	if o == nil || o.Fabric == nil {
		return r
	}
	scalable := o.Fabric.Parent
	if o.Fabric.class == catalogue.OfiClassScalable {
		scalable = o.ID
	}
	if scalable == 0 {
		return r
	}
	p, sender := m.Processes[r.Process], Ref{}
	for _, id := range p.members[scalable] {
		if c := p.Objects[id]; c != nil && c.Fabric.class == catalogue.OfiClassTransmitContext {
			if (sender != Ref{}) {
				return Ref{}
			}
			sender = Ref{r.Process, id}
		}
	}
	return sender
}
