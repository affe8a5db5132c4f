package merge

import (
	"cmp"
	"slices"

	"github.com/sigmatrace/sigmatrace/merge/topology"
)

// Doorbells is how the run's processes looked at doorbells, and at which queues. What is alike is counted together.
type Doorbells struct {
	Watches []Watch     `json:"watches"`
	Queues  []RungQueue `json:"queues"`
}

// Watch is how processes looked at doorbells: what became of the profile's [doorbell].
type Watch struct {
	Processes uint64 `json:"processes"`
	Poll      string `json:"poll"` // how the thread that looks waits
	Threads   uint64 `json:"threads"`
	Threshold uint64 `json:"batch_threshold"` // the profile's
	CPUs      string `json:"cpus"`            // that the threads may run on; empty: those of the program
	Reason    string `json:"reason"`          // why it is not as the profile has it; empty: it is
}

// RungQueue is queues that were read when they were rung.
type RungQueue struct {
	Queues    uint64 `json:"queues"`
	Slots     uint64 `json:"slots"`           // that each has, of 64 bytes
	OfGPU     bool   `json:"of_gpu"`          // they lie in a GPU's memory
	Threshold uint64 `json:"batch_threshold"` // of elements rung for and not yet copied, at which a doorbell waits: the profile's, or half of the slots where that is less
	Asked     uint64 `json:"batch_threshold_asked"`
}

// doorbells sums up how the processes looked at doorbells; nil where none did.
func (in *inventory) doorbells() *Doorbells {
	watches, queues := map[topology.Watch]uint64{}, map[RungQueue]uint64{}
	for _, p := range in.processes {
		b := &p.topology.Bells
		if b.Watch == nil {
			continue
		}
		watches[*b.Watch]++
		for _, q := range b.Queues {
			queues[RungQueue{Slots: q.Slots, OfGPU: q.OfGPU, Threshold: q.Threshold, Asked: b.Watch.Threshold}]++
		}
	}
	if len(watches) == 0 {
		return nil
	}
	d := &Doorbells{Watches: []Watch{}, Queues: []RungQueue{}}
	for w, n := range watches {
		d.Watches = append(d.Watches, Watch{n, w.Poll, w.Threads, w.Threshold, w.CPUs, w.Reason})
	}
	for q, n := range queues {
		q.Queues = n
		d.Queues = append(d.Queues, q)
	}
	slices.SortFunc(d.Watches, func(a, b Watch) int {
		return cmp.Or(cmp.Compare(a.Poll, b.Poll), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.CPUs, b.CPUs), cmp.Compare(a.Threads, b.Threads), cmp.Compare(a.Threshold, b.Threshold))
	})
	slices.SortFunc(d.Queues, func(a, b RungQueue) int {
		gpu := func(q RungQueue) int { return map[bool]int{true: 1}[q.OfGPU] }
		return cmp.Or(cmp.Compare(a.Slots, b.Slots), cmp.Compare(gpu(a), gpu(b)), cmp.Compare(a.Threshold, b.Threshold), cmp.Compare(a.Asked, b.Asked))
	})
	return d
}

// summary says what was not done as the profile has it.
func (d *Doorbells) summary(line func(string, ...any)) {
	if d == nil {
		return
	}
	for _, w := range d.Watches {
		if w.Reason != "" {
			line("doorbells: looked at by %s in %d processes: %s", w.Poll, w.Processes, w.Reason)
		}
	}
	for _, q := range d.Queues {
		if q.Threshold < q.Asked {
			line("doorbells: %d queues of %d slots wait at %d elements, not %d: half of a queue is the most", q.Queues, q.Slots, q.Threshold, q.Asked)
		}
	}
}
