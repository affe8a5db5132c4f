package topology

import "testing"

// machine is a process with one device, which is found by a GID and a LID.
func machine(index uint32, node string, gid byte, lid uint32) *Process {
	d := &device{gids: map[[16]byte]bool{{gid}: true}, ports: []port{{lid, 0}}}
	return &Process{Index: index, Node: node, Identity: uint64(index) + 100, Objects: map[uint32]*Object{}, devices: map[uint32]*device{1: d}, ways: map[way]*Object{}}
}

// queuePair adds a queue pair with one connection for each of peers; to is where all their packets go.
func (p *Process) queuePair(id, qpn uint32, kind uint8, to Path, lives ...Connection) *Object {
	q := &Object{ID: id, Kind: QueuePair, Layer: "verbs", Device: 1, QPN: qpn, Type: kind, Ended: Forever, Connections: lives}
	for i := range q.Connections {
		q.Connections[i].Path = to
	}
	p.Objects[id] = q
	p.Carry = append(p.Carry, q)
	return q
}

func byGID(gid byte) Path            { return Path{Global: true, GID: [16]byte{gid}} }
func to(qpn uint32) Connection       { return Connection{To: Forever, Connected: true, QPN: qpn} }
func ref(process, object uint32) Ref { return Ref{process, object} }

// F75: two devices have queue pairs of the same number; the GID or, without one, the LID tells which of them is meant.
func TestF75ConnectByAddress(t *testing.T) {
	for name, path := range map[string]func(n byte) Path{"gid": byGID, "lid": func(n byte) Path { return Path{LID: uint32(n)} }} {
		a, b, c := machine(0, "a", 1, 1), machine(1, "b", 2, 2), machine(2, "c", 3, 3)
		qa := a.queuePair(5, 17, TypeRC, path(3), to(18))
		qb := b.queuePair(5, 18, TypeRC, path(1), to(17)) // the same number, and leads to a as well, which does not lead to it
		qc := c.queuePair(5, 18, TypeRC, path(1), to(17))
		m := Connect([]*Process{a, b, c})
		if qa.Connections[0].Peer != ref(2, 5) || qc.Connections[0].Peer != ref(0, 5) || qb.Connections[0].Peer != (Ref{}) {
			t.Errorf("%s: peers %v, %v, %v", name, qa.Connections[0].Peer, qb.Connections[0].Peer, qc.Connections[0].Peer)
		}
		if m.OnlyPeer(qa) != ref(2, 5) || m.Object(ref(2, 5)) != qc || m.Object(ref(9, 5)) != nil || m.Object(ref(0, 0)) != nil {
			t.Errorf("%s: %v", name, m.OnlyPeer(qa))
		}
	}
}

// A port's LIDs differ in the bits that its LMC says.
func TestLIDsOfAPort(t *testing.T) {
	d := &device{ports: []port{{lid: 0x10, lmc: 2}}}
	for lid, want := range map[uint32]bool{0x10: true, 0x13: true, 0x14: false, 0: false} {
		if d.owns(Path{LID: lid}) != want {
			t.Errorf("LID %#x: %v", lid, !want)
		}
	}
	if (&device{ports: []port{{}}}).owns(Path{}) || (*device)(nil).owns(Path{LID: 1}) {
		t.Error("a port without a LID, or no device, is found by one")
	}
}

// F74: a pair of numbers that is connected again and again: the n-th life at one side goes with the n-th at the other, whatever the clocks of
// two nodes say; where one side has a life more, those that overlap most go together.
func TestF74LivesOfTheSameNumbers(t *testing.T) {
	life := func(qpn uint32, from, till int64) Connection {
		return Connection{From: from, To: till, Connected: true, QPN: qpn}
	}
	for _, c := range []struct {
		name string
		a, b []Connection
		want []Ref // of a's lives
		at   []int // the connection of b
	}{
		{"clocks apart", []Connection{life(18, 0, 10), life(18, 10, 20)}, []Connection{life(17, 1000, 1010), life(17, 1010, 1020)}, []Ref{ref(1, 5), ref(1, 5)}, []int{0, 1}},
		{"one more", []Connection{life(18, 0, 10), life(18, 10, 20), life(18, 20, 30)}, []Connection{life(17, 11, 19), life(17, 21, 29)}, []Ref{{}, ref(1, 5), ref(1, 5)}, []int{0, 0, 1}},
	} {
		a, b := machine(0, "a", 1, 0), machine(1, "b", 2, 0)
		qa := a.queuePair(5, 17, TypeRC, byGID(2), c.a...)
		b.queuePair(5, 18, TypeRC, byGID(1), c.b...)
		m := Connect([]*Process{a, b})
		for i, want := range c.want {
			x := &qa.Connections[i]
			if x.Peer != want || (want.Object != 0 && x.PeerIndex != c.at[i]) {
				t.Errorf("%s: life %d leads to %v, life %d", c.name, i, x.Peer, x.PeerIndex)
			}
		}
		if peer := m.Peer(qa, c.a[1].From); peer != ref(1, 5) {
			t.Errorf("%s: at the begin of the second life the peer is %v", c.name, peer)
		}
	}
}

