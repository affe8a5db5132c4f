// Package ondisk looks at runs that are being recorded.
package ondisk

import (
	"path/filepath"

	"github.com/sigmatrace/sigmatrace/merge/capture"
)

// Counted is how many requests of the event each process below a run's capture folder has counted, as far as its tables are on the disk. A capture that is in the making
// is left out.
func Counted(captures string, event uint16) (all []uint64) {
	names, _ := filepath.Glob(filepath.Join(captures, "*", "*"+capture.Extension)) // the pattern is well formed
	for _, name := range names {
		f, err := capture.Open(name)
		if err != nil {
			continue
		}
		n := uint64(0)
		err = f.Aggregates(func(a *capture.Aggregate) error {
			if a.Event == event {
				n += a.Count
			}
			return nil
		})
		f.Close()
		if err == nil {
			all = append(all, n)
		}
	}
	return all
}
