package parquet

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	pzstd "github.com/parquet-go/parquet-go/compress/zstd"

	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// pageBytes is how many bytes of a column's values make a page. It bounds what a writer holds uncompressed: one page for each column.
const pageBytes = 128 << 10

// options of every file; createdBy must not hold what differs from one build to the next.
func options(run string) []parquet.WriterOption {
	return []parquet.WriterOption{
		parquet.Compression(&pzstd.Codec{Level: zstd.SpeedFastest}), parquet.PageBufferSize(pageBytes),
		parquet.CreatedBy("sigmatrace", "1", "parquet-go"), parquet.KeyValueMetadata("sigmatrace.run", run),
		parquet.KeyValueMetadata("sigmatrace.schema", fmt.Sprint(SchemaVersion)),
	}
}

// row is what a layer's generated rows can do.
type row interface {
	fill(e *encoder, op *ops.Op)
	common() *operation
}

// layerWriter writes a layer's operations to one file.
type layerWriter interface {
	create(path, run string) error
	add(op *ops.Op)
	flush() error    // hands on what was added: operations may be used again afterwards
	rowGroup() error // ends a row group, if there is anything in it
	close() (written, error)
	discard()
}

// written says what a file holds.
type written struct {
	rows, bytes int64
	first, last int64 // posts, ns
}

type typedWriter[T any, P interface {
	*T
	row
}] struct {
	e    *encoder
	rows []T
	file
	w     *parquet.GenericWriter[T]
	group int64 // rows in the row group
	written
}

func newLayerWriter[T any, P interface {
	*T
	row
}](e *encoder) layerWriter {
	return &typedWriter[T, P]{e: e}
}

func (t *typedWriter[T, P]) create(path, run string) error {
	if err := t.file.create(path); err != nil {
		return err
	}
	t.written = written{}
	t.w = parquet.NewGenericWriter[T](t.buffer, rowOptions[T](run)...)
	return nil
}

// rowOptions are those of files of operations. Least and greatest texts of a page help no query, and cost a tenth of the time.
func rowOptions[T any](run string) []parquet.WriterOption {
	o := append(options(run), parquet.SortingWriterConfig(parquet.SortingColumns(parquet.Ascending("post_ns"))))
	for _, f := range parquet.SchemaOf(new(T)).Fields() {
		if f.Type().Kind() == parquet.ByteArray {
			o = append(o, parquet.SkipPageBounds(f.Name()))
		}
	}
	return o
}

func (t *typedWriter[T, P]) add(op *ops.Op) {
	n := len(t.rows)
	if n < cap(t.rows) {
		t.rows = t.rows[:n+1]
	} else {
		t.rows = append(t.rows, *new(T))
	}
	r := P(&t.rows[n])
	r.common().fill(t.e, op)
	r.fill(t.e, op)
	if t.written.rows == 0 {
		t.first = op.Post
	}
	t.written.rows++
	t.last = op.Post
}

func (t *typedWriter[T, P]) flush() error {
	if len(t.rows) == 0 {
		return nil
	}
	_, err := t.w.Write(t.rows)
	t.group += int64(len(t.rows))
	t.rows = t.rows[:0]
	return err
}

func (t *typedWriter[T, P]) rowGroup() error {
	if t.group == 0 {
		return nil
	}
	t.group = 0
	return t.w.Flush()
}

func (t *typedWriter[T, P]) close() (written, error) {
	if err := t.w.Close(); err != nil {
		return written{}, err
	}
	err := t.file.close()
	t.written.bytes = t.n
	return t.written, err
}

// file is a file being written.
type file struct {
	f      *os.File
	buffer *bufio.Writer
	n      int64
}

func (f *file) create(path string) (err error) {
	if err = os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f.f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	f.n = 0
	f.buffer = bufio.NewWriterSize(f, 256<<10)
	return err
}

// Write implements io.Writer: behind the buffer.
func (f *file) Write(b []byte) (int, error) {
	n, err := f.f.Write(b)
	f.n += int64(n)
	return n, err
}

func (f *file) close() error {
	err := f.buffer.Flush()
	if closed := f.f.Close(); err == nil {
		err = closed
	}
	f.f = nil
	return err
}

// discard lets go of a file that is not to be ended.
func (f *file) discard() {
	if f.f != nil {
		f.f.Close()
		f.f = nil
	}
}

// writeTable writes a small table.
func writeTable[T any](path, run string, rows []T) (written, error) {
	var f file
	if err := f.create(path); err != nil {
		return written{}, err
	}
	defer f.discard()
	w := parquet.NewGenericWriter[T](io.Writer(f.buffer), options(run)...)
	if _, err := w.Write(rows); err != nil {
		return written{}, err
	}
	if err := w.Close(); err != nil {
		return written{}, err
	}
	err := f.close()
	return written{rows: int64(len(rows)), bytes: f.n}, err
}
