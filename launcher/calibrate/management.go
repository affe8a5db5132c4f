package calibrate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"time"

	ptp "github.com/facebook/time/ptp/protocol"
)

// The data sets that the library does not decode (IEEE 1588-2008, tables 62 and 55).

type timePropertiesTLV struct {
	ptp.ManagementTLVHead
	UTCOffset  int16
	Flags      uint8
	TimeSource uint8
}

const ptpTimescale = 1 << 3 // flag of TIME_PROPERTIES_DATA_SET

type portDataSetTLV struct {
	ptp.ManagementTLVHead
	Identity                ptp.PortIdentity
	State                   ptp.PortState
	LogMinDelayReqInterval  int8
	PeerMeanPathDelay       ptp.TimeInterval
	LogAnnounceInterval     int8
	AnnounceReceiptTimeout  uint8
	LogSyncInterval         int8
	DelayMechanism          uint8
	LogMinPdelayReqInterval int8
	Version                 uint8
}

func init() {
	ptp.RegisterMgmtTLVDecoder(ptp.IDTimePropertiesDataSet, decoder[timePropertiesTLV])
	ptp.RegisterMgmtTLVDecoder(ptp.IDPortDataSet, decoder[portDataSetTLV])
}

func decoder[T any, P interface {
	*T
	ptp.ManagementTLV
}](data []byte) (ptp.ManagementTLV, error) {
	tlv := P(new(T))
	if err := binary.Read(bytes.NewReader(data), binary.BigEndian, tlv); err != nil {
		return nil, err
	}
	return tlv, nil
}

// manager asks ptp4l over its socket.
type manager struct {
	conn     *net.UnixConn
	domain   int
	sequence uint16
}

// newManager connects. ptp4l answers to the address of who asks: a name that is no file, so that none is left behind.
func newManager(socket string, domain int, until time.Time) (*manager, error) {
	if _, err := os.Stat(socket); err != nil {
		return nil, err
	}
	own := fmt.Sprintf("@sigmatrace/%d/%d", os.Getpid(), time.Now().UnixNano())
	conn, err := net.DialUnix("unixgram", &net.UnixAddr{Name: own, Net: "unixgram"}, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	conn.SetDeadline(until)
	return &manager{conn: conn, domain: domain}, nil
}

// request makes a GET of the library's of another data set.
func request(id ptp.ManagementID) *ptp.Management {
	packet := ptp.TimeStatusNPRequest()
	packet.TLV = &ptp.ManagementTLVHead{TLVHead: ptp.TLVHead{TLVType: ptp.TLVManagement, LengthField: 2}, ManagementID: id}
	return packet
}

// get asks for a data set and returns so many answers: one, or one a port. Answers to what was asked before are passed over.
func (m *manager) get(id ptp.ManagementID, answers int) ([]ptp.ManagementTLV, error) {
	m.sequence++
	packet := request(id)
	packet.SetSequence(m.sequence)
	packet.SetDomainNumber(uint8(m.domain))
	text, err := packet.MarshalBinary()
	if err == nil {
		_, err = m.conn.Write(text)
	}
	if err != nil {
		return nil, fmt.Errorf("asking ptp4l: %w", err)
	}
	var got []ptp.ManagementTLV
	buffer := make([]byte, 2048)
	for len(got) < answers {
		n, err := m.conn.Read(buffer)
		if err != nil {
			return got, fmt.Errorf("waiting for ptp4l's answer: %w", err)
		}
		var reply ptp.Management
		if err := reply.UnmarshalBinary(buffer[:n]); err != nil {
			return got, fmt.Errorf("reading ptp4l's answer: %w", err)
		}
		if reply.SequenceID == m.sequence && reply.TLV.MgmtID() == id {
			got = append(got, reply.TLV)
		}
	}
	return got, nil
}

// one asks for a data set of the clock.
func one[T ptp.ManagementTLV](m *manager, id ptp.ManagementID) (tlv T, err error) {
	got, err := m.get(id, 1)
	if err != nil {
		return tlv, err
	}
	tlv, is := got[0].(T)
	if !is {
		return tlv, fmt.Errorf("ptp4l's answer is a %T", got[0])
	}
	return tlv, nil
}
