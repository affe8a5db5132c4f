package rundir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
)

const (
	nodesName    = "nodes"
	nodesVersion = 1
)

// Places of a node's captures.
const (
	PlaceShared  = "shared"  // in the run directory from the start
	PlaceScratch = "scratch" // in a directory of the node's, until its last task has ended
	PlaceMemory  = "memory"  // in one in its memory, likewise
)

// Node is where captures of a node lie, of one step's tasks on it: which was decided there when they were started, by these numbers.
type Node struct {
	Part      string  `json:"part"` // <host>.<job>.<step>
	Host      string  `json:"host"`
	Place     string  `json:"place"`
	Reason    string  `json:"reason"`              // why there
	Directory string  `json:"directory,omitempty"` // on the node; empty where place is shared
	Ranks     int     `json:"ranks"`               // at most, on the node
	Bytes     int64   `json:"bytes"`               // that they may write together
	Bandwidth int64   `json:"bandwidth"`           // bytes a second from the node to the run directory; 0: not measured
	Seconds   float64 `json:"seconds"`             // that there are to collect in
	Owner     string  `json:"owner,omitempty"`     // PID.STARTTIME of the slurmstepd on the node, which collects when its last task has ended

	Collected *Collected `json:"collected"` // null where that was not done: the node or Slurm's part on it died, or the step goes on
}

// Collected is what the last collection did, and those before it.
type Collected struct {
	Files   int        `json:"files"`
	Bytes   int64      `json:"bytes"`
	Packed  int64      `json:"packed"` // bytes of the packs
	Seconds float64    `json:"seconds"`
	Reason  string     `json:"reason,omitempty"` // why something is left
	Left    []LeftOver `json:"left,omitempty"`
}

// LeftOver is a capture that stayed on the node.
type LeftOver struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

// Left says whether captures are still on the node, as far as is known.
func (n *Node) Left() bool {
	return n.Place != PlaceShared && (n.Collected == nil || len(n.Collected.Left) > 0)
}

// LeftBytes is how much is known to be there.
func (n *Node) LeftBytes() (sum int64) {
	if n.Collected != nil {
		for _, l := range n.Collected.Left {
			sum += l.Bytes
		}
	}
	return sum
}

// NodesPath is the directory in which nodes write where their captures are. Without it they are in the run directory.
func (d *Dir) NodesPath() string { return filepath.Join(d.path, nodesName) }

// MakeNodes makes it.
func (d *Dir) MakeNodes() error {
	if err := MkdirPrivate(d.NodesPath()); err != nil {
		return fmt.Errorf("creating directory of the nodes' accounts: %w", err)
	}
	return nil
}

// NodeResolvedPath is the flat profile that a part's recorders read in the place of the run's.
func (d *Dir) NodeResolvedPath(part string) string {
	return filepath.Join(d.NodesPath(), part+".resolved")
}

func (d *Dir) nodePath(part string) string { return filepath.Join(d.NodesPath(), part+".json") }

// CheckPart refuses what is no name of a part.
func CheckPart(part string) error {
	if part == "" || part[0] == '.' || len(part) > 200 || strings.ContainsAny(part, "/\x00\n") {
		return fmt.Errorf("%q is not <host>.<job>.<step>", part)
	}
	return nil
}

// WriteNode writes a part's account, at once or not at all.
func (d *Dir) WriteNode(n *Node) error {
	text, err := json.MarshalIndent(struct {
		Version int `json:"version"`
		*Node
	}{nodesVersion, n}, "", "  ")
	if err == nil {
		err = WriteWhole(d.nodePath(n.Part), func(w io.Writer) error {
			_, err := w.Write(append(text, '\n'))
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("writing the node's account: %w", err)
	}
	return nil
}

// ReadNode reads it.
func (d *Dir) ReadNode(part string) (*Node, error) {
	text, err := readRegular(d.nodePath(part), mostNode)
	if err != nil {
		return nil, fmt.Errorf("reading the node's account: %w", err)
	}
	var n struct {
		Version int `json:"version"`
		Node
	}
	err = json.Unmarshal(text, &n)
	switch {
	case err != nil:
	case n.Version > nodesVersion:
		err = fmt.Errorf("version %d is newer than %d, the newest this program reads", n.Version, nodesVersion)
	case n.Version < 1 || n.Part != part:
		err = errors.New("it is not the account of this part")
	}
	if err != nil {
		return nil, fmt.Errorf("reading the node's account %s: %w", d.nodePath(part), err)
	}
	return &n.Node, nil
}

// ReadNodes reads the accounts of all nodes, in order of their parts. Those that cannot be read are told in the error, beside those that can.
func (d *Dir) ReadNodes() ([]Node, error) {
	entries, err := os.ReadDir(d.NodesPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the nodes' accounts: %w", err)
	}
	var nodes []Node
	var failed []error
	for _, e := range entries {
		part, is := strings.CutSuffix(e.Name(), ".json")
		if !is || e.Name()[0] == '.' {
			continue
		}
		n, err := d.ReadNode(part)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		nodes = append(nodes, *n)
	}
	return nodes, errors.Join(failed...)
}

// TakeNodes puts the nodes' accounts into the manifest, where they are other than it has them.
func (d *Dir) TakeNodes() ([]Node, error) {
	nodes, failed := d.ReadNodes()
	if len(nodes) == 0 {
		return nil, failed
	}
	m, err := d.ReadManifest()
	if err == nil && !reflect.DeepEqual(m.Run.Nodes, nodes) {
		err = d.Update(func(m *Manifest) { m.Run.Nodes = nodes })
	}
	return nodes, errors.Join(failed, err)
}
