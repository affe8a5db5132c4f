package perfetto

import (
	"fmt"

	"github.com/sigmatrace/sigmatrace/merge/perfetto/timeline"
)

// uuids are the ids of descriptors: the overview's first, then processes, layers of processes, and tracks. Small ones keep events short.
type uuids struct {
	overview [2]uint64
	process  uint64
	group    uint64
	gpu      uint64
	track    uint64
}

func newUUIDs(p *timeline.Plan) *uuids {
	u := &uuids{overview: [2]uint64{1, 2}, process: 3}
	u.group = u.process + uint64(len(p.Processes))
	u.gpu = u.group
	for i := range p.Processes {
		u.gpu += uint64(len(p.Processes[i].Layers))
	}
	u.track = u.gpu + uint64(len(p.GPUs))
	return u
}

// describe writes the clocks, the processes and their layers. Tracks below them are described where they are first used.
func describe(e *encoder, p *timeline.Plan, u *uuids) error {
	first := uint64(p.Run.First)
	clock := func(id uint64) message { return message(nil).uint(clockID, id).uint(clockTimestamp, first) }
	// All timestamps are on clock 6, the default, and are wall time; the snapshot says so.
	snapshot := message(nil).bytes(snapshotClocks, clock(clockBoottime)).bytes(snapshotClocks, clock(clockRealtime)).
		uint(snapshotPrimary, clockBoottime)
	err := e.packet(message(nil).uint(packetSequence, sequenceDescriptors).uint(packetSequenceFlags, sequenceCleared).
		uint(packetTimestamp, first).bytes(packetClockSnapshot, snapshot))
	if err != nil {
		return err
	}
	track := func(d message) error {
		return e.packet(message(nil).uint(packetSequence, sequenceDescriptors).bytes(packetTrackDescriptor, d))
	}
	if err := track(message(nil).uint(trackUUID, 0).uint(trackProcessOrder, processesExplicit).uint(trackChildOrder, orderExplicit)); err != nil {
		return err
	}
	for i := range p.Processes {
		q := &p.Processes[i]
		d := message(nil).int(processPid, int64(q.Pid)).int(processSortIndex, int64(i)).string(processName, q.Name).string(processLabels, q.Label)
		err := track(message(nil).uint(trackUUID, u.process+uint64(i)).bytes(trackProcess, d).uint(trackChildOrder, orderExplicit).
			int(trackRank, int64(i)).string(trackDescription, q.Description))
		if err != nil {
			return err
		}
		for k, layer := range q.Layers {
			err := track(message(nil).uint(trackUUID, u.group+uint64(q.FirstGroup+k)).string(trackName, layer).uint(trackParent, u.process+uint64(i)).
				uint(trackChildOrder, orderExplicit).int(trackRank, int64(k)).uint(trackMerge, mergeNone))
			if err != nil {
				return err
			}
		}
	}
	for i := range p.GPUs {
		g := &p.GPUs[i]
		err := track(message(nil).uint(trackUUID, u.gpu+uint64(i)).string(trackName, g.Name).uint(trackChildOrder, orderExplicit).
			int(trackRank, int64(len(p.Processes)+i)).uint(trackMerge, mergeNone).string(trackDescription, g.Description))
		if err != nil {
			return err
		}
	}
	return nil
}

// trackPacket describes track i, on the descriptors' sequence.
func trackPacket(p *timeline.Plan, u *uuids, i int) message {
	t := p.Track(i)
	if t.Deep {
		t.Name += fmt.Sprintf(": lanes from %d on", timeline.LanesTogether+1)
	}
	parent := u.group + uint64(t.Group)
	if t.Process < 0 {
		parent = u.gpu + uint64(t.GPU)
	}
	d := message(nil).uint(trackUUID, u.track+uint64(i)).string(trackName, t.Name).uint(trackParent, parent).int(trackRank, int64(t.Rank))
	switch {
	case t.Lane < 0:
		unit := uint64(unitBytes)
		if t.Counter == timeline.Outstanding {
			unit = unitCount
		}
		d = d.bytes(trackCounter, message(nil).uint(counterUnit, unit)).uint(trackMerge, mergeNone)
	case t.Lanes == 1:
		d = d.uint(trackMerge, mergeNone)
	default:
		d = d.uint(trackMerge, mergeByKey).string(trackMergeKey, t.Name) // names are unique within their group
	}
	return message(nil).uint(packetSequence, sequenceDescriptors).bytes(packetTrackDescriptor, d)
}

// overview writes slices over the whole time range that say what the trace holds and what was left out.
func overview(e *encoder, p *timeline.Plan, u *uuids, s *timeline.Stats) error {
	flags := uint64(sequenceCleared)
	for i, o := range p.Overview(s) {
		d := message(nil).uint(trackUUID, u.overview[i]).string(trackName, o.Track).int(trackRank, int64(i)-2)
		if err := e.packet(message(nil).uint(packetSequence, sequenceDescriptors).bytes(packetTrackDescriptor, d)); err != nil {
			return err
		}
		ev := message(nil).uint(eventType, typeSliceBegin).uint(eventTrack, u.overview[i]).string(eventCategories, "sigmatrace").string(eventName, o.Name)
		for _, f := range o.Facts {
			a := message(nil).string(annotationName, f.Name)
			if f.IsText {
				a = a.string(annotationString, f.Text)
			} else {
				a = a.int(annotationInt, f.Number)
			}
			ev = ev.bytes(eventDebugAnnotations, a)
		}
		begin := message(nil).uint(packetTimestamp, uint64(o.From)).uint(packetSequence, sequenceOverview).uint(packetSequenceFlags, flags).bytes(packetTrackEvent, ev)
		if err := e.packet(begin); err != nil {
			return err
		}
		flags = 0
		end := message(nil).uint(eventType, typeSliceEnd).uint(eventTrack, u.overview[i])
		if err := e.packet(message(nil).uint(packetTimestamp, uint64(o.To)).uint(packetSequence, sequenceOverview).bytes(packetTrackEvent, end)); err != nil {
			return err
		}
	}
	return nil
}
