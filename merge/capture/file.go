// Package capture reads the files that the recorder leaves, one for each process: who the process was, what it defined, what it
// did. The format is described in preload/FORMAT.md.
//
// A capture may be whole, cut off by a kill, or still growing: everything here reads what is there and says what is not. Files are
// read with pread into buffers of the reader, never mapped, so that a file that shrinks under the reader is an error and no SIGBUS.
package capture

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"
	"syscall"
)

// File is an open capture. Its methods may be called from several goroutines at once.
type File struct {
	path   string
	r      io.ReaderAt
	size   int64
	close  func() error
	header Header
	live   Live

	chunks      []Chunk
	definitions []Chunk // in order of sequence
	aggregates  []Chunk // in order of sequence
	problems    []error
}

// Flags of a block.
type Flags uint16

// Bits of Flags.
const (
	Closed    Flags = 1 << iota // complete; Last and Earliest are valid
	Unordered                   // records are not in order of time
	Checked                     // CRC is valid
)

// Block types.
const (
	typeEvents      = 1
	typeDefinitions = 2
	typeAggregates  = 3
)

const (
	blockMagic  = 0x4b4c4253
	blockHeader = 64
	// UnknownEarliest is the value of Chunk.Earliest where the time of the earliest record is not known.
	UnknownEarliest = 0xffffffff
)

// Chunk is one block as its header described it when the file was opened. Times are ticks of clock domain Domain.
type Chunk struct {
	Offset    int64  // of the block's header in the file
	First     uint64 // when the block was opened
	Last      uint64 // latest time in it; valid when Closed
	Thread    uint32 // index; that of a thread that has ended may be another's later (definition thread)
	Sequence  uint32 // number within its thread; a gap is a lost block
	Committed uint32 // bytes of payload
	Records   uint32 // 0 where the writer did not count
	CRC       uint32 // CRC-32C of the payload; valid when Checked
	Earliest  uint32 // ticks by which the earliest record precedes First, or UnknownEarliest; valid when Closed
	Flags     Flags
	Domain    uint8
}

// Bounds returns the times of the earliest and the latest record as the header tells them. known is false for a chunk that was
// never closed; Decoder.Measure finds them then.
func (ch *Chunk) Bounds() (first, last uint64, known bool) {
	if ch.Flags&Closed == 0 || ch.Earliest == UnknownEarliest {
		return 0, 0, false
	}
	return ch.First - uint64(ch.Earliest), ch.Last, true
}

// Open opens the capture at path. It fails with ErrForeign, ErrNewer, ErrTruncated or ErrCorrupt where the header cannot be used;
// damage behind the header is told by Problems and where the damaged block is read.
func Open(path string) (*File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the capture: %w", err)
	}
	st, err := file.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = &Error{Path: path, Kind: ErrForeign, Detail: "not a regular file"}
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	f, err := newFile(path, file, st.Size(), func(offset int64) (int64, error) { return file.Seek(offset, seekData) })
	if err != nil {
		file.Close()
		return nil, err
	}
	f.close = file.Close
	return f, nil
}

// New reads a capture of size bytes from r; name stands for the path in errors.
func New(name string, r io.ReaderAt, size int64) (*File, error) { return newFile(name, r, size, nil) }

// seekData is lseek's SEEK_DATA: the next offset that is not in a hole (lseek(2)).
const seekData = 3

func newFile(path string, r io.ReaderAt, size int64, nextData func(int64) (int64, error)) (*File, error) {
	f := &File{path: path, r: r, size: size}
	if err := f.readHeader(); err != nil {
		return nil, err
	}
	return f, f.readBlocks(nextData)
}

// Close closes the file.
func (f *File) Close() error {
	if f.close == nil {
		return nil
	}
	return f.close()
}

// Path returns the path that the file was opened by.
func (f *File) Path() string { return f.path }

// Size returns the file's length when it was opened, reserved blocks included.
func (f *File) Size() int64 { return f.size }

// Header returns what is fixed about the process. The caller must not change it.
func (f *File) Header() *Header { return &f.header }

// Live returns what the process had kept up to date when the file was opened.
func (f *File) Live() Live { return f.live }

// Chunks returns the event chunks in the order of the file: those of one thread follow each other in sequence. The caller must not
// change them.
func (f *File) Chunks() []Chunk { return f.chunks }

// Problems returns what is wrong with the file's block structure; blocks named there are not among Chunks.
func (f *File) Problems() []error { return f.problems }

// readAt reads into b from offset and returns how much there was.
func (f *File) readAt(b []byte, offset int64) (int, error) {
	if left := f.size - offset; int64(len(b)) > left {
		b = b[:max(left, 0)]
	}
	n, err := f.r.ReadAt(b, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return n, fmt.Errorf("reading %s at offset %d: %w", f.path, offset, err)
	}
	return n, nil
}

