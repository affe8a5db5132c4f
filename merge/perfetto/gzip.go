package perfetto

import (
	"bufio"
	"encoding/binary"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/flate"
)

// The trace is one gzip member (RFC 1952) whose deflate stream is made of independently compressed segments, each ending at a byte
// border. One member for each partition would be simpler, but trace_processor allocates 32 MiB for every member and keeps it while
// it loads: a hundred of them do not open.

// gzipHeader is a header without a name or time.
var gzipHeader = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}

// checksum is the CRC-32 and length of uncompressed data.
type checksum struct {
	crc    uint32
	length int64
}

// then is the checksum of data with a following.
func (c checksum) then(a checksum) checksum {
	return checksum{crc32Shift(c.crc, a.length) ^ a.crc, c.length + a.length}
}

// trailer is what ends a gzip member.
func (c checksum) trailer() []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, c.crc), uint32(c.length))
}

// crc32Shift is crc after n more zero bytes without the pre- and postconditioning: crc times x to the power of 8n, modulo the polynomial.
// Polynomials are bit-reversed, as in hash/crc32: bit 31 is the constant term.
func crc32Shift(crc uint32, n int64) uint32 {
	for power := uint32(1 << (31 - 8)); n > 0; n >>= 1 { // x^8, squared for each bit of n
		if n&1 != 0 {
			crc = crc32Multiply(crc, power)
		}
		power = crc32Multiply(power, power)
	}
	return crc
}

func crc32Multiply(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 {
		if a&(1<<31) != 0 {
			product ^= b
		}
		low := b & 1
		b >>= 1
		if low != 0 {
			b ^= crc32.IEEE
		}
	}
	return product
}

// summed passes on what is written and keeps its checksum.
type summed struct {
	w io.Writer
	checksum
}

func (s *summed) Write(b []byte) (int, error) {
	s.crc = crc32.Update(s.crc, crc32.IEEETable, b)
	s.length += int64(len(b))
	return s.w.Write(b)
}

// written is what a segment holds.
type written struct {
	checksum
	packets int64
}

// segment compresses the packets of fill and says what they were; it writes nothing at all where there are none. The last segment ends
// the deflate stream.
func segment(w io.Writer, last bool, fill func(*encoder) error) (written, error) {
	z, err := flate.NewWriter(w, compression)
	if err != nil {
		return written{}, err
	}
	s := &summed{w: z}
	e := &encoder{w: bufio.NewWriterSize(s, 64<<10)}
	if err := fill(e); err != nil || e.packets == 0 {
		return written{}, err
	}
	if err := e.w.Flush(); err != nil {
		return written{}, err
	}
	end := z.Flush
	if last {
		end = z.Close
	}
	return written{s.checksum, e.packets}, end()
}
