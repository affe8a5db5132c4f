package perfetto

import "encoding/binary"

// Protobuf wire types used.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
)

// Fields of Perfetto's messages, named Message_field (protos/perfetto/trace).
const (
	traceField = 1

	packetClockSnapshot   = 6
	packetTimestamp       = 8
	packetSequence        = 10
	packetTrackEvent      = 11
	packetInterned        = 12
	packetSequenceFlags   = 13
	packetTrackDescriptor = 60
	packetFirstOnSequence = 87

	snapshotClocks  = 1
	snapshotPrimary = 2
	clockID         = 1
	clockTimestamp  = 2

	eventCategoryIIDs     = 3
	eventDebugAnnotations = 4
	eventType             = 9
	eventNameIID          = 10
	eventTrack            = 11
	eventExtraValues      = 12
	eventCategories       = 22
	eventName             = 23
	eventCounterValue     = 30
	eventExtraTracks      = 31
	eventFlows            = 47

	annotationNameIID   = 1
	annotationBool      = 2
	annotationUint      = 3
	annotationInt       = 4
	annotationString    = 6
	annotationPointer   = 7
	annotationName      = 10
	annotationStringIID = 17

	internedCategories      = 1
	internedNames           = 2
	internedAnnotationNames = 3
	internedStrings         = 29
	internedID              = 1
	internedText            = 2

	trackUUID          = 1
	trackName          = 2
	trackProcess       = 3
	trackParent        = 5
	trackCounter       = 8
	trackChildOrder    = 11
	trackRank          = 12
	trackDescription   = 14
	trackMerge         = 15
	trackMergeKey      = 16
	trackProcessOrder  = 19
	processPid         = 1
	processName        = 6
	processLabels      = 8
	processSortIndex   = 3
	counterUnit        = 3
	clockRealtime      = 1
	clockBoottime      = 6
	orderExplicit      = 3
	processesExplicit  = 1
	mergeNone          = 2
	mergeByKey         = 3
	unitCount          = 2
	unitBytes          = 3
	sequenceCleared    = 1
	sequenceNeedsState = 2
	typeSliceBegin     = 1
	typeSliceEnd       = 2
	typeInstant        = 3
	typeCounter        = 4
)

// message is a protobuf message under construction.
type message []byte

func (m message) tag(field, wire uint64) message { return binary.AppendUvarint(m, field<<3|wire) }

func (m message) uint(field, v uint64) message {
	return binary.AppendUvarint(m.tag(field, wireVarint), v)
}

// int appends an int32 or int64 field; negative ones take ten bytes.
func (m message) int(field uint64, v int64) message { return m.uint(field, uint64(v)) }

func (m message) fixed64(field, v uint64) message {
	return binary.LittleEndian.AppendUint64(m.tag(field, wireFixed64), v)
}

func (m message) bytes(field uint64, b []byte) message {
	return append(binary.AppendUvarint(m.tag(field, wireBytes), uint64(len(b))), b...)
}

func (m message) string(field uint64, s string) message {
	return append(binary.AppendUvarint(m.tag(field, wireBytes), uint64(len(s))), s...)
}
