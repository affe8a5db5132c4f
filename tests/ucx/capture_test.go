// Package ucx tests provider-ucx.so from outside: what it records beside what the program did.
package ucx

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

type total struct{ Count, Bytes uint64 }

type endpoint struct {
	worker, source uint64
	address        []byte
	name           string
	ended          bool
}

type request struct {
	event    uint16
	object   uint64
	bytes    uint64
	tag      uint64
	mask     uint64
	remote   uint64
	id       uint64
	status   uint64
	api      uint64
	time     uint64
	duration uint64
	thread   uint32
	sequence uint64
}

type completion struct {
	object, id, bytes, tag uint64
	err                    int64
	time                   uint64
	thread                 uint32
	sequence               uint64
}

// process is all that a test wants to know of one capture.
type process struct {
	header      *capture.Header
	live        capture.Live
	totals      map[string]total // by operation, from the aggregate tables
	completed   total            // from the aggregate tables
	recorded    map[string]total // by operation, from the events
	requests    []request
	completions []completion
	workers     map[uint64]uint64   // object to context
	addresses   map[uint64][][]byte // by worker
	hashes      []uint64
	endpoints   map[uint64]*endpoint
	ends        map[uint64]bool
	versions    []string
	byID        map[uint64]*request // pending requests, by check
	uct         uctProcess
}

func readProcess(path string) (*process, error) {
	f, err := capture.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cat := catalogue.Default
	p := &process{header: f.Header(), live: f.Live(), totals: map[string]total{}, recorded: map[string]total{}, workers: map[uint64]uint64{},
		addresses: map[uint64][][]byte{}, endpoints: map[uint64]*endpoint{}, ends: map[uint64]bool{}, uct: newUCT()}
	if problems := f.Problems(); len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	err = f.Aggregates(func(a *capture.Aggregate) error {
		e := cat.Event(a.Event)
		switch {
		case e == nil:
			return fmt.Errorf("%s: aggregate of event %d", path, a.Event)
		case e.Layer == "uct":
			p.uct.count(e, a)
		case e.Kind == catalogue.Completion:
			p.completed.Count += a.Count
			p.completed.Bytes += a.Bytes
		default:
			t := p.totals[e.Operation]
			p.totals[e.Operation] = total{t.Count + a.Count, t.Bytes + a.Bytes}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = f.Definitions(cat, func(d *capture.Definition) error {
		if d.Def == nil {
			return fmt.Errorf("%s: definition %d", path, d.ID)
		}
		p.uct.define(d)
		switch d.Def.Name {
		case "ucp_worker":
			p.workers[d.Uint(0)] = d.Uint(1)
		case "ucp_worker_address":
			p.addresses[d.Uint(0)] = append(p.addresses[d.Uint(0)], append([]byte(nil), d.Bytes(3)...))
			p.hashes = append(p.hashes, d.Uint(2))
			if d.Uint(1) != uint64(len(d.Bytes(3))) {
				return fmt.Errorf("%s: address of %d bytes, %d stored", path, d.Uint(1), len(d.Bytes(3)))
			}
		case "ucp_endpoint":
			p.endpoints[d.Uint(0)] = &endpoint{worker: d.Uint(1), source: d.Uint(2), address: append([]byte(nil), d.Bytes(3)...), name: d.String(4)}
		case "object_end":
			p.ends[d.Uint(0)] = true
		case "ucp_version":
			p.versions = append(p.versions, d.String(0))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for id, e := range p.endpoints {
		e.ended = p.ends[id]
	}
	var dec capture.Decoder
	var ev capture.Event
	chunks := f.Chunks()
	for i := range chunks {
		dec.Reset(f, &chunks[i], cat)
		for {
			ok, err := dec.Next(&ev)
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
			if ev.ID == 0 {
				continue
			}
			e := cat.Event(ev.ID)
			switch e.Layout.Name {
			case "ucp_request":
				p.requests = append(p.requests, request{event: ev.ID, object: ev.Fields[0], bytes: ev.Fields[1], tag: ev.Fields[2], mask: ev.Fields[3],
					remote: ev.Fields[5], id: ev.Fields[7], status: ev.Fields[8], api: ev.Fields[9], time: ev.Time, duration: ev.Fields[10], thread: ev.Thread, sequence: ev.Sequence})
				t := p.recorded[e.Operation]
				p.recorded[e.Operation] = total{t.Count + 1, t.Bytes + ev.Fields[1]}
			case "ucp_completion":
				p.completions = append(p.completions, completion{object: ev.Fields[0], id: ev.Fields[1], bytes: ev.Fields[2], tag: ev.Fields[3],
					err: int64(ev.Fields[4]), time: ev.Time, thread: ev.Thread, sequence: ev.Sequence})
			case "call":
				of := cat.Event(uint16(ev.Fields[1]))
				recorded := p.recorded
				if of.Layer == "uct" {
					recorded = p.uct.recorded
				}
				t := recorded[of.Operation]
				recorded[of.Operation] = total{t.Count + ev.Fields[2], t.Bytes + ev.Fields[3]}
			case "uct_request", "uct_completion":
				p.uct.event(e, &ev)
			default:
				return nil, fmt.Errorf("%s: event %s", path, e.Name)
			}
		}
	}
	return p, nil
}

// readRun reads every capture under dir.
func readRun(t *testing.T, dir string) []*process {
	t.Helper()
	var all []*process
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, capture.Extension) {
			return err
		}
		p, err := readProcess(path)
		if err == nil {
			all = append(all, p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

const (
	done = iota
	pending
	implicit
	untracked
)

// check holds what is true of every complete full-mode capture: the events add up to the tables, and a pending request has at most one
// completion, on its object and not before its post. It returns how many have none.
func (p *process) check(t *testing.T) int {
	t.Helper()
	if fmt.Sprint(p.recorded) != fmt.Sprint(p.totals) {
		t.Errorf("events add up to %v, tables say %v", p.recorded, p.totals)
	}
	p.byID = map[uint64]*request{}
	parents := p.checkUCT(t)
	complete := uint64(0)
	for i := range p.requests {
		r := &p.requests[i]
		switch {
		case r.status == pending && r.id == 0, r.status != pending && r.id != 0 && !parents[r.id]:
			t.Errorf("request %+v", *r)
		case r.status == pending:
			if p.byID[r.id] != nil {
				t.Errorf("request id %d given twice", r.id)
			}
			p.byID[r.id] = r
		case r.status == done:
			complete++
		}
	}
	seen := map[uint64]bool{}
	for _, c := range p.completions {
		r := p.byID[c.id]
		switch {
		case r == nil:
			t.Errorf("completion %+v of no request", c)
		case seen[c.id]:
			t.Errorf("second completion %+v", c)
		case r.object != c.object || c.time < r.time:
			t.Errorf("completion %+v of request %+v", c, *r)
		}
		seen[c.id] = true
	}
	if want := complete + uint64(len(p.completions)); p.completed.Count != want {
		t.Errorf("table counts %d completions, events %d", p.completed.Count, want)
	}
	if p.live.LostEvents != 0 || p.live.LostTables != 0 || p.live.LostObjects != 0 {
		t.Errorf("lost: %+v", p.live)
	}
	return len(p.byID) - len(seen)
}
