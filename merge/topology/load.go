package topology

import (
	"bytes"
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/clock"
)

// Bits of verbs_qp_modify's mask (enum ibv_qp_attr_mask) and the state that discards a queue pair's requests.
const (
	maskState   = 1 << 0
	maskAV      = 1 << 7
	maskDestQPN = 1 << 20
	stateReset  = 0
)

// maxAddress is how much of a worker address an endpoint's definition holds at most.
const maxAddress = 512

// Survey is what has to be read of all processes before anything else: clock pairs, worker addresses, thread names.
type Survey struct {
	Pairs     []clock.Pair
	Threads   map[uint32]string
	Names     map[uint32]Name // of marks and phases, and of what NCCL names, by number
	Epochs    []Epoch
	Windows   []Window // changes of the window, in order
	addresses []workerAddress
}

// Name of marks and phases.
type Name struct{ Domain, Name string }

// String is the name with its domain in front.
func (n Name) String() string {
	if n.Domain == "" {
		return n.Name
	}
	return n.Domain + ": " + n.Name
}

// Epoch is an epoch of the aggregate tables.
type Epoch struct {
	Number   uint32
	Kind     uint64
	Realtime int64 // of its first edge
	Name     string
}

// Window is a change of the window for events.
type Window struct {
	Ticks   uint64
	Open    bool
	Cause   uint64
	Command uint64 // number of the last command of `sigmatrace window` by then, 0 where there was none: the same in all processes
}

type workerAddress struct {
	worker uint32
	length int // of the whole address
	prefix []byte
}

// pairsPerSecond bounds the clock pairs that are kept; the tightest stay.
const pairsPerSecond = 8

// ReadSurvey reads a capture's survey. With an error, what could be read is there.
func ReadSurvey(f *capture.File, c *catalogue.Catalogue) (*Survey, error) {
	s := &Survey{Threads: map[uint32]string{}, Names: map[uint32]Name{}}
	text := func(d *capture.Definition, i int) string { return strings.ToValidUTF8(d.String(i), "\ufffd") }
	err := f.Definitions(c, func(d *capture.Definition) error {
		switch d.ID {
		case catalogue.DefThread:
			s.Threads[uint32(d.Uint(catalogue.DefThreadThread))] = d.String(catalogue.DefThreadName)
		case catalogue.DefClockPair:
			if d.Domain == 0 {
				s.Pairs = append(s.Pairs, clock.Pair{
					Before: d.Uint(catalogue.DefClockPairBefore), After: d.Uint(catalogue.DefClockPairAfter),
					Realtime: int64(d.Uint(catalogue.DefClockPairRealtimeNs)), Monotonic: int64(d.Uint(catalogue.DefClockPairMonotonicNs)),
				})
			}
		case catalogue.DefAppName:
			s.Names[uint32(d.Uint(catalogue.DefAppNameNumber))] = Name{text(d, catalogue.DefAppNameDomain), text(d, catalogue.DefAppNameName)}
		case catalogue.DefNcclName:
			s.Names[uint32(d.Uint(catalogue.DefNcclNameNumber))] = Name{"", text(d, catalogue.DefNcclNameName)}
		case catalogue.DefEpoch:
			s.Epochs = append(s.Epochs, Epoch{uint32(d.Uint(catalogue.DefEpochNumber)), d.Uint(catalogue.DefEpochKind),
				int64(d.Uint(catalogue.DefEpochRealtimeNs)), text(d, catalogue.DefEpochName)})
		case catalogue.DefWindow:
			s.Windows = append(s.Windows, Window{d.Time, d.Uint(catalogue.DefWindowOpen) != 0, d.Uint(catalogue.DefWindowCause), d.Uint(catalogue.DefWindowCommand)})
		case catalogue.DefUcpWorkerAddress:
			a := d.Bytes(catalogue.DefUcpWorkerAddressAddress)
			length := int(d.Uint(catalogue.DefUcpWorkerAddressLength))
			if n := min(length, len(a), maxAddress); n > 0 {
				s.addresses = append(s.addresses, workerAddress{uint32(d.Uint(catalogue.DefUcpWorkerAddressWorker)), length, bytes.Clone(a[:n])})
			}
		}
		return nil
	})
	s.Pairs = Thin(s.Pairs)
	return s, err
}