// A queue pair that leads to several in turn has no peer of all its operations; types that cannot be connected are not; a capture that could
// not be read is passed over; a side whose own calls were not seen is found by the other's.
func TestConnectOddCases(t *testing.T) {
	a, b := machine(0, "a", 1, 0), machine(2, "b", 2, 0)
	turns := a.queuePair(5, 17, TypeRC, byGID(2), Connection{To: 10, Connected: true, QPN: 18}, Connection{From: 10, To: Forever, Connected: true, QPN: 19})
	b.queuePair(6, 18, TypeRC, byGID(1), Connection{To: 10, Connected: true, QPN: 17})
	b.queuePair(7, 19, TypeRC, byGID(1), Connection{From: 10, To: Forever, Connected: true, QPN: 17})
	wrong := a.queuePair(8, 20, TypeRC, byGID(2), to(21))
	b.queuePair(9, 21, TypeUC, byGID(1), to(20))
	out := a.queuePair(10, 22, TypeXRCSend, byGID(2), to(23))
	b.queuePair(11, 23, TypeXRCReceive, byGID(1), to(22))
	half := a.queuePair(12, 24, TypeRC, byGID(2), to(25))
	silent := b.queuePair(13, 25, TypeRC, Path{}, Connection{To: Forever})
	m := Connect([]*Process{a, nil, b})
	if turns.Connections[0].Peer != ref(2, 6) || turns.Connections[1].Peer != ref(2, 7) || m.OnlyPeer(turns) != (Ref{}) {
		t.Errorf("in turn: %+v, of all %v", turns.Connections, m.OnlyPeer(turns))
	}
	if wrong.Connections[0].Peer != (Ref{}) {
		t.Errorf("RC with UC: %v", wrong.Connections[0].Peer)
	}
	if out.Connections[0].Peer != ref(2, 11) {
		t.Errorf("XRC: %v", out.Connections[0].Peer)
	}
	if half.Connections[0].Peer != ref(2, 13) || silent.Connections[0].Peer != ref(0, 12) {
		t.Errorf("one side unseen: %v, %v", half.Connections[0].Peer, silent.Connections[0].Peer)
	}
}

// A datagram goes to the queue pair that has the number on the device at that time, or is nearest to it: clocks may disagree.
func TestDatagramsInTime(t *testing.T) {
	a, b := machine(0, "a", 1, 0), machine(1, "b", 2, 0)
	a.Objects[3] = &Object{ID: 3, Kind: AddressHandle, Path: byGID(2)}
	old, young := b.queuePair(5, 30, TypeUD, Path{}), b.queuePair(6, 30, TypeUD, Path{})
	old.Created, old.Ended, young.Created = 100, 200, 300
	b.queuePair(7, 30, TypeRC, Path{})
	m := Connect([]*Process{a, b})
	for ns, want := range map[int64]uint32{50: 5, 150: 5, 240: 5, 260: 6, 900: 6} {
		if got := m.Datagram(0, 3, 30, ns); got != ref(1, want) {
			t.Errorf("at %d: %v, want object %d", ns, got, want)
		}
	}
	if got := m.Datagram(0, 3, 31, 150); got != (Ref{}) {
		t.Errorf("a number that nobody has: %v", got)
	}
	if got := m.Datagram(0, 4, 30, 150); got != (Ref{}) {
		t.Errorf("an address handle that was not seen: %v", got)
	}
}

// Worker addresses are told by their whole length; one that two workers handed out tells nothing.
func TestAddresses(t *testing.T) {
	survey := func(worker uint32, address string) *Survey {
		return &Survey{addresses: []workerAddress{{worker, len(address), []byte(address)}}}
	}
	a := NewAddresses([]*Survey{survey(1, "abc"), nil, survey(2, "abcdef"), survey(3, "same"), survey(4, "same")})
	for address, want := range map[string]Ref{"abc rubbish": ref(0, 1), "abcdef rubbish": ref(2, 2), "ab": {}, "same": {}, "": {}} {
		if got := a.Find([]byte(address)); got != want {
			t.Errorf("%q: %v, want %v", address, got, want)
		}
	}
}
