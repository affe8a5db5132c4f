package capture

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"strings"
)

// Version of the format that this package reads: any minor version of it.
const (
	Major = 1
	Minor = 0
)

// HeaderBytes is the size of a file's header, behind which its blocks lie.
const HeaderBytes = 4096

const (
	minChunkBytes  = 16 << 10
	maxChunkBytes  = 1 << 20
	byteOrder      = 0x01020304
	swappedOrder   = 0x04030201
	maxDomains     = 8
	fileMagic      = "SGMTRACE"
	clockInvariant = 1
)

// Architecture of the machine that wrote a capture.
type Architecture uint32

// Architectures.
const (
	X8664   Architecture = 1
	AArch64 Architecture = 2
)

func (a Architecture) String() string { return name(uint32(a), "", "x86-64", "aarch64") }

// BackEnd says how the file was written.
type BackEnd uint32

// Back ends. Mapped loses at most the record being written when the process is killed, Written at most each thread's open chunk
// and a second of the tables.
const (
	Mapped  BackEnd = 1
	Written BackEnd = 2
)

func (b BackEnd) String() string { return name(uint32(b), "", "mapped", "written") }

// RankSource is the environment variable that the rank was taken from.
type RankSource uint32

func (r RankSource) String() string {
	return name(uint32(r), "none", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "RANK", "SLURM_PROCID",
		"PALS_RANKID", "JSM_NAMESPACE_RANK", "ALPS_APP_PE", "FLUX_TASK_RANK")
}

// EndMark says whether the process came to an orderly end.
type EndMark uint32

// End marks.
const (
	EndNone EndMark = 0 // killed, crashed, replaced by exec, or still running
	EndExit EndMark = 1
)

func (e EndMark) String() string { return name(uint32(e), "none", "exit") }

// LostCause is the first reason why events found no room.
type LostCause uint32

// Causes of loss.
const (
	LostBudget LostCause = iota + 1
	LostSpace
	LostQuota
	LostOther
	LostThreads
	LostHandler
	LostElements
)

func (l LostCause) String() string {
	return name(uint32(l), "none", "byte budget", "no space", "quota", "other error", "too many threads", "called by a signal's handler that interrupted the recorder",
		"elements of queues that GPUs ring could not be read")
}

// name returns names[v], or the number where there is none.
func name(v uint32, names ...string) string {
	if v < uint32(len(names)) && names[v] != "" {
		return names[v]
	}
	return fmt.Sprint(v)
}

// Domain is a clock that times of a capture come from. Entry 0 of a header is the CPU's counter.
type Domain struct {
	Kind     uint32 // enumeration domain of the catalogue
	Flags    uint32
	Hz       uint64   // ticks per second, 0 unknown
	Identity [16]byte // GPU UUID, NIC GUID; zero for the CPU's counter
}

// Header is the part of a capture's first 4096 bytes that is written once, when the file is made.
type Header struct {
	Major, Minor uint16
	ChunkBytes   uint32 // size of a block, its 64-byte header included
	Architecture Architecture
	BackEnd      BackEnd
	Mode         uint32 // enumeration mode of the catalogue
	Catalogue    uint32 // version of the catalogue that the writer was built from
	Pid          uint32 // in the process's own pid namespace
	Image        uint32 // 0 for the first program of the process that recorded, +1 after each exec
	PidNamespace uint64 // inode of the namespace
	StartTime    uint64 // clock ticks since boot
	BootID       [16]byte
	Rank         int64 // -1 none
	World        int64 // -1 unknown
	RankSource   RankSource
	ParentPid    uint32
	RealtimeNS   uint64 // CLOCK_REALTIME when the file was made
	ClockHz      uint64 // frequency of domain 0, 0 where only the clock pairs tell
	ClockFlags   uint32
	Domains      []Domain
	Hostname     string
	Executable   string // cut on the left when longer than 255 bytes
	Job          string // key=value lines
	Providers    string // comma list
	Profile      string
}

// Invariant tells whether the CPU's counter runs at a constant rate and never stops.
func (h *Header) Invariant() bool { return h.ClockFlags&clockInvariant != 0 }

// Node is the name of the machine's boot, as capture folders carry it: hostname and the first 8 digits of the boot id.
func (h *Header) Node() string { return h.Hostname + "." + hex.EncodeToString(h.BootID[:4]) }

// JobValues returns the job's identity, by key.
func (h *Header) JobValues() map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(h.Job) {
		if k, v, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "="); ok {
			values[k] = v
		}
	}
	return values
}

// Live is the part of the header that the process changes while it runs, as it was when the file was opened.
type Live struct {
	EndRealtimeNS   uint64 // CLOCK_REALTIME at the orderly end, else 0
	EndMark         EndMark
	Threads         uint32 // thread indices given out
	Blocks          uint64 // blocks given out
	LostEvents      uint64 // events that found no room
	LostBytes       uint64 // payload bytes of those
	LostFirst       uint64 // ticks
	LostLast        uint64 // ticks
	LostCause       LostCause
	LostErrno       uint32
	LostTables      uint64 // calls without an aggregate entry: totals are then a lower bound
	LostObjects     uint64 // objects that found no place; their events carry object 0
	LostDefinitions uint64 // definitions that found no room
	Unplaced        uint64 // calls counted without their object, since the tables had no room
	Behind          bool   // more of the capture was in memory when the file was last written (FORMAT.md, Captures in memory)
}

