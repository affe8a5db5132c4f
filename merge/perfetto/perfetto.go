// Package perfetto writes a merged run as a Perfetto trace (trace.pftrace), for ui.perfetto.dev and trace_processor.
package perfetto

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"

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

// compression is a level of flate: 5 makes traces an eighth smaller than 1 and takes half as long again.
const compression = 5

// Write writes the run of src to w, gzipped. The bytes are the same for any number of workers: each partition is compressed for itself
// and has a packet sequence and interned strings of its own. Where there are more slices than o.MaxSlices, the run is read twice.
func Write(ctx context.Context, w io.Writer, src ops.Source, o Options) (*Stats, error) {
	run := src.Run()
	p, err := timeline.NewPlan(run, o)
	if err != nil {
		return nil, err
	}
	if err := p.Select(ctx, src); err != nil {
		return nil, err
	}
	if err := p.StartParts(KindPart); err != nil {
		return nil, err
	}
	bandwidth, err := p.Bandwidth(ctx, src)
	if err != nil {
		return nil, err
	}
	u := newUUIDs(p)
	total := p.NewStats()
	segments := make([]written, run.Partitions+1)
	out := &counting{w: w}
	err = timeline.Ordered(ctx, out, p.Options.Workers, len(segments), func(ctx context.Context, i int, w io.Writer) (err error) {
		if i == 0 {
			if _, err = w.Write(gzipHeader); err != nil {
				return err
			}
			segments[0], err = segment(w, false, func(e *encoder) error { return describe(e, p, u) })
			return err
		}
		made := &Made{}
		taken, err := p.TakePart(ctx, KindPart, i-1, w, made)
		if err == nil && !taken {
			made, err = part(ctx, w, src, p, u, i-1)
		}
		if err != nil {
			return err
		}
		segments[i] = written{checksum{made.CRC, made.Length}, made.Packets}
		total.Add(made.Stats)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("writing the trace: %w", err)
	}
	last, err := segment(out, true, func(e *encoder) error {
		if err := p.WriteBandwidth(bandwidth, newEvents(e, p, u, uint64(sequencePartitions+run.Partitions)), total); err != nil {
			return err
		}
		return overview(e, p, u, total)
	})
	if err != nil {
		return nil, fmt.Errorf("writing the trace: %w", err)
	}
	var sum checksum
	for _, s := range append(segments, last) {
		sum = sum.then(s.checksum)
		total.Packets += s.packets
	}
	if _, err := out.Write(sum.trailer()); err != nil {
		return nil, fmt.Errorf("writing the trace: %w", err)
	}
	total.Bytes = out.n
	return total, nil
}

// KindPart are the partitions of a trace, for timeline.Elsewhere.
const KindPart = "perfetto"

// Made says what a partition of a trace holds.
type Made struct {
	CRC             uint32 // of the uncompressed bytes
	Length, Packets int64
	Stats           *timeline.Stats
}

// Part writes partition i of the trace that Write writes by the same plan.
func Part(ctx context.Context, w io.Writer, src ops.Source, p *timeline.Plan, i int) (*Made, error) {
	return part(ctx, w, src, p, newUUIDs(p), i)
}

func part(ctx context.Context, w io.Writer, src ops.Source, p *timeline.Plan, u *uuids, i int) (*Made, error) {
	var stats *timeline.Stats
	s, err := segment(w, false, func(e *encoder) (err error) {
		stats, err = p.Walk(ctx, src, i, newEvents(e, p, u, uint64(sequencePartitions+i)))
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Made{s.crc, s.length, s.packets, stats}, nil
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
