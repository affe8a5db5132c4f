package merge

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

// Epoch is a part of the run that counts and matrix are kept apart for. Processes share an epoch by its kind and name, those of an interval
// by their time; so they add up over ranks.
type Epoch struct {
	Number     int                         `json:"number"` // in order of their begin, from 0
	Name       string                      `json:"name"`   // as marks, windows and phases are called; the time of an interval's begin; "start", "more"
	Kind       string                      `json:"kind"`
	StartNS    *int64                      `json:"start_ns"` // when the first process began it first, by its wall clock; null: before there were epochs
	Processes  int                         `json:"processes"`
	Operations map[string]map[string]Count `json:"operations"`
}

// epochKey is what processes share an epoch by.
type epochKey struct {
	kind  uint64
	name  string
	start int64 // of an interval
}

// epochs are the run's epochs, and which of a process's each entry of the tables is in.
type epochs struct {
	all []Epoch
	of  []map[uint32]int // by process, from its own number
}

func (in *inventory) epochs(cat *catalogue.Catalogue) *epochs {
	e := &epochs{of: make([]map[uint32]int, len(in.processes))}
	at := map[epochKey]*Epoch{}
	numbers := make([]map[uint32]*Epoch, len(in.processes))
	for i, p := range in.processes {
		numbers[i] = map[uint32]*Epoch{}
		known, entered := map[uint32]bool{}, map[*Epoch]bool{}
		enter := func(number uint32, key epochKey, start *int64) {
			x := at[key]
			if x == nil {
				x = &Epoch{Name: key.name, Kind: cat.EnumName("epoch_kind", key.kind), StartNS: start, Operations: map[string]map[string]Count{}}
				at[key] = x
			}
			if start != nil && (x.StartNS == nil || *start < *x.StartNS) {
				x.StartNS = start
			}
			if !known[number] {
				known[number] = true
				numbers[i][number] = x
			}
			if !entered[x] { // an interval may come twice, where the wall clock was set back
				entered[x] = true
				x.Processes++
			}
		}
		for _, d := range p.survey.Epochs {
			key, start := epochKey{kind: d.Kind, name: d.Name}, d.Realtime
			switch d.Kind {
			case catalogue.EpochKindStart, catalogue.EpochKindMore:
				key.name = cat.EnumName("epoch_kind", d.Kind)
			case catalogue.EpochKindInterval:
				key.name, key.start = time.Unix(0, start).UTC().Format(time.RFC3339Nano), start
			}
			if d.Kind == catalogue.EpochKindStart {
				enter(d.Number, key, nil)
			} else {
				enter(d.Number, key, &start)
			}
		}
		for _, t := range p.totals {
			if !known[t.epoch] { // of number 0 where there was never another, else its definition is missing
				enter(t.epoch, epochKey{kind: catalogue.EpochKindStart, name: cat.EnumName("epoch_kind", catalogue.EpochKindStart)}, nil)
			}
		}
	}
	order := make([]*Epoch, 0, len(at))
	for _, x := range at {
		order = append(order, x)
	}
	start := func(x *Epoch) int64 {
		if x.StartNS == nil {
			return -1 << 63
		}
		return *x.StartNS
	}
	slices.SortFunc(order, func(a, b *Epoch) int {
		return cmp.Or(cmp.Compare(start(a), start(b)), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	for i, x := range order {
		x.Number = i
	}
	for i, p := range in.processes {
		e.of[i] = map[uint32]int{}
		for number, x := range numbers[i] {
			e.of[i][number] = x.Number
		}
		for _, t := range p.totals {
			addOperation(numbers[i][t.epoch].Operations, cat, t)
		}
	}
	for _, x := range order {
		e.all = append(e.all, *x)
	}
	return e
}

// told are the epochs that are told: none where there was only one.
func (e *epochs) told() []Epoch {
	if len(e.all) < 2 {
		return []Epoch{}
	}
	return e.all
}

// ErrNoEpoch is the error of an epoch that the run does not have.
var ErrNoEpoch = errors.New("no such epoch")

// find returns the epochs of a name, or the one of a number.
func (e *epochs) find(name string) (map[int]bool, error) {
	found := map[int]bool{}
	for _, x := range e.all {
		if x.Name == name {
			found[x.Number] = true
		}
	}
	if n, err := strconv.Atoi(name); err == nil && len(found) == 0 && n >= 0 && n < len(e.all) {
		found[n] = true
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: %q; `sigmatrace info --epochs` lists what there is", ErrNoEpoch, name)
	}
	return found, nil
}
