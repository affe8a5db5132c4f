package clock

import (
	"bytes"
	"encoding/gob"
)

// toldMap is a Map as other processes are told of it.
type toldMap struct {
	Points []Point
	Jumps  []Jump
}

// GobEncode tells another process of the map.
func (m *Map) GobEncode() ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(toldMap{m.points, m.jumps})
	return b.Bytes(), err
}

// GobDecode takes a map of another process.
func (m *Map) GobDecode(b []byte) error {
	var t toldMap
	err := gob.NewDecoder(bytes.NewReader(b)).Decode(&t)
	m.points, m.jumps = t.Points, t.Jumps
	return err
}
