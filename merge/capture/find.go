package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Node is the folder of one machine's boot within a capture folder.
type Node struct {
	Name     string // hostname and the first 8 digits of the boot id
	Captures []string
	Alive    string // path of the proof-of-life file, "" where there is none
}

// Extension of capture files.
const Extension = ".capture"

// Find lists the nodes of the capture folder dir, and their files, in order of name. Links are not followed. Folders that cannot be
// read are left out and told in the error, beside the nodes that can.
func Find(dir string) ([]Node, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("looking for captures: %w", err)
	}
	var nodes []Node
	var failed []error
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		folder := filepath.Join(dir, e.Name())
		files, err := os.ReadDir(folder)
		if err != nil {
			failed = append(failed, fmt.Errorf("looking for captures: %w", err))
			continue
		}
		n := Node{Name: e.Name()}
		for _, file := range files {
			path := filepath.Join(folder, file.Name())
			switch {
			case !file.Type().IsRegular():
			case file.Name() == "alive":
				n.Alive = path
			case strings.HasSuffix(file.Name(), Extension):
				n.Captures = append(n.Captures, path)
			}
		}
		if n.Alive != "" || len(n.Captures) > 0 {
			nodes = append(nodes, n)
		}
	}
	return nodes, errors.Join(failed...)
}

// Alive is the proof of life that the recorder leaves in a process with a rank, whether or not it communicates.
type Alive struct {
	Offset       int64 // of the record in its file
	RankSource   RankSource
	Pid          uint32
	Rank         int64
	World        int64 // -1 unknown
	PidNamespace uint64
	StartTime    uint64
	RealtimeNS   uint64
	Image        uint32
	State        uint32 // set of RankExcluded, ProcessExcluded, CaptureFailed
	Hostname     string
	Providers    string
	BootID       [16]byte
	Executable   string
}

// Bits of Alive.State.
const (
	RankExcluded    = 1 // by the profile's [ranks]
	ProcessExcluded = 2 // by its [processes]
	CaptureFailed   = 4 // there were calls to record, and no capture could be made
)

const (
	aliveBytes   = 512
	aliveMagic   = "SGMALIVE"
	aliveVersion = 1

	mostAlive       = 256 << 20 // bytes that are read of a file of them
	mostAliveDamage = 100       // records that are named because they cannot be used
)

// ReadAlive reads the proof-of-life file at path. Records that cannot be used are told in the error, joined, beside those that can.
func ReadAlive(path string) ([]Alive, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading proofs of life: %w", err)
	}
	defer file.Close()
	var all []Alive
	var damage []error
	unusable := 0
	wrong := func(offset int64, kind error, detail string) {
		if unusable++; unusable <= mostAliveDamage {
			damage = append(damage, &Error{path, offset, kind, detail})
		}
	}
	done := func(more ...error) ([]Alive, error) {
		if unusable > mostAliveDamage {
			more = append(more, &Error{path, 0, ErrCorrupt, fmt.Sprintf("%d records cannot be used; the first %d are named", unusable, mostAliveDamage)})
		}
		return all, errors.Join(append(damage, more...)...)
	}
	var b [aliveBytes]byte
	for offset := int64(0); ; offset += aliveBytes {
		if offset == mostAlive {
			return done(&Error{path, offset, ErrCorrupt, "the file is longer than is read of it"})
		}
		n, err := io.ReadFull(file, b[:])
		switch {
		case err == io.EOF:
			return done()
		case err == io.ErrUnexpectedEOF:
			return done(&Error{path, offset, ErrTruncated, fmt.Sprintf("the record ends after %d of %d bytes", n, aliveBytes)})
		case err != nil:
			return done(fmt.Errorf("reading proofs of life: %w", err))
		}
		le := binary.LittleEndian
		if !bytes.Equal(b[:8], []byte(aliveMagic)) {
			wrong(offset, ErrForeign, fmt.Sprintf("the record begins with %q, not %q", b[:8], aliveMagic))
			continue
		}
		if v := le.Uint16(b[8:]); v > aliveVersion {
			wrong(offset+8, ErrNewer, fmt.Sprintf("version %d, this reader knows %d", v, aliveVersion))
			continue
		}
		a := Alive{
			Offset: offset, RankSource: RankSource(le.Uint16(b[10:])), Pid: le.Uint32(b[12:]), Rank: int64(le.Uint64(b[16:])),
			World: int64(le.Uint64(b[24:])), PidNamespace: le.Uint64(b[32:]), StartTime: le.Uint64(b[40:]), RealtimeNS: le.Uint64(b[48:]),
			Image: le.Uint32(b[56:]), State: le.Uint32(b[60:]), Hostname: cString(b[64:128]), Providers: cString(b[128:192]), Executable: cString(b[256:512]),
		}
		copy(a.BootID[:], b[192:])
		all = append(all, a)
	}
}
