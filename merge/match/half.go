// Package match finds which send met which receive. Sends and receives are numbered at each side on its own, so that no state has to
// travel between processes: the n-th of a stream at one side belongs to the n-th at the other.
package match

import (
	"cmp"
	"encoding/binary"

	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// Side of a message.
type Side uint8

// Sides.
const (
	Send Side = iota
	Receive
)

// Rule says how the two sides of a stream are put together.
type Rule uint8

// Rules.
const (
	// Equal: those of equal Order. Order is the absolute number on a connection: what was lost leaves holes.
	Equal Rule = iota
	// Rank: the k-th by Order with the k-th. Order is a time.
	Rank
	// RankLossy is Rank for transports that may drop: the flows are sure only where both sides count the same.
	RankLossy
)

// Half is a message as one side recorded it.
type Half struct {
	Stream     uint64 // what both sides call the stream of messages that keeps their order
	Order      uint64
	Sequence   uint64
	Flow       uint64 // of a send: the flow's number if it is matched
	Bytes      uint64
	Tag        uint64 // of a tagged receive
	Source     uint64 // identity of the sending endpoint, where the side knows it; else 0
	Post, Done int64
	Process    uint32
	Object     uint32 // endpoint, queue pair or worker that the message went through
	Thread     uint32
	Flags      ops.Flag // Ambiguous where the order is not sure, Unfinished, Failed
	Side       Side
	Rule       Rule
	Layer      uint8 // index of the layer in the catalogue, at most 15
	Window     uint32
}

// Unwindowed is the Window of halves of a process whose events were recorded all the time. That of the others tells the window that the
// half was posted in: later ones have higher numbers, the same in all processes.
const Unwindowed uint32 = 0

// TimeOrder makes an Order of a time.
func TimeOrder(ns int64) uint64 { return uint64(ns) ^ 1<<63 }

// UnknownBytes is the length of a receive whose completion did not tell it.
const UnknownBytes = ^uint64(0)

// halfBytes is the size of an encoded Half.
const halfBytes = 92

// Put encodes h.
func (h *Half) Put(b []byte) {
	le := binary.LittleEndian
	le.PutUint64(b, h.Stream)
	le.PutUint64(b[8:], h.Order)
	le.PutUint64(b[16:], h.Sequence)
	le.PutUint64(b[24:], h.Flow)
	le.PutUint64(b[32:], h.Bytes)
	le.PutUint64(b[40:], uint64(h.Post))
	le.PutUint64(b[48:], uint64(h.Done))
	le.PutUint32(b[56:], h.Process)
	le.PutUint32(b[60:], h.Object)
	le.PutUint32(b[64:], h.Thread)
	le.PutUint16(b[68:], uint16(h.Flags))
	b[70], b[71] = byte(h.Side), byte(h.Rule)|h.Layer<<4
	le.PutUint64(b[72:], h.Tag)
	le.PutUint64(b[80:], h.Source)
	le.PutUint32(b[88:], h.Window)
}

// Get decodes h.
func (h *Half) Get(b []byte) {
	le := binary.LittleEndian
	*h = Half{
		Stream: le.Uint64(b), Order: le.Uint64(b[8:]), Sequence: le.Uint64(b[16:]), Flow: le.Uint64(b[24:]), Bytes: le.Uint64(b[32:]),
		Post: int64(le.Uint64(b[40:])), Done: int64(le.Uint64(b[48:])),
		Process: le.Uint32(b[56:]), Object: le.Uint32(b[60:]), Thread: le.Uint32(b[64:]), Flags: ops.Flag(le.Uint16(b[68:])),
		Side: Side(b[70]), Rule: Rule(b[71] & 15), Layer: b[71] >> 4, Tag: le.Uint64(b[72:]),
		Source: le.Uint64(b[80:]), Window: le.Uint32(b[88:]),
	}
}

// sameSource tells whether two sends are of one endpoint, which may have several objects: ways to one peer by several addresses.
func (h *Half) sameSource(o *Half) bool {
	if h.Source != 0 && o.Source != 0 {
		return h.Source == o.Source
	}
	return h.Process == o.Process && h.Object == o.Object
}

// Compare orders halves by stream, side and order in it.
func (h *Half) Compare(o *Half) int {
	return cmp.Or(cmp.Compare(h.Stream, o.Stream), cmp.Compare(h.Side, o.Side), cmp.Compare(h.Order, o.Order),
		cmp.Compare(h.Process, o.Process), cmp.Compare(h.Thread, o.Thread), cmp.Compare(h.Sequence, o.Sequence))
}

// Result is what matching adds to an operation. Results are in the order of the run's operations.
type Result struct {
	Post                    int64
	Sequence                uint64
	Flow                    uint64
	Process                 uint32
	Thread                  uint32
	PeerProcess, PeerObject uint32
	Flags                   ops.Flag
}

const resultBytes = 44

// Put encodes r.
func (r *Result) Put(b []byte) {
	le := binary.LittleEndian
	le.PutUint64(b, uint64(r.Post))
	le.PutUint64(b[8:], r.Sequence)
	le.PutUint64(b[16:], r.Flow)
	le.PutUint32(b[24:], r.Process)
	le.PutUint32(b[28:], r.Thread)
	le.PutUint32(b[32:], r.PeerProcess)
	le.PutUint32(b[36:], r.PeerObject)
	le.PutUint32(b[40:], uint32(r.Flags))
}

// Get decodes r.
func (r *Result) Get(b []byte) {
	le := binary.LittleEndian
	*r = Result{
		Post: int64(le.Uint64(b)), Sequence: le.Uint64(b[8:]), Flow: le.Uint64(b[16:]), Process: le.Uint32(b[24:]), Thread: le.Uint32(b[28:]),
		PeerProcess: le.Uint32(b[32:]), PeerObject: le.Uint32(b[36:]), Flags: ops.Flag(le.Uint32(b[40:])),
	}
}

// Compare orders results as operations are: by post, process, thread, sequence.
func (r *Result) Compare(o *Result) int {
	return cmp.Or(cmp.Compare(r.Post, o.Post), cmp.Compare(r.Process, o.Process), cmp.Compare(r.Thread, o.Thread), cmp.Compare(r.Sequence, o.Sequence))
}
