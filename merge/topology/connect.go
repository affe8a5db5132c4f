package topology

import (
	"cmp"
	"slices"
)

// Map is the topology of a run. Processes are in the run's order; entries may be nil where a capture could not be read.
type Map struct {
	Processes []*Process
	numbers   map[uint32][]Ref // queue pairs by number, in order of process and creation
}

// Connect finds the peers of all queue pairs.
func Connect(processes []*Process) *Map {
	m := &Map{Processes: processes, numbers: map[uint32][]Ref{}}
	for i, p := range processes {
		if p == nil {
			continue
		}
		for _, o := range p.Carry {
			if o.Kind == QueuePair {
				m.numbers[o.QPN] = append(m.numbers[o.QPN], Ref{uint32(i), o.ID})
			}
		}
	}
	for i, p := range processes {
		if p == nil {
			continue
		}
		for _, o := range p.Carry {
			for n := range o.Connections {
				if o.Connections[n].Connected && o.Connections[n].Peer.Object == 0 {
					m.connect(Ref{uint32(i), o.ID}, o, n)
				}
			}
		}
	}
	m.connectFabric()
	return m
}

// Object returns the object a Ref names, or nil.
func (m *Map) Object(r Ref) *Object {
	if r.Object == 0 || int(r.Process) >= len(m.Processes) || m.Processes[r.Process] == nil {
		return nil
	}
	return m.Processes[r.Process].Objects[r.Object]
}

func (m *Map) device(r Ref, o *Object) *device { return m.Processes[r.Process].devices[o.Device] }

// life is one connection of one queue pair.
type life struct {
	ref   Ref
	o     *Object
	index int
}

func (l life) c() *Connection { return &l.o.Connections[l.index] }

// reaches tells whether packets of a's connection arrive at the queue pair of b. A device whose addresses were not recorded is
// trusted to be the right one.
func (m *Map) reaches(a, b life) bool {
	if b.o.QPN != a.c().QPN || b.o.Type != partner(a.o.Type) {
		return false
	}
	d := m.device(b.ref, b.o)
	unaddressed := d == nil || (len(d.gids) == 0 && len(d.ports) == 0)
	return unaddressed || d.owns(a.c().Path)
}

// partner returns the type at the other side.
func partner(t uint8) uint8 {
	switch t {
	case TypeXRCSend:
		return TypeXRCReceive
	case TypeXRCReceive:
		return TypeXRCSend
	}
	return t
}

// connect finds the peer of a connection: the connection at the other side that leads back. Where the same two numbers were
// connected again and again, the n-th life at one side goes with the n-th at the other, which holds whatever the clocks of two nodes
// say; where the sides do not have the same number of lives, the lives that overlap most go together.
func (m *Map) connect(ref Ref, o *Object, n int) {
	a := life{ref, o, n}
	var mutual, open []life
	for _, r := range m.numbers[a.c().QPN] {
		q := m.Object(r)
		for i := range q.Connections {
			b := life{r, q, i}
			if !m.reaches(a, b) {
				continue
			}
			switch {
			case b.c().Connected && m.reaches(b, a):
				mutual = append(mutual, b)
			case !b.c().Connected && b.c().Peer.Object == 0 && overlap(a.c(), b.c()) > 0:
				open = append(open, b)
			}
		}
	}
	switch {
	case len(mutual) > 0:
		m.pair(a, mutual)
	case len(open) == 1: // its own modify calls were not seen
		join(a, open[0])
	}
}

