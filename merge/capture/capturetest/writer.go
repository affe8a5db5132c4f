// Package capturetest writes captures, for tests, generators and benchmarks of whatever reads them. It follows preload/FORMAT.md and
// shares no code with the reader or the recorder, so that each can be tested against the other.
package capturetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

const (
	headerSize      = 4096
	blockHeaderSize = 64
	aggregateSize   = 320

	blockEvents      = 1
	blockDefinitions = 2
	blockAggregates  = 3

	flagClosed = 1
	flagCRC    = 4
)

var le = binary.LittleEndian

// Memory is a file in memory, for New.
type Memory []byte

// WriteAt writes b at offset, growing the file with zeros as needed.
func (m *Memory) WriteAt(b []byte, offset int64) (int, error) {
	if need := offset + int64(len(b)) - int64(len(*m)); need > 0 {
		*m = append(*m, make([]byte, need)...)
	}
	return copy((*m)[offset:], b), nil
}

// Writer writes one capture. Mistakes of the caller and errors of writing are kept and returned by Close or Kill.
type Writer struct {
	// Live goes into the header at the end. Close sets EndMark (exit, unless set), Close and Kill set Threads and Blocks.
	Live capture.Live
	// NoChecksums leaves out the CRC of closed blocks.
	NoChecksums bool

	header      capture.Header
	catalogue   *catalogue.Catalogue
	out         io.WriterAt
	close       func() error
	err         error
	blocks      uint64
	threads     []*Thread
	definitions *block
	aggregates  *block
	sequence    [4]uint32 // next sequence of each block type that is not of a thread
}

// block is an open block of the file.
type block struct {
	buf     []byte
	used    int // bytes of header and payload
	number  uint64
	records uint32
	first   uint64
	last    uint64
	early   uint64
}

// New returns a writer of a capture to out. Fields of h that no capture may have zero are filled in: version, catalogue version,
// 64 KiB blocks, x86-64, mapped, one TSC domain. Rank and World are taken as they are.
func New(out io.WriterAt, h capture.Header, c *catalogue.Catalogue) *Writer {
	if h.Major == 0 {
		h.Major, h.Minor = 1, 0
	}
	if h.ChunkBytes == 0 {
		h.ChunkBytes = 64 << 10
	}
	if h.Architecture == 0 {
		h.Architecture = capture.X8664
	}
	if h.BackEnd == 0 {
		h.BackEnd = capture.Mapped
	}
	if h.Catalogue == 0 {
		h.Catalogue = c.Version
	}
	if len(h.Domains) == 0 {
		h.Domains = []capture.Domain{{Kind: 1, Hz: h.ClockHz}}
	}
	return &Writer{header: h, catalogue: c, out: out}
}

// Create returns a writer of the capture of process h in the capture folder dir, at the path that the recorder would give it.
func Create(dir string, h capture.Header, c *catalogue.Catalogue) (*Writer, error) {
	path := Path(dir, h)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("making the node's folder: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("creating a capture: %w", err)
	}
	w := New(file, h, c)
	w.close = file.Close
	return w, nil
}

// Path returns where the capture of process h lies in the capture folder dir.
func Path(dir string, h capture.Header) string {
	return filepath.Join(dir, fmt.Sprintf("%s.%x", h.Hostname, h.BootID[:4]), fmt.Sprintf("%d.%d.%d.capture", h.Pid, h.StartTime, h.Image))
}

// Thread adds a thread.
func (w *Writer) Thread() *Thread {
	t := &Thread{Index: uint32(len(w.threads)), w: w}
	w.threads = append(w.threads, t)
	return t
}

// Close ends the capture as an orderly exit does: every block closed, the end mark set.
func (w *Writer) Close() error {
	if w.Live.EndMark == capture.EndNone {
		w.Live.EndMark = capture.EndExit
	}
	return w.finish(true)
}

// Kill ends the capture as SIGKILL does: the blocks in use stay open and there is no end mark.
func (w *Writer) Kill() error { return w.finish(false) }

func (w *Writer) finish(closed bool) error {
	for _, t := range w.threads {
		if t.block != nil {
			t.endBlock(closed)
		}
	}
	if w.definitions != nil {
		w.endBlock(w.definitions, blockDefinitions, closed)
	}
	if w.aggregates != nil {
		w.endBlock(w.aggregates, blockAggregates, closed)
	}
	w.Live.Threads, w.Live.Blocks = uint32(len(w.threads)), w.blocks
	w.write(w.encodeHeader(), 0)
	if w.close != nil {
		w.fail(w.close())
	}
	return w.err
}

func (w *Writer) fail(err error) {
	if err != nil {
		w.err = errors.Join(w.err, err)
	}
}

func (w *Writer) write(b []byte, offset int64) {
	if _, err := w.out.WriteAt(b, offset); err != nil {
		w.fail(fmt.Errorf("writing a capture: %w", err))
	}
}

func (w *Writer) newBlock(first uint64) *block {
	b := &block{buf: make([]byte, w.header.ChunkBytes), used: blockHeaderSize, number: w.blocks, first: first, last: first}
	w.blocks++
	return b
}

