package dump

import (
	"encoding/hex"

	"github.com/sigmatrace/sigmatrace/merge/capture"
)

// header prints the file's header in the order of its offsets.
func (p *printer) header(f *capture.File) {
	h, live, l := f.Header(), f.Live(), &p.line
	l.begin(0, "header")
	l.number("major", uint64(h.Major))
	l.number("minor", uint64(h.Minor))
	l.number("chunk_bytes", uint64(h.ChunkBytes))
	l.text("architecture", h.Architecture.String())
	l.text("back_end", h.BackEnd.String())
	l.text("mode", p.catalogue.EnumName("mode", uint64(h.Mode)))
	l.number("catalogue", uint64(h.Catalogue))
	l.end()
	l.begin(40, "process")
	l.number("pid", uint64(h.Pid))
	l.number("image", uint64(h.Image))
	l.number("pid_namespace", h.PidNamespace)
	l.number("start_time", h.StartTime)
	l.text("boot_id", hex.EncodeToString(h.BootID[:]))
	l.signed("rank", h.Rank)
	l.signed("world", h.World)
	l.text("rank_source", h.RankSource.String())
	l.number("parent_pid", uint64(h.ParentPid))
	l.text("hostname", h.Hostname)
	l.text("executable", h.Executable)
	l.text("job", h.Job)
	l.text("providers", h.Providers)
	l.text("profile", h.Profile)
	l.end()
	l.begin(104, "clock")
	l.number("realtime_ns", h.RealtimeNS)
	l.number("hz", h.ClockHz)
	l.number("flags", uint64(h.ClockFlags))
	l.end()
	for i, d := range h.Domains {
		l.begin(128+32*int64(i), "domain")
		l.number("domain", uint64(i))
		l.text("kind", p.catalogue.EnumName("domain", uint64(d.Kind)))
		l.number("flags", uint64(d.Flags))
		l.number("hz", d.Hz)
		l.text("identity", hex.EncodeToString(d.Identity[:]))
		l.end()
	}
	l.begin(2048, "live")
	l.number("end_realtime_ns", live.EndRealtimeNS)
	l.text("end_mark", live.EndMark.String())
	l.number("threads", uint64(live.Threads))
	l.number("blocks", live.Blocks)
	if live.Behind {
		l.text("behind", "more of it is in memory")
	}
	l.end()
	l.begin(2072, "lost")
	l.number("events", live.LostEvents)
	l.number("bytes", live.LostBytes)
	l.number("first", live.LostFirst)
	l.number("last", live.LostLast)
	l.text("cause", live.LostCause.String())
	l.number("errno", uint64(live.LostErrno))
	l.number("tables", live.LostTables)
	l.number("objects", live.LostObjects)
	l.number("definitions", live.LostDefinitions)
	l.number("unplaced", live.Unplaced)
	l.end()
}

// alive prints the proofs of life of a node.
func (p *printer) alive(path string) {
	l := &p.line
	l.begin(0, "file")
	l.text("path", path)
	l.end()
	records, err := capture.ReadAlive(path)
	for _, a := range records {
		l.begin(a.Offset, "alive")
		l.text("rank_source", a.RankSource.String())
		l.number("pid", uint64(a.Pid))
		l.signed("rank", a.Rank)
		l.signed("world", a.World)
		l.number("pid_namespace", a.PidNamespace)
		l.number("start_time", a.StartTime)
		l.number("realtime_ns", a.RealtimeNS)
		l.number("image", uint64(a.Image))
		l.text("hostname", a.Hostname)
		l.text("providers", a.Providers)
		l.text("boot_id", hex.EncodeToString(a.BootID[:]))
		l.text("executable", a.Executable)
		l.end()
	}
	if err != nil {
		p.damage(err)
	}
}
