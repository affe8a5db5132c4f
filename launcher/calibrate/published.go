package calibrate

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sigmatrace/sigmatrace/merge/calibration"
)

// PublishedDir is where sigmatrace-clockd publishes.
const PublishedDir = "/run/sigmatrace/clock"

const (
	recordsName = "records"
	lockName    = "lock"
	// MaxPicked is the most published records that are taken for a step: the plugin holds them in memory.
	MaxPicked = 100
)

// Publisher keeps the last records of a host in a file that everybody can read.
type Publisher struct {
	dir  string
	most int
	last [][]byte // lines
	lock *os.File
}

// NewPublisher opens the directory, which it makes where it is not there, for records of one boot; what an earlier publisher left is kept.
// Another publisher at the same time is an error.
func NewPublisher(dir string, most int, boot string) (*Publisher, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the directory of clock calibrations: %w", err)
	}
	if err := trusted(dir); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the directory of clock calibrations: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("another process publishes in %s", dir)
	}
	halves, _ := filepath.Glob(filepath.Join(dir, "."+recordsName+"-*")) // of a publisher that was killed; the pattern is right
	for _, half := range halves {
		os.Remove(half)
	}
	p := &Publisher{dir: dir, most: most, lock: lock}
	earlier, err := Published(dir, boot, 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, calibration.ErrNewer) {
		p.Close()
		return nil, err
	}
	for _, r := range earlier {
		line, err := r.Line()
		if err != nil {
			p.Close()
			return nil, err
		}
		p.keep(line)
	}
	return p, nil
}

// Close ends the lock; what is published stays.
func (p *Publisher) Close() error { return p.lock.Close() }

func (p *Publisher) keep(line []byte) {
	p.last = append(p.last, line)
	if over := len(p.last) - p.most; over > 0 {
		p.last = append([][]byte{}, p.last[over:]...)
	}
}

// Add publishes a record, in the place of the oldest where there are enough. Readers see the old file or the new one.
func (p *Publisher) Add(r *calibration.Record) error {
	line, err := r.Line()
	if err != nil {
		return err
	}
	p.keep(line)
	path := filepath.Join(p.dir, recordsName)
	f, err := os.CreateTemp(p.dir, "."+recordsName+"-") // of mode 0600, and never one that is there
	if err != nil {
		return fmt.Errorf("publishing a clock calibration: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(bytes.Join(p.last, nil))
	if err == nil {
		err = f.Chmod(0o644)
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("publishing a clock calibration: %w", err)
	}
	return nil
}

// Published returns the records of a boot that were made after a time of the monotonic clock, oldest first. What others than root and we could
// have written is refused.
func Published(dir, boot string, since int64) ([]*calibration.Record, error) {
	if _, err := os.Lstat(dir); err != nil {
		return nil, fmt.Errorf("reading published clock calibrations: %w", err)
	}
	if err := trusted(dir); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, recordsName), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("reading published clock calibrations: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || !ours(info) {
		return nil, fmt.Errorf("%s is no file of root's", f.Name())
	}
	all, _, err := calibration.Read(f)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", f.Name(), err)
	}
	var got []*calibration.Record
	for _, r := range all {
		if r.Boot == boot && r.Reading.Monotonic > since {
			got = append(got, r)
		}
	}
	return got, nil
}

// Pick returns at most so many of the records, in their order: those with problems first, of the others as many as there is room for; evenly.
func Pick(records []*calibration.Record, most int) []*calibration.Record {
	bad := 0
	for _, r := range records {
		if len(r.Problems) > 0 {
			bad++
		}
	}
	room := map[bool]int{true: min(bad, most), false: most - min(bad, most)}
	of := map[bool]int{true: bad, false: len(records) - bad}
	seen := map[bool]int{}
	var got []*calibration.Record
	for _, r := range records {
		is := len(r.Problems) > 0
		share := min(room[is], of[is])
		if (seen[is]+1)*share/of[is] > seen[is]*share/of[is] {
			got = append(got, r)
		}
		seen[is]++
	}
	return got
}

// trusted refuses a directory in which others than root and we may change names, or which they could have put in the place of another.
func trusted(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("looking at %s: %w", dir, err)
	}
	for at := dir; ; at = filepath.Dir(at) {
		info, err := os.Lstat(at)
		if err != nil {
			return fmt.Errorf("looking at %s: %w", at, err)
		}
		sticky := info.Mode()&os.ModeSticky != 0 && at != dir
		if !info.IsDir() || !ours(info) || info.Mode()&0o022 != 0 && !sticky {
			return fmt.Errorf("%s is not trusted: %s is not a directory that only root can write", dir, at)
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}

func ours(info fs.FileInfo) bool {
	stat, is := info.Sys().(*syscall.Stat_t)
	return is && (stat.Uid == 0 || int(stat.Uid) == os.Geteuid())
}
