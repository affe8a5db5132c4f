package perfetto

import (
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline"
)

// interned gives texts ids from 1 in order of their first use in a partition.
type interned struct {
	ids  []uint32
	next uint32
}

// id returns the id of text i and whether it is new.
func (n *interned) id(i int) (uint64, bool) {
	if v := n.ids[i]; v != 0 {
		return uint64(v), false
	}
	n.next++
	n.ids[i] = n.next
	return uint64(n.next), true
}

// events writes the events of one partition.
type events struct {
	e        *encoder
	p        *timeline.Plan
	u        *uuids
	sequence uint64

	names, categories, argNames, strings interned

	pk, ev, in, ann message // packet, track event, interned data and annotation under construction
	args            []timeline.Arg
	begun           bool
	described       timeline.TrackSet
}

func newEvents(e *encoder, p *timeline.Plan, u *uuids, sequence uint64) *events {
	texts := func() interned { return interned{ids: make([]uint32, len(p.Symbols))} }
	return &events{e: e, p: p, u: u, sequence: sequence, names: texts(), categories: texts(), strings: texts(),
		argNames: interned{ids: make([]uint32, len(p.ArgNames))}, described: p.NewTrackSet()}
}

// entry puts a text into the packet's interned data.
func (v *events) entry(field, id uint64, text string) {
	v.ann = v.ann[:0].uint(internedID, id).string(internedText, text)
	v.in = v.in.bytes(field, v.ann)
}

func (v *events) symbol(n *interned, field uint64, s timeline.Sym) uint64 {
	id, isNew := n.id(int(s))
	if isNew {
		v.entry(field, id, v.p.Symbols[s])
	}
	return id
}

// emit writes the packet of the event under construction.
func (v *events) emit(time int64) error {
	if !v.begun {
		v.begun = true
		first := v.pk[:0].uint(packetSequence, v.sequence).uint(packetSequenceFlags, sequenceCleared).uint(packetFirstOnSequence, 1)
		if err := v.e.packet(first); err != nil {
			return err
		}
	}
	v.pk = v.pk[:0].uint(packetTimestamp, uint64(time)).uint(packetSequence, v.sequence).uint(packetSequenceFlags, sequenceNeedsState)
	if len(v.in) > 0 {
		v.pk = v.pk.bytes(packetInterned, v.in)
		v.in = v.in[:0]
	}
	v.pk = v.pk.bytes(packetTrackEvent, v.ev)
	return v.e.packet(v.pk)
}

func (v *events) begin(kind uint64, track int) {
	v.ev = v.ev[:0].uint(eventType, kind).uint(eventTrack, v.u.track+uint64(track))
}

// describe makes sure that a track is described in this partition before an event is written to it.
func (v *events) describe(track int) error {
	if !v.described.Add(track) {
		return nil
	}
	return v.e.packet(trackPacket(v.p, v.u, track))
}

// counters adds samples to an event of another track.
func (v *events) counters(samples []timeline.Sample) {
	for _, s := range samples {
		v.ev = v.ev.uint(eventExtraTracks, v.u.track+uint64(s.Track))
	}
	for _, s := range samples {
		v.ev = v.ev.uint(eventExtraValues, s.Value)
	}
}

// Slice writes an operation: begin, the instants of its flow, end. Instants are inside, so the end comes last; it is also before
// the next begin of its lane in the file, which is what orders them when their times are equal.
func (v *events) Slice(op *ops.Op, track int, post, done []timeline.Sample) error {
	p := v.p
	end := max(op.Done, op.Post)
	if err := v.describe(track); err != nil {
		return err
	}
	for _, samples := range [][]timeline.Sample{post, done} {
		for _, s := range samples {
			if err := v.describe(s.Track); err != nil {
				return err
			}
		}
	}
	v.begin(typeSliceBegin, track)
	v.ev = v.ev.uint(eventCategoryIIDs, v.symbol(&v.categories, internedCategories, p.Layer(op)))
	if op.Flags&ops.Failed != 0 {
		v.ev = v.ev.uint(eventCategoryIIDs, v.symbol(&v.categories, internedCategories, timeline.SymError))
	}
	if op.Flags&ops.Synchronizes != 0 {
		v.ev = v.ev.uint(eventCategoryIIDs, v.symbol(&v.categories, internedCategories, timeline.SymControl))
	}
	v.ev = v.ev.uint(eventNameIID, v.symbol(&v.names, internedNames, p.Name(op)))
	v.args = p.Args(op, v.args[:0])
	for i := range v.args {
		v.annotation(&v.args[i])
	}
	v.counters(post)
	if err := v.emit(op.Post); err != nil {
		return err
	}
	leaves, arrives := timeline.FlowEnds(op)
	if leaves {
		if err := v.instant(track, op.Post, timeline.SymPosted, op.Flow); err != nil {
			return err
		}
	}
	if arrives {
		at := p.Arrives(op, track)
		if err := v.describe(at); err != nil {
			return err
		}
		time, name := timeline.Arrival(op)
		if err := v.instant(at, time, name, op.Flow); err != nil {
			return err
		}
	}
	v.begin(typeSliceEnd, track)
	v.counters(done)
	return v.emit(end)
}

// instant writes one end of a flow. None is marked as the terminating one: a trace processor loses a flow whose terminating event has
// an earlier time than the other, as it is when a message seems to be received before it was sent.
func (v *events) instant(track int, time int64, name timeline.Sym, flow uint64) error {
	v.begin(typeInstant, track)
	v.ev = v.ev.uint(eventNameIID, v.symbol(&v.names, internedNames, name)).fixed64(eventFlows, flow)
	return v.emit(time)
}

func (v *events) annotation(a *timeline.Arg) {
	name, isNew := v.argNames.id(a.Name)
	if isNew {
		v.entry(internedAnnotationNames, name, v.p.ArgNames[a.Name])
	}
	var text uint64
	if a.Kind == timeline.Text {
		text = v.symbol(&v.strings, internedStrings, a.Text)
	}
	v.ann = v.ann[:0].uint(annotationNameIID, name)
	switch a.Kind {
	case timeline.Uint:
		v.ann = v.ann.uint(annotationUint, a.Value)
	case timeline.Int:
		v.ann = v.ann.int(annotationInt, int64(a.Value))
	case timeline.Hex:
		v.ann = v.ann.uint(annotationPointer, a.Value)
	case timeline.Text:
		v.ann = v.ann.uint(annotationStringIID, text)
	case timeline.True:
		v.ann = v.ann.uint(annotationBool, 1)
	}
	v.ev = v.ev.bytes(eventDebugAnnotations, v.ann)
}

// Sample writes a counter's value in a packet of its own.
func (v *events) Sample(s timeline.Sample) error {
	if err := v.describe(s.Track); err != nil {
		return err
	}
	v.begin(typeCounter, s.Track)
	v.ev = v.ev.int(eventCounterValue, int64(s.Value))
	return v.emit(s.Time)
}