// Thin keeps the tightest few pairs of each second.
func Thin(pairs []clock.Pair) []clock.Pair {
	width := func(p clock.Pair) uint64 { return p.After - p.Before }
	slices.SortStableFunc(pairs, func(a, b clock.Pair) int {
		return cmp.Or(cmp.Compare(a.Realtime/1e9, b.Realtime/1e9), cmp.Compare(width(a), width(b)))
	})
	kept := pairs[:0]
	n, second := 0, int64(-1)
	for _, p := range pairs {
		if s := p.Realtime / 1e9; s != second {
			n, second = 0, s
		}
		if n++; n <= pairsPerSecond {
			kept = append(kept, p)
		}
	}
	return kept
}

// Addresses finds workers by the addresses they handed out.
type Addresses struct {
	lengths []int // of the parts compared, longest first
	workers map[addressKey][]Ref
}

type addressKey struct {
	length int
	hash   uint64
}

// NewAddresses indexes the worker addresses of all processes' surveys, which are in order of process.
func NewAddresses(surveys []*Survey) *Addresses {
	a := &Addresses{workers: map[addressKey][]Ref{}}
	for process, s := range surveys {
		if s == nil {
			continue
		}
		for _, w := range s.addresses {
			// An address that was not recorded whole is known by its beginning alone.
			key, ref := addressKey{len(w.prefix), hash(w.prefix)}, Ref{uint32(process), w.worker}
			if !slices.Contains(a.workers[key], ref) {
				a.workers[key] = append(a.workers[key], ref)
			}
			if !slices.Contains(a.lengths, key.length) {
				a.lengths = append(a.lengths, key.length)
			}
		}
	}
	slices.SortFunc(a.lengths, func(x, y int) int { return y - x })
	return a
}

// Find returns the worker whose whole address the bytes begin with; none where several have it.
func (a *Addresses) Find(address []byte) Ref {
	for _, n := range a.lengths {
		if n > len(address) {
			continue
		}
		switch found := a.workers[addressKey{n, hash(address[:n])}]; len(found) {
		case 0:
		case 1:
			return found[0]
		default:
			return Ref{}
		}
	}
	return Ref{}
}

func hash(b []byte) uint64 {
	h := fnv.New64a()
	h.Write(b)
	return h.Sum64()
}

// Load reads a process's objects. With an error, what could be read is there.
func Load(index uint32, f *capture.File, c *catalogue.Catalogue, ck *clock.Clock, addresses *Addresses) (*Process, error) {
	p := &Process{Index: index, Clock: ck, Objects: map[uint32]*Object{}, devices: map[uint32]*device{}, ways: map[way]*Object{},
		members: map[uint32][]uint32{}, shared: map[uint32][]uint32{}, gpus: newGPUs(), groups: map[uint64][]int64{}}
	err := f.Definitions(c, func(d *capture.Definition) error {
		p.define(d, addresses)
		return nil
	})
	p.Kernels.Clock = clock.NewGPU(p.Kernels.readings)
	slices.SortStableFunc(p.Resets, func(a, b Reset) int { return cmp.Compare(a.Ticks, b.Ticks) })
	return p, err
}