// readBlocks lists the blocks. nextData, which may be nil, jumps over reserved blocks that were never written.
func (f *File) readBlocks(nextData func(int64) (int64, error)) error {
	step := int64(f.header.ChunkBytes)
	for offset := int64(HeaderBytes); offset < f.size; offset += step {
		ch, kind, err := f.readBlock(offset)
		switch {
		case err != nil:
			var bad *Error
			if !errors.As(err, &bad) {
				return err
			}
			f.problems = append(f.problems, err)
		case kind == 0:
			if nextData == nil {
				continue
			}
			next, err := nextData(offset + step)
			if err != nil {
				if errors.Is(err, syscall.ENXIO) { // nothing but a hole up to the end of the file
					offset = f.size
				}
				nextData = nil // this file system does not tell its holes
				continue
			}
			if skip := (next - offset) / step; skip > 1 {
				offset += (skip - 1) * step
			}
		case kind == typeEvents:
			f.chunks = append(f.chunks, ch)
		case kind == typeDefinitions:
			f.definitions = append(f.definitions, ch)
		case kind == typeAggregates:
			f.aggregates = append(f.aggregates, ch)
		}
	}
	bySequence := func(a, b Chunk) int { return cmp.Compare(a.Sequence, b.Sequence) }
	slices.SortStableFunc(f.definitions, bySequence)
	slices.SortStableFunc(f.aggregates, bySequence)
	return nil
}

// readBlock reads the header of the block at offset. Its type is 0 when the block was never used.
func (f *File) readBlock(offset int64) (Chunk, uint8, error) {
	var b [blockHeader]byte
	n, err := f.readAt(b[:], offset)
	if err != nil {
		return Chunk{}, 0, err
	}
	le := binary.LittleEndian
	magic := le.Uint32(b[:])
	if magic == 0 {
		return Chunk{}, 0, nil
	}
	if n < blockHeader {
		return Chunk{}, 0, f.errorf(ErrTruncated, offset, "the block's header ends after %d of %d bytes", n, blockHeader)
	}
	if magic != blockMagic {
		return Chunk{}, 0, f.errorf(ErrCorrupt, offset, "a block begins with %#x", magic)
	}
	kind := b[4]
	if (kind < typeEvents || kind > typeAggregates) && f.header.Major == Major && f.header.Minor <= Minor {
		return Chunk{}, 0, f.errorf(ErrCorrupt, offset, "a block of type %d", kind)
	}
	return Chunk{
		Offset: offset, Domain: b[5], Flags: Flags(le.Uint16(b[6:])), Thread: le.Uint32(b[8:]), Sequence: le.Uint32(b[12:]),
		First: le.Uint64(b[16:]), Last: le.Uint64(b[24:]), Committed: le.Uint32(b[32:]), Records: le.Uint32(b[36:]),
		CRC: le.Uint32(b[40:]), Earliest: le.Uint32(b[44:]),
	}, kind, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// readPayload reads the committed payload of a block into buf, which it grows where needed, with padding zero bytes behind.
// The payload returned may be shorter than promised: rest then says why. sound is false where the checksum is wrong.
func (f *File) readPayload(ch *Chunk, buf []byte, padding int) (payload []byte, sound bool, rest, err error) {
	want := int(ch.Committed)
	if room := int(f.header.ChunkBytes) - blockHeader; want > room {
		rest = f.errorf(ErrCorrupt, ch.Offset+32, "%d bytes committed in a block with room for %d", want, room)
		want = 0 // where its records end is not known, and the zeros behind them would read as records
	}
	if int(ch.Domain) >= len(f.header.Domains) {
		rest = f.errorf(ErrCorrupt, ch.Offset+5, "clock domain %d of %d", ch.Domain, len(f.header.Domains))
		want = 0
	}
	if cap(buf) < want+padding {
		buf = make([]byte, int(f.header.ChunkBytes)+padding)
	}
	buf = buf[:cap(buf)]
	n, err := f.readAt(buf[:want], ch.Offset+blockHeader)
	if err != nil {
		return nil, false, nil, err
	}
	if n < want {
		rest = f.errorf(ErrTruncated, ch.Offset+blockHeader+int64(n), "the block's payload ends after %d of %d bytes", n, want)
	}
	clear(buf[n : n+padding])
	sound = rest != nil || ch.Flags&(Closed|Checked) != Closed|Checked || crc32.Checksum(buf[:n], castagnoli) == ch.CRC
	return buf[:n], sound, rest, nil
}

// payload is readPayload with a second look at a block whose checksum is wrong: it may have been closed while its header was read.
func (f *File) payload(ch *Chunk, buf []byte, padding int) (payload []byte, sound bool, rest, err error) {
	payload, sound, rest, err = f.readPayload(ch, buf, padding)
	if err != nil || sound {
		return payload, sound, rest, err
	}
	again, _, err := f.readBlock(ch.Offset)
	if err != nil || again.CRC == ch.CRC {
		return payload, false, rest, nil
	}
	return f.readPayload(&again, buf, padding)
}

func (f *File) badChecksum(ch *Chunk) error {
	return f.errorf(ErrCorrupt, ch.Offset+blockHeader, "the checksum of the block's %d bytes is wrong", ch.Committed)
}
