package clock

import (
	"cmp"
	"encoding/binary"
	"sort"

	"github.com/sigmatrace/sigmatrace/merge/spill"
)

// Message is a matched message between two nodes, by the run's clock.
type Message struct {
	Received, Sent int64
	To, From       uint32
}

// MessageBytes is the size of an encoded Message.
const MessageBytes = 24

// Put encodes m.
func (m *Message) Put(b []byte) {
	le := binary.LittleEndian
	le.PutUint64(b, uint64(m.Received))
	le.PutUint64(b[8:], uint64(m.Sent))
	le.PutUint32(b[16:], m.To)
	le.PutUint32(b[20:], m.From)
}

// Get decodes m.
func (m *Message) Get(b []byte) {
	le := binary.LittleEndian
	*m = Message{int64(le.Uint64(b)), int64(le.Uint64(b[8:])), le.Uint32(b[16:]), le.Uint32(b[20:])}
}

// Compare orders messages by the receiving node and when it received them.
func (m *Message) Compare(o *Message) int {
	return cmp.Or(cmp.Compare(m.To, o.To), cmp.Compare(m.Received, o.Received), cmp.Compare(m.Sent, o.Sent), cmp.Compare(m.From, o.From))
}

// stepsOfSize is how many jumps of a node are as small as can be before the least is doubled, so that a node has a few thousand at most.
const stepsOfSize = 64

// Repair finds for each node the delays that remove every receive before its send: from the receive on, all later times of the node are
// moved by the same. So the order of a node's own events stays, and no time between two of them becomes less. Messages that no clocks at all could
// bring in order, because each of several was received before another of them was sent, are left as they are.
//
// A node is at its next receive; that can be settled when the sender has settled all that it received before it sent. Whatever order nodes
// are looked at in, the outcome is the same.
func Repair(messages *spill.Sorted[Message, *Message], nodes int, buffer int) ([][]Jump, error) {
	r := &repair{at: make([]receiver, nodes)}
	for i := range r.at {
		from, err := messages.Search(func(m *Message) bool { return m.To >= uint32(i) })
		if err != nil {
			return nil, err
		}
		r.at[i].in = messages.FromBuffered(from, buffer)
		if err := r.at[i].next(uint32(i)); err != nil {
			return nil, err
		}
		r.ready = append(r.ready, uint32(i))
	}
	for {
		for len(r.ready) > 0 {
			i := r.ready[len(r.ready)-1]
			r.ready = r.ready[:len(r.ready)-1]
			if err := r.advance(i); err != nil {
				return nil, err
			}
		}
		stuck := r.stuck()
		if stuck < 0 {
			break
		}
		n := &r.at[stuck]
		sender := &r.at[n.in.Value.From]
		for k, w := range sender.waiting {
			if w == uint32(stuck) {
				sender.waiting = append(sender.waiting[:k], sender.waiting[k+1:]...)
				break
			}
		}
		n.blocked = false
		if err := n.next(uint32(stuck)); err != nil {
			return nil, err
		}
		r.ready = append(r.ready, r.wake(uint32(stuck))...)
		r.ready = append(r.ready, uint32(stuck))
	}
	jumps := make([][]Jump, nodes)
	for i := range r.at {
		jumps[i] = r.at[i].jumps
	}
	return jumps, nil
}

// Left counts the messages that are received before they were sent with the delays of Repair: those that no clocks could bring in order.
func Left(messages *spill.Sorted[Message, *Message], jumps [][]Jump) (left int64, err error) {
	maps := make([]*Map, len(jumps))
	for i := range jumps {
		maps[i] = (*Map)(nil).WithJumps(jumps[i])
	}
	c := messages.From(0)
	more, err := c.Next()
	for ; more && err == nil; more, err = c.Next() {
		if m := &c.Value; maps[m.To].NS(m.Received) < maps[m.From].NS(m.Sent) {
			left++
		}
	}
	return left, err
}

type repair struct {
	at    []receiver
	ready []uint32
}

// receiver is a node with the message that it is to receive next.
type receiver struct {
	in      *spill.Cursor[Message, *Message]
	more    bool
	blocked bool
	jumps   []Jump
	waiting []uint32 // nodes whose next message it has sent, and that cannot tell yet when
}

func (n *receiver) next(node uint32) (err error) {
	n.more, err = n.in.Next()
	n.more = n.more && n.in.Value.To == node
	return err
}

// by is the delay of a time.
func (n *receiver) by(at int64) int64 {
	i := sort.Search(len(n.jumps), func(i int) bool { return n.jumps[i].At > at })
	if i == 0 {
		return 0
	}
	return n.jumps[i-1].By
}

// settled says whether the delay of a time is known.
func (n *receiver) settled(at int64) bool { return !n.more || n.in.Value.Received > at }

// advance settles what a node receives, as far as its senders are.
func (r *repair) advance(i uint32) error {
	n := &r.at[i]
	if n.blocked {
		return nil
	}
	for n.more {
		m := n.in.Value
		sender := &r.at[m.From]
		if m.From != i && !sender.settled(m.Sent) {
			n.blocked = true
			sender.waiting = append(sender.waiting, i)
			break
		}
		if m.From != i {
			if need := m.Sent + sender.by(m.Sent) - m.Received; need > n.by(m.Received) {
				n.jump(m.Received, need)
			}
		}
		if err := n.next(i); err != nil {
			return err
		}
	}
	r.ready = append(r.ready, r.wake(i)...)
	return nil
}

// jump delays a node from a time on, by more the more often it was.
func (n *receiver) jump(at, need int64) {
	least := int64(1) << min(len(n.jumps)/stepsOfSize, 40)
	if have := n.by(at); len(n.jumps) >= stepsOfSize {
		need = max(need, have+least)
	}
	if last := len(n.jumps) - 1; last >= 0 && n.jumps[last].At == at {
		n.jumps[last].By = need
		return
	}
	n.jumps = append(n.jumps, Jump{at, need})
}

// wake returns the nodes that waited for one and need not any more.
func (r *repair) wake(i uint32) (woken []uint32) {
	n := &r.at[i]
	kept := n.waiting[:0]
	for _, w := range n.waiting {
		if n.settled(r.at[w].in.Value.Sent) {
			r.at[w].blocked = false
			woken = append(woken, w)
		} else {
			kept = append(kept, w)
		}
	}
	n.waiting = kept
	return woken
}

// stuck returns the blocked node whose message comes first, -1 where none is.
func (r *repair) stuck() int {
	best := -1
	key := func(i int) int64 { return r.at[i].in.Value.Received + r.at[i].by(r.at[i].in.Value.Received) }
	for i := range r.at {
		if r.at[i].blocked && (best < 0 || key(i) < key(best)) {
			best = i
		}
	}
	return best
}
