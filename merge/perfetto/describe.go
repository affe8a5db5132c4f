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
	track    uint64
}

func newUUIDs(p *timeline.Plan) *uuids {
	u := &uuids{overview: [2]uint64{1, 2}, process: 3}
	u.group = u.process + uint64(len(p.Processes))
	groups := 0
	for i := range p.Processes {
		groups += len(p.Processes[i].Groups)
	}
	u.track = u.group + uint64(groups)
	return u
}

// describe writes the clocks and every track that events may lie on.
func describe(e *encoder, p *timeline.Plan, u *uuids, s *timeline.Stats) error {
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
	group := u.group
	for i := range p.Processes {
		q := &p.Processes[i]
		d := message(nil).int(processPid, int64(q.Pid)).int(processSortIndex, int64(i)).string(processName, q.Name).string(processLabels, q.Label)
		err := track(message(nil).uint(trackUUID, u.process+uint64(i)).bytes(trackProcess, d).uint(trackChildOrder, orderExplicit).
			int(trackRank, int64(i)).string(trackDescription, q.Description))
		if err != nil {
			return err
		}
		for k, g := range q.Groups {
			err := track(message(nil).uint(trackUUID, group).string(trackName, g.Layer).uint(trackParent, u.process+uint64(i)).
				uint(trackChildOrder, orderExplicit).int(trackRank, int64(k)).uint(trackMerge, mergeNone))
			if err != nil {
				return err
			}
			for n, t := range g.Tracks {
				if err := track(trackMessage(p, u.track+uint64(t), group, n, &p.Tracks[t])); err != nil {
					return err
				}
			}
			group++
		}
	}
	s.Packets += e.packets
	return nil
}

func trackMessage(p *timeline.Plan, uuid, parent uint64, rank int, t *timeline.Track) message {
	d := message(nil).uint(trackUUID, uuid).string(trackName, t.Name).uint(trackParent, parent).int(trackRank, int64(rank))
	switch {
	case !t.IsLane:
		unit := uint64(unitBytes)
		if t.Counter == timeline.Outstanding {
			unit = unitCount
		}
		return d.bytes(trackCounter, message(nil).uint(counterUnit, unit)).uint(trackMerge, mergeNone)
	case p.Run.Endpoints[t.Endpoint].Lanes == 1:
		return d.uint(trackMerge, mergeNone)
	default:
		return d.uint(trackMerge, mergeByKey).string(trackMergeKey, fmt.Sprintf("endpoint %d", t.Endpoint))
	}
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
	s.Packets += e.packets
	return nil
}