// pair joins the lives that lead to each other. far are those that a may go with.
func (m *Map) pair(a life, far []life) {
	var near []life
	for _, r := range m.numbers[a.o.QPN] {
		q := m.Object(r)
		for i := range q.Connections {
			x := life{r, q, i}
			if x.c().Connected && m.reaches(x, far[0]) && m.reaches(far[0], x) {
				near = append(near, x)
			}
		}
	}
	inTime := func(x, y life) int {
		return cmp.Or(cmp.Compare(x.c().From, y.c().From), cmp.Compare(x.ref.Process, y.ref.Process), cmp.Compare(x.ref.Object, y.ref.Object), cmp.Compare(x.index, y.index))
	}
	slices.SortFunc(near, inTime)
	slices.SortFunc(far, inTime)
	if len(near) == len(far) {
		for i := range near {
			if m.Processes[near[i].ref.Process].Node != m.Processes[far[i].ref.Process].Node || overlap(near[i].c(), far[i].c()) > 0 {
				join(near[i], far[i])
			}
		}
		return
	}
	type couple struct {
		x, y    life
		overlap int64
	}
	var couples []couple
	for _, x := range near {
		for _, y := range far {
			if n := overlap(x.c(), y.c()); n > 0 {
				couples = append(couples, couple{x, y, n})
			}
		}
	}
	slices.SortStableFunc(couples, func(a, b couple) int { return cmp.Compare(b.overlap, a.overlap) })
	for _, c := range couples {
		join(c.x, c.y)
	}
}

// join makes two connections each other's peers, unless one has a peer.
func join(a, b life) {
	if a.c().Peer.Object != 0 || b.c().Peer.Object != 0 {
		return
	}
	a.c().Peer, a.c().PeerIndex = b.ref, b.index
	b.c().Peer, b.c().PeerIndex = a.ref, a.index
}

func overlap(a, b *Connection) int64 {
	from, to := max(a.From, b.From), min(a.To, b.To)
	if to <= from {
		return 0
	}
	return max(to-from, 1) // Forever minus a negative time would overflow
}

// Datagram returns the queue pair that a datagram, or an element of a dynamically connected queue, of time ns to a number by an address handle arrives at;
// none where it is not known.
func (m *Map) Datagram(process uint32, handle, number uint32, ns int64) Ref {
	ah := m.Object(Ref{process, handle})
	if ah == nil || ah.Kind != AddressHandle {
		return Ref{}
	}
	kind := uint8(TypeUD)
	if ah.Target {
		kind = TypeDriver
	}
	var best Ref
	distance := int64(-1)
	for _, r := range m.numbers[number] {
		q := m.Object(r)
		if q.Type != kind || !m.device(r, q).owns(ah.Path) {
			continue
		}
		// The clocks of two nodes may disagree: of those that had the number, the nearest in time.
		d := max(q.Created-ns, ns-q.Ended, 0)
		if distance < 0 || d < distance {
			best, distance = r, d
		}
	}
	return best
}

// Target returns the queue pair that elements to a doorbell_target arrive at at time ns; none where it is not known.
func (m *Map) Target(process, target uint32, ns int64) Ref {
	t := m.Object(Ref{process, target})
	if t == nil || !t.Target {
		return Ref{}
	}
	return m.Datagram(process, target, t.QPN, ns)
}

// Peer returns the object at the other side of an object at a time, as far as it is the same for all its operations then.
func (m *Map) Peer(o *Object, ns int64) Ref {
	switch {
	case o.Kind == Endpoint || o.Kind == UCTEndpoint || o.Fabric != nil:
		return o.Peer
	case len(o.Connections) > 0:
		return o.Connections[o.At(ns)].Peer
	}
	return Ref{}
}

// OnlyPeer returns the peer of all of an object's operations; none where it had several in turn or none is known.
func (m *Map) OnlyPeer(o *Object) Ref {
	if o.Kind == Endpoint || o.Kind == UCTEndpoint || o.Fabric != nil {
		return o.Peer
	}
	var only Ref
	for _, c := range o.Connections {
		if !c.Connected && c.Peer.Object == 0 {
			continue
		}
		if c.Peer.Object == 0 || (only.Object != 0 && only != c.Peer) {
			return Ref{}
		}
		only = c.Peer
	}
	return only
}
