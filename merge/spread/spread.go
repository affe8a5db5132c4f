// Package spread gives units of work to other processes, on other hosts, that share a folder with this one. It knows nothing of what the
// units are. Each worker connects to the coordinator, is given one unit at a time, and leaves what it makes as a file in the folder. The units
// of a worker that dies are given to others; where there are none any more, the coordinator is told to do them itself.
package spread

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"time"
)

// Unit is a piece of work.
type Unit struct {
	Kind    string
	Part    int
	Attempt int
	About   []byte // what all parts of the kind have in common, encoded by Encode
}

// File is the name of what a worker makes of the unit. Attempts have names of their own: a worker that was believed dead may go on writing.
func (u *Unit) File() string {
	return u.Kind + "-" + strconv.Itoa(u.Part) + "." + strconv.Itoa(u.Attempt)
}

// hello is the first message of a worker.
type hello struct {
	Token string
	Host  string
	Kinds []string // that this connection takes
}

// answer is what a worker says while it has a unit: that it lives, or how the unit ended.
type answer struct {
	Ended bool
	Error string // "" where it is done
	Said  []byte // encoded by Encode
}

// Times. A worker that has said nothing for longer than silence is taken for dead, as if its connection had ended.
const (
	beat    = 3 * time.Second
	silence = 20 * time.Second
)

// attempts is how often a unit is tried by workers.
const attempts = 3

// whereName is the file in the folder that says where the coordinator is, for its owner alone.
const whereName = "coordinator"

// where is what the file holds.
type where struct {
	Addresses []string
	Token     string
	About     []byte // what all workers have to know
}

// Encode turns a value into bytes for Decode in another process of the same program.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(v); err != nil {
		return nil, fmt.Errorf("encoding for other processes: %w", err)
	}
	return b.Bytes(), nil
}

// Decode reads what Encode made.
func Decode(b []byte, v any) error {
	if err := gob.NewDecoder(bytes.NewReader(b)).Decode(v); err != nil {
		return fmt.Errorf("decoding what another process says: %w", err)
	}
	return nil
}

// maxMessage bounds a message.
const maxMessage = 1 << 30

// send writes a message: its length in four bytes, then the gob.
func send(to net.Conn, v any) error {
	b, err := Encode(v)
	if err != nil {
		return err
	}
	if len(b) > maxMessage {
		return fmt.Errorf("message of %d bytes; at most %d are sent", len(b), maxMessage)
	}
	head := []byte{byte(len(b) >> 24), byte(len(b) >> 16), byte(len(b) >> 8), byte(len(b))}
	_, err = to.Write(append(head, b...))
	return err
}

// receive reads a message of at most limit bytes.
func receive(from io.Reader, v any, limit int) error {
	var head [4]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return err
	}
	n := int(head[0])<<24 | int(head[1])<<16 | int(head[2])<<8 | int(head[3])
	if n > limit {
		return fmt.Errorf("message of %d bytes; at most %d are read", n, limit)
	}
	var b bytes.Buffer
	if _, err := io.CopyN(&b, from, int64(n)); err != nil {
		return err
	}
	return Decode(b.Bytes(), v)
}

func wherePath(dir string) string { return filepath.Join(dir, whereName) }

// ErrOver is the error of a worker that comes when the merge needs none any more.
var ErrOver = errors.New("the merge is over")

// ErrMismatch is the error of a worker that does not see what the coordinator sees.
var ErrMismatch = errors.New("this host does not see the run as the coordinator does")
