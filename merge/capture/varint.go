package capture

import (
	"encoding/binary"
	"math/bits"
)

// longVarint reads an unsigned LEB128 number of more than one byte at pos; buf has at least 10 bytes from there. ok is false for
// one that does not fit 64 bits.
func longVarint(buf []byte, pos int) (v uint64, next int, ok bool) {
	x := binary.LittleEndian.Uint64(buf[pos:])
	ends := ^x & 0x8080808080808080
	if ends != 0 {
		n := bits.TrailingZeros64(ends) + 1 // bits of the number, those of continuation included
		x &= ^uint64(0) >> (64 - n)
		return fold(x), pos + n/8, true
	}
	v = fold(x)
	b := buf[pos+8]
	v |= uint64(b&0x7f) << 56
	if b < 0x80 {
		return v, pos + 9, true
	}
	b = buf[pos+9]
	return v | uint64(b)<<63, pos + 10, b <= 1
}

// fold joins the low 7 bits of 8 bytes.
func fold(x uint64) uint64 {
	x &= 0x7f7f7f7f7f7f7f7f
	x = x&0x007f007f007f007f | x&0x7f007f007f007f00>>1
	x = x&0x00003fff00003fff | x&0x3fff00003fff0000>>2
	return x&0x0fffffff | x>>32<<28
}

// zigzag undoes the mapping of signed numbers to unsigned ones.
func zigzag(v uint64) uint64 { return v>>1 ^ -(v & 1) }
