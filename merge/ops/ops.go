// Package ops is what the merger hands to the exporters: processes, endpoints, and one ordered stream of operations on one clock.
package ops

import "context"

// Role says how an operation counts and to what its flow leads.
type Role uint8

// Roles of an operation.
const (
	Initiator Role = iota // two-sided, initiating side: the flow begins at its post
	Target                // receive: the flow ends at its completion
	OneSided              // put, get, write, read, atomic, flush: the flow, if any, leads from its post to its own completion
	Local                 // calls of simple mode, empty polls, control requests: never a flow, but from a launch to its kernels
)

// Flag is a set of facts about an operation.
type Flag uint16

// Flags of an operation.
const (
	Unfinished   Flag = 1 << iota // no completion was seen; Done is the last time known of the process
	Failed                        // completed with an error: Status
	Implied                       // its completion was implied by a later one of its queue (unsignalled request, implicit put)
	Ambiguous                     // several threads or sources shared what orders it: the flow may belong to a neighbour
	Immediate                     // complete when the call returned
	CallRecord                    // one communication call of simple mode: Requests may be over 1
	PollRecord                    // a run of Requests empty polls on a completion queue
	Unseen                        // its completion goes past everything recorded: Done is Post, and says nothing
	Doorbell                      // not a request but a doorbell of so many; where it is no CallRecord, they are operations of their own
	Synchronizes                  // an element that synchronizes and moves no data of the application's, or a doorbell of such alone
)

// Op is one operation: a request with its completion. Times are nanoseconds since the Unix epoch on the run's clock. An Op belongs
// to the time of its Post.
type Op struct {
	Post, Done  int64
	Process     uint32 // index into Run.Processes
	Endpoint    uint32 // index into Run.Endpoints
	Thread      uint32 // thread index within the process
	Sequence    uint64 // order of recording within the thread: breaks ties of Post
	Event       uint16 // event id of the catalogue: its layer, operation and layout
	Role        Role
	Flags       Flag
	Lane        uint16 // operations of one endpoint and lane never overlap
	Requests    uint32 // 1, or the number of requests of a call, or of empty polls
	Status      int32
	Ordinal     uint64 // number of the request on its endpoint, from 0
	Bytes       uint64
	Flow        uint64     // non-zero: matched; both ends carry the same value
	Peer        uint32     // 1 + index into Run.Endpoints of the endpoint at the other side where known; 0 unknown
	PeerGPU     uint32     // 1 + index into Run.GPUs of the GPU whose memory it addresses, or, where that is not known, that of the peer; 0 unknown
	Outstanding uint32     // requests outstanding on the endpoint just after Post
	After       uint32     // the same just after Done
	Total       uint64     // bytes posted on the endpoint by this role, this one included
	Fields      [16]uint64 // fields of its record, in the layout's order (ticks and object fields included, as recorded)
	For         For        // for which of NCCL's operations it was posted
}

// For says for which of NCCL's operations a request was posted, by the proxy operations that its thread was working on. Where Candidates is 1 there was one, and all of it
// holds. Where it is more, what they have in common holds and the rest is zero. 0: the request has to do with none.
type For struct {
	Candidates   uint16 // connections (communicator, channel, peer and direction) that it may have been posted on
	Channel      uint16 // 1 + channel
	Communicator uint32 // 1 + index into Run.Endpoints
	Task         uint32 // number of the collective or point-to-point operation in its process
	Function     uint32 // its name, a key of Process.Names
	Sequence     uint64 // of the collective on its communicator
}

// Process is one traced program image.
type Process struct {
	Host        string
	Node        string // host and boot id: name of the capture folder
	Pid         uint32
	Image       uint32
	Rank        int64 // -1 none
	Executable  string
	File        string  // capture file
	First, Last int64   // first and last time known, ns
	TickNS      float64 // length of a tick of the recording clock, ns
	Threads     map[uint32]string
	Names       map[uint32]string // of marks and phases, and of what NCCL names, by the number in their records
	Objects     map[uint32]string // names of what launches and kernels refer to: functions and streams, by object
}

// Endpoint is anything that operations are ordered on: a UCP endpoint or worker, a queue pair, a shared receive queue, a completion
// queue, a track of the application's phases, a stream of a GPU, a thread that launches kernels, a communicator.
type Endpoint struct {
	Process uint32
	Object  uint32
	Layer   string
	Kind    string // "endpoint", "worker", "qp", "srq", "cq", "track", "communicator"
	Name    string // short, for people: "QP 0x11 -> rank 3", "ep 4 -> rank 1"
	Peer    uint32 // 1 + index of the peer's endpoint (connected queue pairs) or worker; 0 unknown
	Lanes   int    // number of lanes its operations need
	GPU     uint32 // 1 + index into Run.GPUs of the GPU that it belongs to; 0 unknown
}

// GPU is one of the GPUs that the run's processes communicate for.
type GPU struct {
	Host, Node string
	UUID       string // "GPU-" and the hexadecimal digits; "" where it was not recorded
	Ordinal    uint32 // as the first process that has it counts its GPUs
	Process    uint32 // that process
	Name       string // short, for people: "GPU 0 of rank 3 on node1"
}

// Clock is what is known of the run's clock on one node. ErrorNS is nil where it is not known.
type Clock struct {
	Host          string   `json:"host"`
	Source        string   `json:"source,omitempty"`          // what places the node's times: ptp, chrony, ntp, messages, system clock
	OffsetNS      *int64   `json:"offset_ns,omitempty"`       // how far its system clock was ahead of the run's at the begin; nil: not known, and not taken out
	DriftPPM      *float64 `json:"drift_ppm,omitempty"`       // by how much more it advanced, over the run
	DriftErrorPPM *float64 `json:"drift_error_ppm,omitempty"` // bound of the error of that; nil for the node that the run's clock is
	ErrorNS       *float64 `json:"error_ns"`                  // bound of the error of the node's times on the run's clock
	How           string   `json:"how,omitempty"`             // how the bound came about
	Reason        string   `json:"reason,omitempty"`          // why there is none
	Above         bool     `json:"above,omitempty"`           // the bound is above the profile's clock.warn_above, or not known where that is set

	Readings     int      `json:"readings,omitempty"`      // calibrations that were used
	JitterNS     *float64 `json:"jitter_ns,omitempty"`     // mean change of the offset from one to the next, drift apart
	CorrectionNS *int64   `json:"correction_ns,omitempty"` // the most that --clock-repair moved a time of the node
	Problems     []string `json:"problems,omitempty"`      // of the node's clocks, by its calibrations
}

// Run is a merged run: everything but the operations themselves.
type Run struct {
	Name        string
	Processes   []Process
	Endpoints   []Endpoint
	GPUs        []GPU // in order of the first process that has them
	Clocks      []Clock
	ClockSource string
	First, Last int64
	Operations  int64 // number of operations in the stream
	Partitions  int
}

// Source gives a merged run. Partition calls fn with slices of the operations of partition i (0 <= i < Run().Partitions), in order of
// (Post, node, process, thread, sequence); a slice is valid only during the call. All operations of a partition precede those of the
// next. Different partitions may be read concurrently; the cuts do not depend on how many are.
type Source interface {
	Run() *Run
	Partition(ctx context.Context, i int, fn func([]Op) error) error
}
