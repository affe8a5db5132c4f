package capturetest

import (
	"fmt"
	"hash/crc32"
	"os"

	"github.com/sigmatrace/sigmatrace/merge/capture"
)

// text puts a string into a field of size bytes with a NUL behind it.
func (w *Writer) text(b []byte, offset, size int, s string) {
	if len(s) >= size {
		w.fail(fmt.Errorf("%q is too long for the %d bytes at offset %d of the header", s, size, offset))
		return
	}
	copy(b[offset:], s)
}

func (w *Writer) encodeHeader() []byte {
	b := make([]byte, headerSize)
	h, l := &w.header, &w.Live
	copy(b, "SGMTRACE")
	le.PutUint16(b[8:], h.Major)
	le.PutUint16(b[10:], h.Minor)
	le.PutUint32(b[12:], 0x01020304)
	le.PutUint32(b[16:], headerSize)
	le.PutUint32(b[20:], h.ChunkBytes)
	le.PutUint32(b[24:], uint32(h.Architecture))
	le.PutUint32(b[28:], uint32(h.BackEnd))
	le.PutUint32(b[32:], h.Mode)
	le.PutUint32(b[36:], h.Catalogue)
	le.PutUint32(b[40:], h.Pid)
	le.PutUint32(b[44:], h.Image)
	le.PutUint64(b[48:], h.PidNamespace)
	le.PutUint64(b[56:], h.StartTime)
	copy(b[64:80], h.BootID[:])
	le.PutUint64(b[80:], uint64(h.Rank))
	le.PutUint64(b[88:], uint64(h.World))
	le.PutUint32(b[96:], uint32(h.RankSource))
	le.PutUint32(b[100:], h.ParentPid)
	le.PutUint64(b[104:], h.RealtimeNS)
	le.PutUint64(b[112:], h.ClockHz)
	le.PutUint32(b[120:], h.ClockFlags)
	le.PutUint32(b[124:], uint32(len(h.Domains)))
	if len(h.Domains) > 8 {
		w.fail(fmt.Errorf("%d clock domains", len(h.Domains)))
		return b
	}
	for i, d := range h.Domains {
		e := b[128+32*i:]
		le.PutUint32(e[0:], d.Kind)
		le.PutUint32(e[4:], d.Flags)
		le.PutUint64(e[8:], d.Hz)
		copy(e[16:32], d.Identity[:])
	}
	w.text(b, 384, 64, h.Hostname)
	w.text(b, 448, 256, h.Executable)
	w.text(b, 704, 256, h.Job)
	w.text(b, 960, 64, h.Providers)
	w.text(b, 1024, 64, h.Profile)
	le.PutUint32(b[1088:], crc32.Checksum(b[:1088], crc32.MakeTable(crc32.Castagnoli)))
	le.PutUint64(b[2048:], l.EndRealtimeNS)
	le.PutUint32(b[2056:], uint32(l.EndMark))
	le.PutUint32(b[2060:], l.Threads)
	le.PutUint64(b[2064:], l.Blocks)
	le.PutUint64(b[2072:], l.LostEvents)
	le.PutUint64(b[2080:], l.LostBytes)
	le.PutUint64(b[2088:], l.LostFirst)
	le.PutUint64(b[2096:], l.LostLast)
	le.PutUint32(b[2104:], uint32(l.LostCause))
	le.PutUint32(b[2108:], l.LostErrno)
	le.PutUint64(b[2112:], l.LostTables)
	le.PutUint64(b[2120:], l.LostObjects)
	le.PutUint64(b[2128:], l.LostDefinitions)
	le.PutUint64(b[2136:], l.Unplaced)
	if l.Behind {
		b[2144] = 1
	}
	return b
}

// AppendAlive appends proof-of-life records to the file at path.
func AppendAlive(path string, records ...capture.Alive) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("appending a proof of life: %w", err)
	}
	defer file.Close()
	for _, a := range records {
		b := make([]byte, 512)
		copy(b, "SGMALIVE")
		le.PutUint16(b[8:], 1)
		le.PutUint16(b[10:], uint16(a.RankSource))
		le.PutUint32(b[12:], a.Pid)
		le.PutUint64(b[16:], uint64(a.Rank))
		le.PutUint64(b[24:], uint64(a.World))
		le.PutUint64(b[32:], a.PidNamespace)
		le.PutUint64(b[40:], a.StartTime)
		le.PutUint64(b[48:], a.RealtimeNS)
		le.PutUint32(b[56:], a.Image)
		copy(b[64:127], a.Hostname)
		copy(b[128:191], a.Providers)
		copy(b[192:208], a.BootID[:])
		copy(b[256:511], a.Executable)
		if _, err := file.Write(b); err != nil {
			return fmt.Errorf("appending a proof of life: %w", err)
		}
	}
	return file.Close()
}
