package parquet

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/sigmatrace/sigmatrace/merge/ops"
)

// Summary says how complete a run is, in the index of an export.
type Summary struct {
	Complete      bool   `json:"complete"`       // every rank and nothing lost
	RanksExpected *int   `json:"ranks_expected"` // nil where not known
	RanksComplete int    `json:"ranks_complete"`
	EventsLost    uint64 `json:"events_lost"`
}

// Account says how complete and exact a run is, and what its aggregate tables counted.
type Account struct {
	Summary
	Exact   bool // every call is in Traffic; else it is a lower bound
	Traffic []Traffic
}

// Run is the row of run.parquet.
type Run struct {
	Run           string `parquet:"run" doc:"name of the run"`
	Complete      bool   `parquet:"complete" doc:"every expected rank has a whole capture and nothing was lost"`
	RanksExpected *int64 `parquet:"ranks_expected,optional" doc:"null where not known"`
	RanksComplete int64  `parquet:"ranks_complete" doc:"ranks whose captures are whole"`
	EventsLost    uint64 `parquet:"events_lost" doc:"events that found no room; traffic counts them"`
	Exact         bool   `parquet:"exact" doc:"every call is in traffic; else its counts and bytes are lower bounds"`
	Operations    int64  `parquet:"operations" doc:"operations of the run, also those that this export does not hold"`
	FirstNS       int64  `parquet:"first_ns" doc:"first time known of the run, nanoseconds since the Unix epoch"`
	LastNS        int64  `parquet:"last_ns" doc:"last time known of the run"`
	ClockSource   string `parquet:"clock_source" doc:"what the run's clock follows"`
}

// Process is a row of processes.parquet.
type Process struct {
	Process    uint32 `parquet:"process" doc:"number of the process in the run"`
	Rank       *int64 `parquet:"rank,optional" doc:"null where it has none"`
	Host       string `parquet:"host,dict" doc:"host name"`
	Node       string `parquet:"node,dict" doc:"host and boot: the folder of its capture"`
	Pid        uint32 `parquet:"pid" doc:"process id"`
	Image      uint32 `parquet:"image" doc:"number of the program that the process runs: exec raises it"`
	Executable string `parquet:"executable,dict" doc:"path of the program"`
	Capture    string `parquet:"capture" doc:"capture file, in the run's capture folder"`
	FirstNS    int64  `parquet:"first_ns" doc:"first time known of it, nanoseconds since the Unix epoch"`
	LastNS     int64  `parquet:"last_ns" doc:"last time known of it"`
}

// Thread is a row of threads.parquet.
type Thread struct {
	Process uint32 `parquet:"process" doc:"row of processes.parquet"`
	Thread  uint32 `parquet:"thread" doc:"number of the thread in its process"`
	Name    string `parquet:"name" doc:"thread id and name"`
}

// Endpoint is a row of endpoints.parquet: anything that operations are ordered on.
type Endpoint struct {
	Endpoint     uint32  `parquet:"endpoint" doc:"number of the endpoint in the run"`
	Process      uint32  `parquet:"process" doc:"row of processes.parquet"`
	Object       uint32  `parquet:"object" doc:"number of the object in its process, as in dumps and in matrix.json"`
	Layer        string  `parquet:"layer,dict" doc:"layer that it belongs to"`
	Kind         string  `parquet:"kind,dict" doc:"endpoint, worker, qp, srq, cq, track, communicator"`
	Name         string  `parquet:"name" doc:"as in the trace"`
	PeerEndpoint *uint32 `parquet:"peer_endpoint,optional" doc:"endpoint at the other side, where it had one only; null where not known"`
	Lanes        uint32  `parquet:"lanes" doc:"lanes that its operations need"`
	GPU          *uint32 `parquet:"gpu,optional" doc:"row of gpus.parquet of the GPU that it belongs to; null where it is not known"`
}

// GPU is a row of gpus.parquet: those that processes communicate for.
type GPU struct {
	GPU     uint32  `parquet:"gpu" doc:"number of the GPU in the run"`
	Host    string  `parquet:"host,dict" doc:"host name"`
	Node    string  `parquet:"node,dict" doc:"host and boot: the folder of captures"`
	UUID    *string `parquet:"uuid,optional" doc:"as NVIDIA's tools write it; null where it was not recorded"`
	Process uint32  `parquet:"process" doc:"row of processes.parquet of the first process that has it"`
	Ordinal uint32  `parquet:"ordinal" doc:"as that process counts its GPUs"`
	Name    string  `parquet:"name" doc:"as in the trace"`
}

// Clock is a row of clocks.parquet.
type Clock struct {
	Host    string   `parquet:"host" doc:"host name"`
	Source  string   `parquet:"source" doc:"what places the host's times on the run's clock"`
	ErrorNS *float64 `parquet:"error_ns,optional" doc:"bound of the error of times on this host, nanoseconds; null where not known"`
	Reason  *string  `parquet:"reason,optional" doc:"why the error is not known"`
	How     *string  `parquet:"how,optional" doc:"how the bound came about; null where there is none"`

	OffsetNS      *int64   `parquet:"offset_ns,optional" doc:"how far the host's system clock was ahead of the run's at the begin, nanoseconds; null where not known"`
	DriftPPM      *float64 `parquet:"drift_ppm,optional" doc:"by how much more it advanced, in millionths"`
	DriftErrorPPM *float64 `parquet:"drift_error_ppm,optional" doc:"bound of the error of drift_ppm"`
	CorrectionNS  *int64   `parquet:"correction_ns,optional" doc:"the most that a time of the host was moved by --clock-repair, nanoseconds; null where that was not asked for"`
}