func (p *Process) define(d *capture.Definition, addresses *Addresses) {
	now := p.Clock.NS(d.Time)
	u := func(i int) uint32 { return uint32(d.Uint(i)) }
	fresh := func(kind Kind, id uint32) *Object { return &Object{ID: id, Kind: kind, Created: now, Ended: Forever} }
	var o *Object
	switch d.ID {
	case catalogue.DefObjectEnd:
		p.end(u(catalogue.DefObjectEndObject), d.Time, now)
	case catalogue.DefUcpWorker:
		o = fresh(Worker, u(catalogue.DefUcpWorkerObject))
	case catalogue.DefUcpEndpoint:
		o = fresh(Endpoint, u(catalogue.DefUcpEndpointObject))
		o.Worker = u(catalogue.DefUcpEndpointWorker)
		o.Peer = addresses.Find(d.Bytes(catalogue.DefUcpEndpointAddress))
		o.Label = d.String(catalogue.DefUcpEndpointName)
	case catalogue.DefUctInterface:
		o = fresh(Interface, u(catalogue.DefUctInterfaceObject))
		o.Label = cmp.Or(d.String(catalogue.DefUctInterfaceTransport), "interface") + "/" + d.String(catalogue.DefUctInterfaceDevice)
	case catalogue.DefUctEndpoint:
		o = fresh(UCTEndpoint, u(catalogue.DefUctEndpointObject))
		o.Worker, o.Label = u(catalogue.DefUctEndpointInterface), "interface"
		if i := p.Objects[o.Worker]; i != nil && i.Kind == Interface {
			o.Label = i.Label
		}
	case catalogue.DefUctEndpointOwner:
		lane, owner := p.Objects[u(catalogue.DefUctEndpointOwnerEndpoint)], p.Objects[u(catalogue.DefUctEndpointOwnerOwner)]
		if lane != nil && owner != nil && lane.Kind == UCTEndpoint && owner.Kind == Endpoint {
			lane.Peer = owner.Peer
		}
	case catalogue.DefUctOff:
		p.Off = append(p.Off, Off{"uct", strings.TrimSpace("UCX "+d.String(catalogue.DefUctOffVersion)) + ": " + d.String(catalogue.DefUctOffReason)})
	case catalogue.DefVerbsDevice:
		o = fresh(Device, u(catalogue.DefVerbsDeviceObject))
		o.Label = d.String(catalogue.DefVerbsDeviceDevice)
	case catalogue.DefVerbsPort:
		dev := p.device(u(catalogue.DefVerbsPortDevice))
		dev.ports = append(dev.ports, port{u(catalogue.DefVerbsPortLid), min(u(catalogue.DefVerbsPortLmc), 7)})
	case catalogue.DefVerbsGid:
		if g := d.Bytes(catalogue.DefVerbsGidGid); len(g) == 16 && [16]byte(g) != [16]byte{} {
			p.device(u(catalogue.DefVerbsGidDevice)).gids[[16]byte(g)] = true
		}
	case catalogue.DefVerbsCq:
		o = fresh(CompletionQueue, u(catalogue.DefVerbsCqObject))
	case catalogue.DefVerbsSrq:
		o = fresh(SharedQueue, u(catalogue.DefVerbsSrqObject))
	case catalogue.DefVerbsQp:
		o = fresh(QueuePair, u(catalogue.DefVerbsQpObject))
		o.Device, o.QPN, o.Type = u(catalogue.DefVerbsQpDevice), u(catalogue.DefVerbsQpQpn), uint8(u(catalogue.DefVerbsQpType))
		o.SendCQ, o.RecvCQ, o.SharedQueue = u(catalogue.DefVerbsQpSendCq), u(catalogue.DefVerbsQpRecvCq), u(catalogue.DefVerbsQpSrq)
		o.Connections = []Connection{{From: now, To: Forever}}
	case catalogue.DefVerbsQpModify:
		p.modify(d, now)
	case catalogue.DefVerbsAh:
		o = fresh(AddressHandle, u(catalogue.DefVerbsAhObject))
		o.Path = path(d, catalogue.DefVerbsAhGlobal, catalogue.DefVerbsAhDgid, catalogue.DefVerbsAhDlid)
	case catalogue.DefDoorbellTarget:
		o = fresh(AddressHandle, u(catalogue.DefDoorbellTargetObject))
		o.Path = path(d, catalogue.DefDoorbellTargetGlobal, catalogue.DefDoorbellTargetDgid, catalogue.DefDoorbellTargetDlid)
		o.QPN, o.Target = u(catalogue.DefDoorbellTargetQpn), true
	case catalogue.DefVerbsQpNumber:
		if q := p.Objects[u(catalogue.DefVerbsQpNumberQueuePair)]; q != nil && q.Kind == QueuePair {
			q.QPN = u(catalogue.DefVerbsQpNumberQpn)
		}
	case catalogue.DefAppTrack:
		o = fresh(Track, u(catalogue.DefAppTrackObject))
		o.Label = "across threads"
		if thread := u(catalogue.DefAppTrackThread); thread != 0 {
			o.Label = fmt.Sprintf("of thread %d", thread)
		}
	case catalogue.DefDoorbellQueue:
		if q := p.Objects[u(catalogue.DefDoorbellQueueQueuePair)]; q != nil && q.Kind == QueuePair {
			if !q.Seen { // what is told later stays: it was not seen for a while
				q.Blind = ""
			}
			q.Layer, q.Seen = "doorbell", true
		}
	case catalogue.DefVerbsBlind:
		if q := p.Objects[u(catalogue.DefVerbsBlindQueuePair)]; q != nil {
			q.Blind = d.String(catalogue.DefVerbsBlindReason)
		}
	}
	p.defineGPU(d)
	p.defineDoorbells(d)
	if o == nil {
		o = p.defineFabric(d, now)
	}
	if o == nil {
		o = p.defineKernels(d, now)
	}
	if o == nil {
		o = p.defineGroup(d, now)
	}
	if o != nil && o.ID != 0 && p.Objects[o.ID] == nil {
		p.add(o)
	}
}

