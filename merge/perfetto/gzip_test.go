package perfetto

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

func TestChecksumsAdd(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		b := make([]byte, r.IntN(5000))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		cut := r.IntN(len(b) + 1)
		sum := func(b []byte) checksum { return checksum{crc32.ChecksumIEEE(b), int64(len(b))} }
		if got, want := sum(b[:cut]).then(sum(b[cut:])), sum(b); got != want {
			t.Fatalf("%d bytes cut at %d: %+v, not %+v", len(b), cut, got, want)
		}
	}
}