// Traffic is a row of traffic.parquet: what the aggregate tables counted, which is exact in every mode.
type Traffic struct {
	Layer               string  `parquet:"layer,dict" doc:"layers must not be added up: the same bytes appear in several"`
	Operation           string  `parquet:"operation,dict" doc:"operation of the layer"`
	Side                string  `parquet:"side,dict" doc:"initiator: counts; target: posted by receivers, only to cross-check"`
	SourceProcess       *uint32 `parquet:"source_process,optional" doc:"row of processes.parquet; null where not known"`
	SourceEndpoint      *uint32 `parquet:"source_endpoint,optional" doc:"row of endpoints.parquet; null where not known"`
	SourceRank          *int64  `parquet:"source_rank,optional" doc:"null where not known or without one"`
	DestinationProcess  *uint32 `parquet:"destination_process,optional" doc:"row of processes.parquet; null where not known"`
	DestinationEndpoint *uint32 `parquet:"destination_endpoint,optional" doc:"row of endpoints.parquet; null where not known"`
	DestinationRank     *int64  `parquet:"destination_rank,optional" doc:"null where not known or without one"`
	Count               uint64  `parquet:"count" doc:"operations"`
	Bytes               uint64  `parquet:"bytes" doc:"their payload"`
}

func writeTables(dir string, run *ops.Run, account Account) ([]File, error) {
	own := Run{Run: run.Name, Complete: account.Complete, RanksComplete: int64(account.RanksComplete), EventsLost: account.EventsLost,
		Exact: account.Exact, Operations: run.Operations, FirstNS: run.First, LastNS: run.Last, ClockSource: run.ClockSource}
	if account.RanksExpected != nil {
		n := int64(*account.RanksExpected)
		own.RanksExpected = &n
	}
	var processes []Process
	var threads []Thread
	for i := range run.Processes {
		p := &run.Processes[i]
		processes = append(processes, Process{uint32(i), rankOf(p), p.Host, p.Node, p.Pid, p.Image, p.Executable, inRun(p.File), p.First, p.Last})
		for _, t := range slices.Sorted(maps.Keys(p.Threads)) {
			threads = append(threads, Thread{uint32(i), t, p.Threads[t]})
		}
	}
	var endpoints []Endpoint
	for i := range run.Endpoints {
		e := &run.Endpoints[i]
		x := Endpoint{Endpoint: uint32(i), Process: e.Process, Object: e.Object, Layer: e.Layer, Kind: e.Kind, Name: e.Name, Lanes: uint32(e.Lanes)}
		if e.Peer > 0 {
			peer := e.Peer - 1
			x.PeerEndpoint = &peer
		}
		if e.GPU > 0 {
			gpu := e.GPU - 1
			x.GPU = &gpu
		}
		endpoints = append(endpoints, x)
	}
	var gpus []GPU
	for i := range run.GPUs {
		g := &run.GPUs[i]
		x := GPU{GPU: uint32(i), Host: g.Host, Node: g.Node, Process: g.Process, Ordinal: g.Ordinal, Name: g.Name}
		if g.UUID != "" {
			x.UUID = &g.UUID
		}
		gpus = append(gpus, x)
	}
	var clocks []Clock
	for _, c := range run.Clocks {
		x := Clock{Host: c.Host, Source: cmp.Or(c.Source, run.ClockSource), ErrorNS: c.ErrorNS, OffsetNS: c.OffsetNS, DriftPPM: c.DriftPPM, DriftErrorPPM: c.DriftErrorPPM, CorrectionNS: c.CorrectionNS}
		if c.ErrorNS == nil {
			x.Reason = &c.Reason
		}
		if c.How != "" {
			x.How = &c.How
		}
		clocks = append(clocks, x)
	}
	var files []File
	var err error
	for _, t := range []struct {
		name  string
		write func(path string) (written, error)
	}{
		{"run", func(path string) (written, error) { return writeTable(path, run.Name, []Run{own}) }},
		{"processes", func(path string) (written, error) { return writeTable(path, run.Name, processes) }},
		{"threads", func(path string) (written, error) { return writeTable(path, run.Name, threads) }},
		{"endpoints", func(path string) (written, error) { return writeTable(path, run.Name, endpoints) }},
		{"gpus", func(path string) (written, error) { return writeTable(path, run.Name, gpus) }},
		{"clocks", func(path string) (written, error) { return writeTable(path, run.Name, clocks) }},
		{"traffic", func(path string) (written, error) { return writeTable(path, run.Name, account.Traffic) }},
	} {
		var w written
		if w, err = t.write(filepath.Join(dir, t.name+".parquet")); err != nil {
			return nil, fmt.Errorf("writing %s.parquet: %w", t.name, err)
		}
		files = append(files, File{Path: t.name + ".parquet", Table: t.name, Rows: w.rows, Bytes: w.bytes})
	}
	return files, nil
}

// inRun is the end of a capture's path, node's folder and file: a run directory that was moved gives the same tables.
func inRun(capture string) string {
	return filepath.Join(filepath.Base(filepath.Dir(capture)), filepath.Base(capture))
}
