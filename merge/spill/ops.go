package spill

import (
	"cmp"
	"encoding/binary"
	"fmt"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/order"
)

// Key is the place of an operation in the order of its process.
type Key struct {
	Post     int64
	Sequence uint64
	Thread   uint32
}

// KeyOf returns the key of an operation.
func KeyOf(op *ops.Op) Key { return Key{op.Post, op.Sequence, op.Thread} }

// Compare orders keys by (post, thread, sequence).
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Post, o.Post), cmp.Compare(k.Thread, o.Thread), cmp.Compare(k.Sequence, o.Sequence))
}

// Block is a piece of a run: Count operations in order, from First to Last.
type Block struct {
	Place
	file *File
}

// Place is a block without the file that it is in, as other processes are told of it.
type Place struct {
	First, Last Key
	Offset      int64
	Length      uint32
	Count       uint32
}

// Places are those of blocks.
func Places(blocks []Block) []Place {
	places := make([]Place, len(blocks))
	for i := range blocks {
		places[i] = blocks[i].Place
	}
	return places
}

// BlocksAt are blocks that were written to a file.
func BlocksAt(file *File, places []Place) []Block {
	blocks := make([]Block, len(places))
	for i := range places {
		blocks[i] = Block{places[i], file}
	}
	return blocks
}

// Writer takes the operations of one process in the order they end and spills them in sorted runs. An operation that begins before
// what an earlier run already holds goes to a run of late ones, so that few blocks span long times.
type Writer struct {
	file      *File
	blockOps  int
	main      buffer
	late      buffer
	flushed   Key
	any       bool
	sorter    order.Sorter
	encoder   opCoder
	out       []byte
	blocks    []Block
	Count     int64
	First     int64 // earliest Post
	LastKnown int64 // latest Done
}

type buffer struct {
	ops  []ops.Op
	refs []order.Ref
}

// Run sizes in operations. They are fixed so that blocks, and with them the cuts of partitions, do not depend on memory or workers.
const (
	runOps  = 16 << 10
	lateOps = 4 << 10
)

// WriterBytes is the memory that a Writer takes.
const WriterBytes = (runOps + lateOps) * 312

// NewWriter makes a writer whose blocks hold up to blockOps operations.
func NewWriter(file *File, c *catalogue.Catalogue, blockOps int) *Writer {
	return &Writer{file: file, blockOps: blockOps, encoder: newCoder(c)}
}

// Add takes an operation.
func (w *Writer) Add(op *ops.Op) error {
	if w.Count == 0 || op.Post < w.First {
		w.First = op.Post
	}
	w.LastKnown = max(w.LastKnown, op.Done)
	w.Count++
	b, limit := &w.main, runOps
	if w.any && KeyOf(op).Compare(w.flushed) < 0 {
		b, limit = &w.late, lateOps
	}
	b.refs = append(b.refs, order.Ref{Post: op.Post, At: uint32(len(b.ops))})
	b.ops = append(b.ops, *op)
	if len(b.ops) < limit {
		return nil
	}
	return w.flush(b)
}

// Finish writes what is left and returns the blocks of all runs.
func (w *Writer) Finish() ([]Block, error) {
	if err := w.flush(&w.main); err != nil {
		return nil, err
	}
	if err := w.flush(&w.late); err != nil {
		return nil, err
	}
	w.main, w.late = buffer{}, buffer{}
	return w.blocks, nil
}

func (w *Writer) flush(b *buffer) error {
	if len(b.ops) == 0 {
		return nil
	}
	w.sorter.Sort(b.refs, func(x, y uint32) int { return KeyOf(&b.ops[x]).Compare(KeyOf(&b.ops[y])) })
	w.out = w.out[:0]
	from := len(w.blocks)
	for i := 0; i < len(b.refs); i += w.blockOps {
		part := b.refs[i:min(i+w.blockOps, len(b.refs))]
		start := len(w.out)
		w.encoder.reset()
		for _, r := range part {
			w.out = w.encoder.append(w.out, &b.ops[r.At])
		}
		w.blocks = append(w.blocks, Block{Place{
			First: KeyOf(&b.ops[part[0].At]), Last: KeyOf(&b.ops[part[len(part)-1].At]),
			Offset: int64(start), Length: uint32(len(w.out) - start), Count: uint32(len(part)),
		}, w.file})
	}
	base := w.file.reserve(int64(len(w.out)))
	for i := from; i < len(w.blocks); i++ {
		w.blocks[i].Offset += base
	}
	if last := w.blocks[len(w.blocks)-1].Last; b == &w.main && (!w.any || last.Compare(w.flushed) > 0) {
		w.flushed, w.any = last, true
	}
	b.ops, b.refs = b.ops[:0], b.refs[:0]
	return w.file.write(w.out, base)
}

// Reader reads one block after another. It keeps its buffers.
type Reader struct {
	decoder opCoder
	buf     []byte
	left    []byte
	count   uint32
	offset  int64
}

