package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/profiles"
)

// moment is a time as --from and --to take it: after the first thing that the run recorded, or absolute.
type moment struct {
	after    time.Duration
	absolute *time.Time
}

// momentOf reads an option, nil where it is not given.
func momentOf(c *cli.Context, option string) (*moment, error) {
	if !c.IsSet(option) {
		return nil, nil
	}
	text := c.String(option)
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return &moment{after: d}, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil && t.Year() >= 1970 && t.Year() < 2262 {
		return &moment{absolute: &t}, nil
	}
	return nil, &usageError{err: fmt.Errorf("--%s: %q is not a time", option, text),
		hint: "write one after the first thing recorded, such as 1.5s or 200ms, or a date such as 2026-01-02T15:04:05.5Z"}
}

// ns is the moment in a run whose first event is at first.
func (m *moment) ns(first int64) int64 {
	if m.absolute != nil {
		return m.absolute.UnixNano()
	}
	return first + min(int64(m.after), math.MaxInt64-first)
}

// ranges is a set of ranks as --ranks takes it.
type ranges [][2]int64

// rangesOf reads "0-7,16"; nil where the option is not given.
func rangesOf(c *cli.Context, option string) (set ranges, err error) {
	if !c.IsSet(option) {
		return nil, nil
	}
	for part := range strings.SplitSeq(c.String(option), ",") {
		low, high, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			high = low
		}
		a, err1 := strconv.ParseUint(low, 10, 32)
		b, err2 := strconv.ParseUint(high, 10, 32)
		if err1 != nil || err2 != nil || b < a {
			return nil, &usageError{err: fmt.Errorf("--%s: %q is no range of ranks", option, part), hint: "write numbers and ranges joined by commas, such as 0-7,16"}
		}
		set = append(set, [2]int64{int64(a), int64(b)})
	}
	return set, nil
}

func (r ranges) has(rank int64) bool {
	for _, x := range r {
		if rank >= x[0] && rank <= x[1] {
			return true
		}
	}
	return false
}

// splitOf reads --split, nil where it is not given.
func splitOf(c *cli.Context) (*merge.Split, error) {
	text := c.String("split")
	switch n, err := strconv.ParseUint(text, 10, 16); {
	case !c.IsSet("split"):
		return nil, nil
	case text == "auto":
		return &merge.Split{}, nil
	case err == nil && n > 0:
		return &merge.Split{Pieces: int(n)}, nil
	}
	if size, err := profiles.ParseSize(text); err == nil && size >= leastPiece && strings.ContainsFunc(text, func(r rune) bool { return r == 'B' }) {
		return &merge.Split{Memory: size}, nil
	}
	return nil, &usageError{err: fmt.Errorf("--split: %q is neither auto nor a number of pieces nor a size from %s", text, profiles.FormatSize(leastPiece)),
		hint: "a size, such as 512MiB, is the memory that a piece takes in a browser, not that of its file"}
}

// leastPiece is the least memory that pieces may be asked to take: smaller ones would hold hardly more than the names of things.
const leastPiece = 1 << 20

// narrowed holds what of a run is exported, as the command line says it.
type narrowed struct {
	from, to *moment
	ranks    ranges
	layers   []string
}

func narrowedOf(c *cli.Context) (n narrowed, err error) {
	if n.from, err = momentOf(c, "from"); err != nil {
		return n, err
	}
	if n.to, err = momentOf(c, "to"); err != nil {
		return n, err
	}
	if n.ranks, err = rangesOf(c, "ranks"); err != nil {
		return n, err
	}
	n.layers, err = layersOf(c)
	return n, err
}

// options are those of an export of a run. What asks for nothing that the run has is an error.
func (n *narrowed) options(m *merge.Merged) (merge.ExportOptions, error) {
	o := merge.ExportOptions{Layers: n.layers}
	run := m.Run()
	if n.from != nil {
		o.From = n.from.ns(run.First)
		if o.From > run.Last {
			return o, &usageError{err: fmt.Errorf("--from: the run ended before: it lasted %v", time.Duration(run.Last-run.First))}
		}
	}
	if n.to != nil {
		o.To = n.to.ns(run.First)
		if o.To <= run.First {
			return o, &usageError{err: fmt.Errorf("--to: the run began only at %s", time.Unix(0, run.First).UTC().Format(time.RFC3339Nano))}
		}
		if o.To <= o.From {
			return o, &usageError{err: fmt.Errorf("--to is not after --from")}
		}
	}
	if n.ranks != nil {
		o.Ranks = n.ranks.has
		found := false
		for i := range run.Processes {
			found = found || n.ranks.has(run.Processes[i].Rank)
		}
		if !found {
			return o, &usageError{err: fmt.Errorf("--ranks: the run has none of them")}
		}
	}
	return o, nil
}
