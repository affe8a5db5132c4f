package topology

import (
	"strings"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// Doorbells is how a process looked at its doorbells.
type Doorbells struct {
	Watch  *Watch           // nil where it did not look
	Queues map[uint32]Queue // rung, by object of the queue pair
}

// Watch is how doorbells were looked at, and Reason why not as the profile has it.
type Watch struct {
	Poll, CPUs, Reason string
	Threads, Threshold uint64
}

// Queue is a queue that is read when it is rung.
type Queue struct {
	Slots, Threshold uint64
	OfGPU            bool
}

func (p *Process) defineDoorbells(d *capture.Definition) {
	text := func(i int) string { return strings.ToValidUTF8(d.String(i), "\ufffd") }
	switch d.ID {
	case catalogue.DefDoorbellWatch:
		p.Bells.Watch = &Watch{text(catalogue.DefDoorbellWatchPoll), text(catalogue.DefDoorbellWatchCpus), text(catalogue.DefDoorbellWatchReason),
			d.Uint(catalogue.DefDoorbellWatchThreads), d.Uint(catalogue.DefDoorbellWatchThreshold)}
	case catalogue.DefDoorbellQueue:
		set(&p.Bells.Queues, uint32(d.Uint(catalogue.DefDoorbellQueueQueuePair)),
			Queue{d.Uint(catalogue.DefDoorbellQueueBlocks), d.Uint(catalogue.DefDoorbellQueueThreshold), d.Uint(catalogue.DefDoorbellQueueOfGpu) != 0})
	}
}