func (p *Process) device(id uint32) *device {
	d := p.devices[id]
	if d == nil {
		d = &device{gids: map[[16]byte]bool{}}
		p.devices[id] = d
	}
	return d
}

func path(d *capture.Definition, global, gid, lid int) Path {
	g := d.Bytes(gid)
	p := Path{LID: uint32(d.Uint(lid)), Global: d.Uint(global) != 0}
	if len(g) == 16 {
		p.GID = [16]byte(g)
	}
	return p
}

func (p *Process) end(id uint32, ticks uint64, now int64) {
	o := p.Objects[id]
	if o == nil || o.Ended != Forever {
		return
	}
	o.Ended = now
	if n := len(o.Connections); n > 0 {
		o.Connections[n-1].To = now
	}
	if o.Carries() {
		p.Resets = append(p.Resets, Reset{ticks, id, true})
	}
}

func (p *Process) modify(d *capture.Definition, now int64) {
	q := p.Objects[uint32(d.Uint(catalogue.DefVerbsQpModifyQueuePair))]
	if q == nil || q.Kind != QueuePair {
		return
	}
	mask := d.Uint(catalogue.DefVerbsQpModifyMask)
	last := &q.Connections[len(q.Connections)-1]
	if mask&maskState != 0 && d.Uint(catalogue.DefVerbsQpModifyState) == stateReset {
		p.Resets = append(p.Resets, Reset{d.Time, q.ID, false})
		if !last.Connected {
			last.From = now
			return
		}
		last.To = now
		q.Connections = append(q.Connections, Connection{From: now, To: Forever})
		return
	}
	if mask&maskAV != 0 {
		last.Path = path(d, catalogue.DefVerbsQpModifyGlobal, catalogue.DefVerbsQpModifyDgid, catalogue.DefVerbsQpModifyDlid)
	}
	if mask&maskDestQPN != 0 {
		last.Connected, last.QPN = true, uint32(d.Uint(catalogue.DefVerbsQpModifyDestQpn))
	}
}

// Forget frees what only other processes' topologies and the clock needed.
func (s *Survey) Forget() { s.Pairs, s.addresses = nil, nil }
