package calibration

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// DirName is the directory in a run directory in which each node has a file of records, named after it.
const DirName = "clock"

// maxFile is the most that is read of one node's file: records of more than a day, one a second.
const maxFile = 256 << 20

// Read reads records, a line each. A last line without an end was cut off and is passed over, as are lines that cannot be read and those
// that are too long; damaged counts them. The error is that of r, or of a newer major version.
func Read(r io.Reader) (records []*Record, damaged int, err error) {
	lines := bufio.NewReaderSize(io.LimitReader(r, maxFile), MaxLine)
	long := false // in a line that is too long
	for {
		line, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			if !long {
				damaged++
			}
			long = true
			continue
		case errors.Is(err, io.EOF):
			if len(line) > 0 && !long {
				damaged++
			}
			return records, damaged, nil
		case err != nil:
			return records, damaged, err
		}
		if long {
			long = false
			continue
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		record, err := Parse(line)
		switch {
		case errors.Is(err, ErrNewer):
			return nil, damaged, err
		case err != nil:
			damaged++
		default:
			records = append(records, record)
		}
	}
}

// File is what a node's file held.
type File struct {
	Node    string // as the file is called
	Records []*Record
	Damaged int   // lines that could not be read
	Err     error // why none could be
}

// ReadRun reads the files in a run directory, by node; none where the run has no such directory. Records are in the order of their
// monotonic clock, those of one boot after another in the order in which these first appear; those that two writers both
// brought are there once. A file that is no regular file is passed over.
func ReadRun(run string) ([]File, error) {
	dir := filepath.Join(run, DirName)
	names, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading clock calibrations: %w", err)
	}
	var files []File
	for _, name := range names {
		if !name.Type().IsRegular() {
			continue
		}
		file := File{Node: name.Name()}
		file.Records, file.Damaged, file.Err = readFile(filepath.Join(dir, name.Name()))
		file.Records = inOrder(file.Records)
		files = append(files, file)
	}
	return files, nil
}

func readFile(path string) ([]*Record, int, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, fmt.Errorf("reading clock calibrations: %w", err)
	}
	defer f.Close()
	records, damaged, err := Read(f)
	if err != nil {
		err = fmt.Errorf("reading clock calibrations %s: %w", path, err)
	}
	return records, damaged, err
}

func inOrder(records []*Record) []*Record {
	boots := map[string]int{}
	for _, r := range records {
		if _, known := boots[r.Boot]; !known {
			boots[r.Boot] = len(boots)
		}
	}
	slices.SortStableFunc(records, func(a, b *Record) int {
		return cmp.Or(cmp.Compare(boots[a.Boot], boots[b.Boot]), cmp.Compare(a.Reading.Monotonic, b.Reading.Monotonic))
	})
	return slices.CompactFunc(records, func(a, b *Record) bool { return a.Boot == b.Boot && a.Reading == b.Reading })
}
