package capture

import (
	"encoding/binary"
	"errors"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// Definition is one record of the definition stream. Fields are asked for by their index in Def.Fields; one that the writer, of an
// older catalogue, did not know is 0 or empty.
type Definition struct {
	ID     uint16
	Domain uint8                 // clock domain of Time
	Time   uint64                // ticks
	Offset int64                 // of the record in the file
	Def    *catalogue.Definition // nil where the catalogue does not know ID: there are no fields then

	numbers []uint64
	bytes   [][]byte
}

// Uint returns field i, a number; an int field as its two's complement.
func (d *Definition) Uint(i int) uint64 {
	if i >= len(d.numbers) {
		return 0
	}
	return d.numbers[i]
}

// Int returns field i of type int.
func (d *Definition) Int(i int) int64 { return int64(d.Uint(i)) }

// Bytes returns field i of type raw or string, valid until the callback returns.
func (d *Definition) Bytes(i int) []byte {
	if i >= len(d.bytes) {
		return nil
	}
	return d.bytes[i]
}

// String returns field i of type string or raw.
func (d *Definition) String(i int) string { return string(d.Bytes(i)) }

const definitionHeader = 12

// Definitions calls fn with every definition in the order they were recorded; d is valid until fn returns. An error of fn ends the
// reading and is returned as it is. Damage does not: the definitions before it in its block and those of other blocks are read, and
// what was wrong is returned, joined, at the end.
func (f *File) Definitions(c *catalogue.Catalogue, fn func(d *Definition) error) error {
	var damage []error
	var buf []byte
	var def Definition
	for i := range f.definitions {
		ch := &f.definitions[i]
		payload, sound, rest, err := f.payload(ch, buf, readPadding)
		if err != nil {
			return err
		}
		buf = payload
		if !sound {
			damage = append(damage, f.badChecksum(ch))
			continue
		}
		for pos := 0; pos < len(payload); {
			next, err := f.definition(&def, c, ch, payload, pos)
			if err != nil {
				if rest == nil {
					rest = err
				}
				break
			}
			if err := fn(&def); err != nil {
				return err
			}
			pos = next
		}
		if rest != nil {
			damage = append(damage, rest)
		}
	}
	return errors.Join(damage...)
}

// definition reads the record at pos and returns the position of the next.
func (f *File) definition(def *Definition, c *catalogue.Catalogue, ch *Chunk, payload []byte, pos int) (int, error) {
	offset := ch.Offset + blockHeader + int64(pos)
	left := payload[pos:]
	if len(left) < definitionHeader {
		return 0, f.errorf(ErrCorrupt, offset, "a definition in the last %d bytes of its block", len(left))
	}
	length := int(binary.LittleEndian.Uint16(left))
	if length < definitionHeader || length > len(left) {
		return 0, f.errorf(ErrCorrupt, offset, "a definition of %d bytes with %d left in its block", length, len(left))
	}
	*def = Definition{
		ID: binary.LittleEndian.Uint16(left[2:]), Domain: ch.Domain, Time: binary.LittleEndian.Uint64(left[4:]), Offset: offset,
		numbers: def.numbers[:0], bytes: def.bytes[:0],
	}
	if def.Def = c.Definition(def.ID); def.Def == nil {
		return pos + length, nil
	}
	at := pos + definitionHeader
	end := pos + length
	// Numbers are read with the bytes behind the record in reach; the zero padding behind a payload ends any of them.
	reach := payload[:len(payload)+readPadding]
	for _, field := range def.Def.Fields {
		if at == end { // an older catalogue's record has fewer fields
			break
		}
		v, next, ok := uint64(reach[at]), at+1, true
		if v >= 0x80 {
			v, next, ok = longVarint(reach, at)
		}
		var raw []byte
		switch field.Type {
		case catalogue.Int:
			v = zigzag(v)
		case catalogue.Raw, catalogue.String:
			if ok = ok && next <= end && v <= uint64(end-next); ok {
				raw = payload[next : next+int(v) : next+int(v)]
				next += int(v)
			}
		}
		if !ok || next > end {
			return 0, f.errorf(ErrCorrupt, offset, "field %s of definition %s does not end within its %d bytes", field.Name, def.Def.Name, length)
		}
		def.numbers, def.bytes, at = append(def.numbers, v), append(def.bytes, raw), next
	}
	return end, nil
}
