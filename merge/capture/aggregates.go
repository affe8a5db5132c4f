package capture

import (
	"encoding/binary"
	"errors"
)

// SizeBuckets is the number of buckets of Aggregate.Sizes.
const SizeBuckets = 32

// Aggregate is one entry of the tables that count in every mode: what one thread did with one object, peer and kind of event.
// Totals are sums over entries.
type Aggregate struct {
	Offset int64 // of the entry in the file
	Object uint32
	Thread uint32
	Epoch  uint32
	Event  uint16 // a request event (its layer and operation) or a completion event
	Domain uint8  // clock domain of First
	Peer   uint64 // 0, or of unconnected queue pairs: remote number in bits 0-23, the address handle's object above
	First  uint64 // ticks
	Count  uint64
	Bytes  uint64
	Calls  uint64              // posting calls
	Sizes  [SizeBuckets]uint64 // count by size: [0] 0 bytes, [i] 2^(i-1) <= bytes < 2^i, [31] 2^30 and more
}

const aggregateBytes = 320

// Aggregates calls fn with every valid entry; a is valid until fn returns. An error of fn ends the reading and is returned as it is.
// Entries of damaged blocks that can be read are; what was wrong is returned, joined, at the end.
func (f *File) Aggregates(fn func(a *Aggregate) error) error {
	var damage []error
	var buf []byte
	var a Aggregate
	for i := range f.aggregates {
		ch := &f.aggregates[i]
		payload, sound, rest, err := f.payload(ch, buf, 0)
		if err != nil {
			return err
		}
		buf = payload
		if !sound {
			damage = append(damage, f.badChecksum(ch))
			continue
		}
		for pos := 0; pos+aggregateBytes <= len(payload); pos += aggregateBytes {
			if !a.decode(payload[pos : pos+aggregateBytes]) {
				continue
			}
			a.Offset, a.Domain = ch.Offset+blockHeader+int64(pos), ch.Domain
			if err := fn(&a); err != nil {
				return err
			}
		}
		if rest != nil {
			damage = append(damage, rest)
		}
	}
	return errors.Join(damage...)
}

// decode reads an entry and tells whether it is in use.
func (a *Aggregate) decode(b []byte) bool {
	le := binary.LittleEndian
	if a.Event = le.Uint16(b[4:]); a.Event == 0 {
		return false
	}
	a.Object, a.Thread, a.Epoch = le.Uint32(b), le.Uint32(b[8:]), le.Uint32(b[12:])
	a.Peer, a.First, a.Count, a.Bytes, a.Calls = le.Uint64(b[16:]), le.Uint64(b[24:]), le.Uint64(b[32:]), le.Uint64(b[40:]), le.Uint64(b[48:])
	for i := range a.Sizes {
		a.Sizes[i] = le.Uint64(b[64+8*i:])
	}
	return true
}