// stamp notes the time of a record of the block.
func (b *block) stamp(time uint64) {
	b.records++
	b.last = max(b.last, time)
	if time < b.first {
		b.early = max(b.early, b.first-time)
	}
}

// emit writes a block with its header.
func (w *Writer) emit(b *block, kind, domain uint8, flags uint16, thread, sequence uint32, closed bool) {
	payload := b.buf[blockHeaderSize:b.used]
	le.PutUint32(b.buf[0:], 0x4b4c4253)
	b.buf[4], b.buf[5] = kind, domain
	le.PutUint32(b.buf[8:], thread)
	le.PutUint32(b.buf[12:], sequence)
	le.PutUint64(b.buf[16:], b.first)
	le.PutUint32(b.buf[32:], uint32(len(payload)))
	if closed {
		flags |= flagClosed
		le.PutUint64(b.buf[24:], b.last)
		le.PutUint32(b.buf[36:], b.records)
		le.PutUint32(b.buf[44:], uint32(min(b.early, 0xffffffff)))
		if !w.NoChecksums {
			flags |= flagCRC
			le.PutUint32(b.buf[40:], crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli)))
		}
	}
	le.PutUint16(b.buf[6:], flags)
	w.write(b.buf, headerSize+int64(b.number)*int64(w.header.ChunkBytes))
}

// endBlock writes a block that is not of a thread.
func (w *Writer) endBlock(b *block, kind uint8, closed bool) {
	w.emit(b, kind, 0, 0, 0, w.sequence[kind], closed)
	w.sequence[kind]++
}

// Define adds a definition. Values are, in the order of its fields, uint64, int, int64, string or []byte; they may be fewer than the
// catalogue has, as an older recorder would write.
func (w *Writer) Define(time uint64, id uint16, values ...any) {
	d := w.catalogue.Definition(id)
	if d == nil || len(values) > len(d.Fields) {
		w.fail(fmt.Errorf("definition %d with %d values is not in the catalogue", id, len(values)))
		return
	}
	var body []byte
	for i, v := range values {
		signed := d.Fields[i].Type == catalogue.Int
		switch v := v.(type) {
		case uint64:
			body = appendNumber(body, v, signed)
		case int:
			body = appendNumber(body, uint64(v), signed)
		case int64:
			body = appendNumber(body, uint64(v), signed)
		case string:
			body = append(binary.AppendUvarint(body, uint64(len(v))), v...)
		case []byte:
			body = append(binary.AppendUvarint(body, uint64(len(v))), v...)
		default:
			w.fail(fmt.Errorf("definition %s: a %T for field %s", d.Name, v, d.Fields[i].Name))
			return
		}
	}
	w.DefineRaw(time, id, body)
}

// DefineRaw adds a definition of any id, whose encoded fields are body.
func (w *Writer) DefineRaw(time uint64, id uint16, body []byte) {
	size := 12 + len(body)
	if size > int(w.header.ChunkBytes)-blockHeaderSize || size > 0xffff {
		w.fail(fmt.Errorf("definition %d of %d bytes fits no block", id, size))
		return
	}
	if b := w.definitions; b != nil && b.used+size > len(b.buf) {
		w.endBlock(b, blockDefinitions, true)
		w.definitions = nil
	}
	if w.definitions == nil {
		w.definitions = w.newBlock(time)
	}
	b := w.definitions
	le.PutUint16(b.buf[b.used:], uint16(size))
	le.PutUint16(b.buf[b.used+2:], id)
	le.PutUint64(b.buf[b.used+4:], time)
	copy(b.buf[b.used+12:], body)
	b.used += size
	b.stamp(time)
}

// Aggregate adds an entry to the tables; one whose Event is 0 is an unused entry.
func (w *Writer) Aggregate(a capture.Aggregate) {
	if b := w.aggregates; b != nil && b.used+aggregateSize > len(b.buf) {
		w.endBlock(b, blockAggregates, true)
		w.aggregates = nil
	}
	if w.aggregates == nil {
		w.aggregates = w.newBlock(a.First)
	}
	b := w.aggregates
	e := b.buf[b.used:]
	le.PutUint32(e[0:], a.Object)
	le.PutUint16(e[4:], a.Event)
	le.PutUint32(e[8:], a.Thread)
	le.PutUint32(e[12:], a.Epoch)
	le.PutUint64(e[16:], a.Peer)
	le.PutUint64(e[24:], a.First)
	le.PutUint64(e[32:], a.Count)
	le.PutUint64(e[40:], a.Bytes)
	le.PutUint64(e[48:], a.Calls)
	for i, n := range a.Sizes {
		le.PutUint64(e[64+8*i:], n)
	}
	b.used += aggregateSize
	b.stamp(a.First)
}

func appendNumber(b []byte, v uint64, signed bool) []byte {
	if signed {
		return binary.AppendVarint(b, int64(v))
	}
	return binary.AppendUvarint(b, v)
}
