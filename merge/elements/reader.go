package elements

import (
	"bytes"
	"errors"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// ErrNoQueue says that the definitions of the element's queue are missing.
var ErrNoQueue = errors.New("the element's queue was not defined")

// Reader rebuilds the elements of one capture. Its zero value is ready for the capture's definitions.
type Reader struct {
	numbers map[uint64]uint32 // of queue pairs
	devices map[uint64]uint64
	vectors map[uint64][]byte
}

// Define takes a definition; the order does not matter, but all come before the first element.
func (r *Reader) Define(d *capture.Definition) error {
	if r.numbers == nil {
		*r = Reader{map[uint64]uint32{}, map[uint64]uint64{}, map[uint64][]byte{}}
	}
	switch d.ID {
	case catalogue.DefVerbsQp:
		r.numbers[d.Uint(catalogue.DefVerbsQpObject)] = uint32(d.Uint(catalogue.DefVerbsQpQpn))
	case catalogue.DefDoorbellQueue:
		r.devices[d.Uint(catalogue.DefDoorbellQueueQueuePair)] = d.Uint(catalogue.DefDoorbellQueueDevice)
	case catalogue.DefDoorbellTarget:
		r.vectors[d.Uint(catalogue.DefDoorbellTargetObject)] = bytes.Clone(d.Bytes(catalogue.DefDoorbellTargetVector))
	}
	return nil
}

// Element rebuilds an element from its record, of layout doorbell_request, as Bytes does.
func (r *Reader) Element(ev *capture.Event) ([]byte, error) {
	queue := ev.Fields[catalogue.DoorbellRequestQueuePair]
	device, ok := r.devices[queue]
	if !ok {
		return nil, ErrNoQueue
	}
	return Bytes(Queue{device, r.numbers[queue]}, ev.ID, ev.Fields[:], r.vectors[ev.Fields[catalogue.DoorbellRequestTarget]], ev.Bytes(catalogue.DoorbellRequestRest))
}