// NewReader makes a reader of blocks.
func NewReader(c *catalogue.Catalogue) *Reader {
	return &Reader{decoder: newCoder(c)}
}

// Open starts on a block.
func (r *Reader) Open(b *Block) error {
	if cap(r.buf) < int(b.Length) {
		r.buf = make([]byte, b.Length+b.Length/2)
	}
	r.left, r.count, r.offset = r.buf[:b.Length], b.Count, b.Offset
	r.decoder.reset()
	return b.file.read(r.left, b.Offset)
}

// Next reads the block's next operation into op, which must not be in use otherwise. It returns false at the block's end.
func (r *Reader) Next(op *ops.Op) (bool, error) {
	if r.count == 0 {
		return false, nil
	}
	r.count--
	n := r.decoder.read(r.left, op)
	if n <= 0 {
		return false, fmt.Errorf("reading the merge's temporary file: a block at %d does not decode", r.offset)
	}
	r.left = r.left[n:]
	return true, nil
}

// opCoder writes operations as differences from the one before, fields from the last operation of the same event.
type opCoder struct {
	fields []int // number of fields by event id
	last   ops.Op
	prior  [][catalogue.MaxFields]uint64 // by event id
}

func newCoder(c *catalogue.Catalogue) opCoder {
	n := 1
	if len(c.Events) > 0 {
		n += int(c.Events[len(c.Events)-1].ID)
	}
	k := opCoder{fields: make([]int, n), prior: make([][catalogue.MaxFields]uint64, n)}
	for _, e := range c.Events {
		k.fields[e.ID] = len(e.Layout.Fields)
	}
	return k
}

func (k *opCoder) reset() {
	k.last = ops.Op{}
	clear(k.prior)
}

func zigzag(v uint64) uint64   { return v<<1 ^ uint64(int64(v)>>63) }
func unzigzag(v uint64) uint64 { return v>>1 ^ -(v & 1) }

func (k *opCoder) append(b []byte, op *ops.Op) []byte {
	u := binary.AppendUvarint
	b = u(b, zigzag(uint64(op.Post-k.last.Post)))
	b = u(b, zigzag(uint64(op.Done-op.Post)))
	b = u(b, uint64(op.Endpoint))
	b = u(b, uint64(op.Thread))
	b = u(b, zigzag(op.Sequence-k.last.Sequence))
	b = u(b, uint64(op.Event))
	b = append(b, byte(op.Role))
	b = u(b, uint64(op.Flags))
	b = u(b, uint64(op.Lane))
	b = u(b, uint64(op.Requests))
	b = u(b, zigzag(uint64(int64(op.Status))))
	b = u(b, zigzag(op.Ordinal-k.last.Ordinal))
	b = u(b, op.Bytes)
	b = u(b, uint64(op.Outstanding))
	b = u(b, uint64(op.After))
	b = u(b, zigzag(op.Total-k.last.Total))
	b = u(b, uint64(op.For.Candidates))
	if op.For.Candidates > 0 {
		for _, v := range [...]uint64{uint64(op.For.Channel), uint64(op.For.Communicator), uint64(op.For.Task), uint64(op.For.Function), op.For.Sequence} {
			b = u(b, v)
		}
	}
	prior := &k.prior[op.Event]
	for i := range k.fields[op.Event] {
		b = u(b, zigzag(op.Fields[i]-prior[i]))
	}
	*prior = op.Fields
	k.last = *op
	return b
}

// read decodes one operation and returns its length, 0 or less where buf does not hold one.
func (k *opCoder) read(buf []byte, op *ops.Op) int {
	*op = ops.Op{}
	pos, bad := 0, false
	u := func() uint64 {
		v, n := binary.Uvarint(buf[pos:])
		if n <= 0 {
			bad = true
			return 0
		}
		pos += n
		return v
	}
	op.Post = k.last.Post + int64(unzigzag(u()))
	op.Done = op.Post + int64(unzigzag(u()))
	op.Endpoint = uint32(u())
	op.Thread = uint32(u())
	op.Sequence = k.last.Sequence + unzigzag(u())
	op.Event = uint16(u())
	op.Role = ops.Role(u())
	op.Flags = ops.Flag(u())
	op.Lane = uint16(u())
	op.Requests = uint32(u())
	op.Status = int32(int64(unzigzag(u())))
	op.Ordinal = k.last.Ordinal + unzigzag(u())
	op.Bytes = u()
	op.Outstanding = uint32(u())
	op.After = uint32(u())
	op.Total = k.last.Total + unzigzag(u())
	if n := u(); n > 0 {
		op.For = ops.For{Candidates: uint16(n), Channel: uint16(u()), Communicator: uint32(u()), Task: uint32(u()), Function: uint32(u()), Sequence: u()}
	}
	if bad || int(op.Event) >= len(k.fields) {
		return 0
	}
	prior := &k.prior[op.Event]
	for i := range k.fields[op.Event] {
		op.Fields[i] = prior[i] + unzigzag(u())
	}
	*prior = op.Fields
	k.last = *op
	if bad {
		return 0
	}
	return pos
}
