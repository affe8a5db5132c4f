package rig

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// WallClock returns the variable that lets programs under fault-shim.so read a wall clock which set makes ahead by so much.
func WallClock(t testing.TB) (variable string, set func(ahead time.Duration)) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ahead")
	set = func(ahead time.Duration) {
		t.Helper()
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o600) // in place: it is mapped
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.Write(binary.LittleEndian.AppendUint64(nil, uint64(ahead))); err != nil {
			t.Fatal(err)
		}
	}
	set(0)
	return "SHIM_CLOCK=" + file, set
}
