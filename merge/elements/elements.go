// Package elements rebuilds the bytes of work queue elements from their records (preload/ELEMENTS.md). Keys are zero in them: records hold hashes of those.
package elements

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

const (
	block   = 64
	segment = 16
	most    = 1024

	cutBit     = 1 << 48 // of form: the record holds not all of rest
	inlineBit  = 1 << 31 // of a data segment's count
	inlineEFA  = 32      // of EFA's first control byte
	addressEFA = 16      // bytes of doorbell_target's vector
)

// ErrCut says that the record does not hold all of the element: it differs from what its fields say in more bytes than a record takes.
var ErrCut = errors.New("the record holds only a part of the element")

// Queue is what an element does not say of itself: where it is.
type Queue struct {
	Device uint64 // of the catalogue's enumeration element_device
	QPN    uint32
}

// Bytes rebuilds an element from its record: the event, the fields of layout doorbell_request, and the bytes of field rest. vector is that of its doorbell_target,
// nil where it has none. With ErrCut the bytes up to where the record ends are right.
func Bytes(q Queue, event uint16, fields []uint64, vector, rest []byte) ([]byte, error) {
	if len(vector) > 48 || len(vector)%segment != 0 {
		return nil, fmt.Errorf("rebuilding an element: an address vector of %d bytes", len(vector))
	}
	var raw []byte
	switch q.Device {
	case catalogue.ElementDeviceMlx5:
		raw = mlx5(q, event, fields, vector)
	case catalogue.ElementDeviceEfa:
		raw = efa(event, fields, vector)
	default:
		return nil, fmt.Errorf("rebuilding an element: device %d is not known", q.Device)
	}
	if err := patch(raw, rest); err != nil {
		return raw, err
	}
	if fields[catalogue.DoorbellRequestForm]&cutBit != 0 {
		return raw, ErrCut
	}
	return raw, nil
}

// patch writes the runs of rest over what was built.
func patch(raw, rest []byte) error {
	for at := 0; len(rest) > 0; {
		var n [2]uint64
		for i := range n {
			v, k := binary.Uvarint(rest)
			if k == 0 {
				return ErrCut
			}
			if k < 0 || v > most {
				return fmt.Errorf("rebuilding an element of %d bytes: a run of %d bytes", len(raw), v)
			}
			n[i], rest = v, rest[k:]
		}
		at += int(n[0])
		end := at + int(n[1])
		if end > len(raw) {
			return fmt.Errorf("rebuilding an element of %d bytes: a run to %d", len(raw), end)
		}
		if len(rest) < int(n[1]) {
			copy(raw[at:], rest)
			return ErrCut
		}
		copy(raw[at:end], rest)
		at, rest = end, rest[n[1]:]
	}
	return nil
}

func moves(event uint16) bool {
	return event != catalogue.EventDoorbellControl && event != catalogue.EventDoorbellUnknown
}

func mlx5(q Queue, event uint16, f []uint64, vector []byte) []byte {
	form, opcode := f[catalogue.DoorbellRequestForm], f[catalogue.DoorbellRequestOpcode]
	size := int(form>>32&0x3f) * segment
	if size == 0 {
		size = block
	}
	buffer := make([]byte, most)
	raw, be := buffer[:size:size], binary.BigEndian
	raw[0], raw[3], raw[7] = byte(form>>40), byte(opcode), byte(form>>32)
	be.PutUint16(raw[1:], uint16(f[catalogue.DoorbellRequestIndex]))
	raw[4], raw[5], raw[6] = byte(q.QPN>>16), byte(q.QPN>>8), byte(q.QPN)
	be.PutUint32(raw[8:], uint32(form))
	if opcode == catalogue.ElementOpcodeSendImm || opcode == catalogue.ElementOpcodeRdmaWriteImm {
		be.PutUint32(raw[12:], uint32(f[catalogue.DoorbellRequestImmediate]))
	}
	if !moves(event) {
		return raw
	}
	at := segment
	at += copy(raw[min(at, size):], vector)
	if event != catalogue.EventDoorbellSend {
		if at+segment <= size {
			be.PutUint64(raw[at:], f[catalogue.DoorbellRequestRemoteAddress])
		}
		at += segment
	}
	if event == catalogue.EventDoorbellAtomic || event == catalogue.EventDoorbellSignal {
		at += segment
		if opcode == catalogue.ElementOpcodeMaskedCompareSwap && raw[0] != 8 {
			at += segment
		}
	}
	if at+segment <= size {
		entry(raw[at:], f, be, inlineBit)
	}
	return raw
}

func efa(event uint16, f []uint64, vector []byte) []byte {
	form := f[catalogue.DoorbellRequestForm]
	raw, le := make([]byte, block), binary.LittleEndian
	le.PutUint32(raw, uint32(form>>16))
	le.PutUint16(raw[6:], uint16(form))
	if len(vector) == addressEFA {
		copy(raw[4:6], vector)
		copy(raw[12:14], vector[2:])
	}
	le.PutUint32(raw[8:], uint32(f[catalogue.DoorbellRequestImmediate]))
	if !moves(event) || raw[2]&inlineEFA != 0 {
		return raw
	}
	at := block / 2
	if event != catalogue.EventDoorbellSend {
		le.PutUint32(raw[at:], uint32(f[catalogue.DoorbellRequestBytes]))
		le.PutUint64(raw[at+8:], f[catalogue.DoorbellRequestRemoteAddress])
		at += segment
	}
	entry(raw[at:], f, le, 0)
	return raw
}

// entry writes the first scatter/gather entry: its count, where it is the only one, and its address. inline is the count's mark where the bytes follow themselves.
func entry(raw []byte, f []uint64, order binary.ByteOrder, inline uint32) {
	sges, bytes := f[catalogue.DoorbellRequestSges], uint32(f[catalogue.DoorbellRequestBytes])
	switch {
	case inline != 0 && f[catalogue.DoorbellRequestFlags]&catalogue.VerbsSendFlagsInline != 0:
		order.PutUint32(raw, bytes|inline)
	case sges > 0:
		if sges == 1 {
			order.PutUint32(raw, bytes)
		}
		order.PutUint64(raw[8:], f[catalogue.DoorbellRequestLocalAddress])
	}
}
