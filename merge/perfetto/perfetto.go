// Package perfetto writes a merged run as a Perfetto trace (trace.pftrace), for ui.perfetto.dev and trace_processor.
package perfetto

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"

	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline"
)

// Options of an export; see timeline.Options.
type Options = timeline.Options

// Stats says what was written; see timeline.Stats.
type Stats = timeline.Stats

// Packet sequences: descriptors have one of their own, since the state of a sequence that describes a track may reach its events.
const (
	sequenceDescriptors = 1
	sequenceOverview    = 2
	sequencePartitions  = 3 // and those after it
)

// compression is a compromise: level 3 is a third slower than 1 and a tenth smaller, 6 four times as slow and a twentieth smaller.
const compression = 3

// Write writes the run of src to w, gzipped. The bytes are the same for any number of workers: each partition is a gzip member of its
// own, with a packet sequence and interned strings of its own. Where there are more slices than o.MaxSlices, the run is read twice.
func Write(ctx context.Context, w io.Writer, src ops.Source, o Options) (*Stats, error) {
	run := src.Run()
	p, err := timeline.NewPlan(run, o)
	if err != nil {
		return nil, err
	}
	if err := p.Select(ctx, src); err != nil {
		return nil, err
	}
	u := newUUIDs(p)
	total := p.NewStats()
	parts := make([]*Stats, run.Partitions)
	size, err := timeline.Ordered(ctx, w, p.Options.Workers, run.Partitions+1, func(ctx context.Context, i int, w io.Writer) error {
		if i == 0 {
			return member(w, func(e *encoder) error { return describe(e, p, u, total) })
		}
		i--
		return member(w, func(e *encoder) error {
			s, err := p.Walk(ctx, src, i, newEvents(e, p, u, uint64(sequencePartitions+i)))
			if err != nil {
				return err
			}
			s.Packets = e.packets
			parts[i] = s
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("writing the trace: %w", err)
	}
	for _, s := range parts {
		total.Add(s)
	}
	c := &counting{w: w}
	if err := member(c, func(e *encoder) error { return overview(e, p, u, total) }); err != nil {
		return nil, fmt.Errorf("writing the trace: %w", err)
	}
	total.Bytes = size + c.n
	return total, nil
}

type counting struct {
	w io.Writer
	n int64
}

func (c *counting) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// encoder writes packets.
type encoder struct {
	w       *bufio.Writer
	head    message
	packets int64
}

// member writes a gzip member with the packets of fill; nothing at all where there are none.
func member(w io.Writer, fill func(*encoder) error) error {
	z, err := gzip.NewWriterLevel(w, compression)
	if err != nil {
		return err
	}
	e := &encoder{w: bufio.NewWriterSize(z, 64<<10)}
	if err := fill(e); err != nil || e.packets == 0 {
		return err
	}
	if err := e.w.Flush(); err != nil {
		return err
	}
	return z.Close()
}

// packet writes a packet on a sequence.
func (e *encoder) packet(body message) error {
	e.packets++
	e.head = binary.AppendUvarint(e.head[:0].tag(traceField, wireBytes), uint64(len(body)))
	if _, err := e.w.Write(e.head); err != nil {
		return err
	}
	_, err := e.w.Write(body)
	return err
}
