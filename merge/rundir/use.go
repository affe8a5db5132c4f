package rundir

import (
	"encoding/json"
	"os"

	"golang.org/x/sys/unix"
)

// Use tells others, until done is called, that the run is being recorded or merged: `sigmatrace clean` leaves it alone. It is a shared lock of
// the folder of captures; where there is none, or there are no locks, there is nothing to tell with.
func (d *Dir) Use() (done func()) {
	f, err := os.Open(d.Capture())
	if err != nil {
		return func() {}
	}
	for unix.Flock(int(f.Fd()), unix.LOCK_SH) == unix.EINTR {
		continue
	}
	return func() { f.Close() }
}

// ParseManifest reads a manifest's text, of a version that this program knows.
func ParseManifest(text []byte) (*Manifest, error) {
	if _, err := checkVersion(text); err != nil {
		return nil, err
	}
	var m Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, err
	}
	return &m, nil
}