// cString returns the text of a NUL-terminated field.
func cString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// headerCRC is the offset of the checksum of the header's constant part, which ends there.
const headerCRC = 1088

// readHeader reads and checks the file's header.
func (f *File) readHeader() error {
	var buf [HeaderBytes]byte
	n, err := f.readAt(buf[:], 0)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	switch {
	case n == 0:
		return f.errorf(ErrTruncated, 0, "the file is empty")
	case n >= 8 && bytes.Equal(buf[:8], make([]byte, 8)):
		return f.errorf(ErrTruncated, 0, "the header was never written")
	case string(buf[:min(n, 8)]) != fileMagic[:min(n, 8)]:
		return f.errorf(ErrForeign, 0, "it begins with %q, not %q", buf[:min(n, 8)], fileMagic)
	case n < HeaderBytes:
		return f.errorf(ErrTruncated, int64(n), "the header ends after %d of %d bytes", n, HeaderBytes)
	}
	switch order := le.Uint32(buf[12:]); order {
	case byteOrder:
	case swappedOrder:
		return f.errorf(ErrForeign, 12, "it is in the other byte order")
	default:
		return f.errorf(ErrCorrupt, 12, "byte order mark %#x", order)
	}
	h := &f.header
	h.Major, h.Minor = le.Uint16(buf[8:]), le.Uint16(buf[10:])
	if h.Major > Major {
		return f.errorf(ErrNewer, 8, "version %d.%d, this reader knows %d", h.Major, h.Minor, Major)
	}
	if h.Major == 0 {
		return f.errorf(ErrCorrupt, 8, "version 0")
	}
	if v := le.Uint32(buf[16:]); v != HeaderBytes {
		return f.errorf(ErrCorrupt, 16, "a header of %d bytes", v)
	}
	h.ChunkBytes = le.Uint32(buf[20:])
	if c := h.ChunkBytes; c < minChunkBytes || c > maxChunkBytes || c&(c-1) != 0 {
		return f.errorf(ErrCorrupt, 20, "blocks of %d bytes", c)
	}
	h.Architecture = Architecture(le.Uint32(buf[24:]))
	h.BackEnd = BackEnd(le.Uint32(buf[28:]))
	h.Mode = le.Uint32(buf[32:])
	h.Catalogue = le.Uint32(buf[36:])
	h.Pid = le.Uint32(buf[40:])
	h.Image = le.Uint32(buf[44:])
	h.PidNamespace = le.Uint64(buf[48:])
	h.StartTime = le.Uint64(buf[56:])
	copy(h.BootID[:], buf[64:])
	h.Rank = int64(le.Uint64(buf[80:]))
	h.World = int64(le.Uint64(buf[88:]))
	h.RankSource = RankSource(le.Uint32(buf[96:]))
	h.ParentPid = le.Uint32(buf[100:])
	h.RealtimeNS = le.Uint64(buf[104:])
	h.ClockHz = le.Uint64(buf[112:])
	h.ClockFlags = le.Uint32(buf[120:])
	domains := le.Uint32(buf[124:])
	if domains == 0 || domains > maxDomains {
		return f.errorf(ErrCorrupt, 124, "%d clock domains", domains)
	}
	for i := range domains {
		b := buf[128+32*i:]
		d := Domain{Kind: le.Uint32(b), Flags: le.Uint32(b[4:]), Hz: le.Uint64(b[8:])}
		copy(d.Identity[:], b[16:])
		h.Domains = append(h.Domains, d)
	}
	if crc := le.Uint32(buf[headerCRC:]); crc != 0 && crc != crc32.Checksum(buf[:headerCRC], castagnoli) {
		return f.errorf(ErrCorrupt, headerCRC, "the header does not have its checksum")
	}
	h.Hostname = cString(buf[384:448])
	h.Executable = cString(buf[448:704])
	h.Job = cString(buf[704:960])
	h.Providers = cString(buf[960:1024])
	h.Profile = cString(buf[1024:1088])
	f.live = Live{
		EndRealtimeNS:   le.Uint64(buf[2048:]),
		EndMark:         EndMark(le.Uint32(buf[2056:])),
		Threads:         le.Uint32(buf[2060:]),
		Blocks:          le.Uint64(buf[2064:]),
		LostEvents:      le.Uint64(buf[2072:]),
		LostBytes:       le.Uint64(buf[2080:]),
		LostFirst:       le.Uint64(buf[2088:]),
		LostLast:        le.Uint64(buf[2096:]),
		LostCause:       LostCause(le.Uint32(buf[2104:])),
		LostErrno:       le.Uint32(buf[2108:]),
		LostTables:      le.Uint64(buf[2112:]),
		LostObjects:     le.Uint64(buf[2120:]),
		LostDefinitions: le.Uint64(buf[2128:]),
		Unplaced:        le.Uint64(buf[2136:]),
		Behind:          le.Uint32(buf[2144:]) != 0,
	}
	return nil
}
