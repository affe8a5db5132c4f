package rundir

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// ControlPath is the file with the last command of `sigmatrace window`, which the processes of a running run look at.
func (d *Dir) ControlPath() string { return filepath.Join(d.path, ControlName) }

// Commands of a Control.
const (
	WindowStart = "start"
	WindowStop  = "stop"
)

// Control is the last command given to a run. Its file is described in profiles/README.md.
type Control struct {
	Window  string // WindowStart or WindowStop; empty: there was no command
	Time    time.Time
	Number  int // of the command, from 1
	Windows int // started so far
}

const (
	controlMagic   = "sigmatrace.control"
	controlVersion = 1
	maxControl     = 512 // the recorder reads it into a buffer of this size
)

// Command gives the run a command and returns what was written. One with the same effect as the last is not given again: changed is false.
func (d *Dir) Command(window string, now time.Time) (c Control, changed bool, err error) {
	unlock, err := d.lock()
	if err != nil {
		return c, false, err
	}
	defer unlock()
	if c, err = d.readControl(); err != nil || c.Window == window {
		return c, false, err
	}
	c.Window, c.Time = window, now
	c.Number++
	if window == WindowStart {
		c.Windows++
	}
	err = WriteWhole(d.ControlPath(), func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s=%d\nwindow=%s\ntime=%d\nnumber=%d\nwindows=%d\n", controlMagic, controlVersion, c.Window, c.Time.UnixNano(), c.Number, c.Windows)
		return err
	})
	if err != nil {
		return c, false, fmt.Errorf("writing %s: %w", d.ControlPath(), err)
	}
	return c, true, nil
}

func (d *Dir) readControl() (Control, error) {
	text, err := readRegular(d.ControlPath(), maxControl)
	if errors.Is(err, fs.ErrNotExist) {
		return Control{}, nil
	}
	if err != nil {
		return Control{}, fmt.Errorf("reading the run's control file: %w", err)
	}
	c, err := parseControl(text)
	if err != nil {
		return Control{}, fmt.Errorf("reading %s: %w", d.ControlPath(), err)
	}
	return c, nil
}

// parseControl reads a control file's content. Keys that this version does not know are passed over.
func parseControl(text []byte) (c Control, err error) {
	if len(text) >= maxControl {
		return c, fmt.Errorf("%d bytes; less than %d are read", len(text), maxControl)
	}
	if !bytes.HasPrefix(text, fmt.Appendf(nil, "%s=%d\n", controlMagic, controlVersion)) || text[len(text)-1] != '\n' {
		return c, fmt.Errorf("it is not a control file of version %d", controlVersion)
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		switch key {
		case "window":
			c.Window = value
			if value != WindowStart && value != WindowStop {
				err = fmt.Errorf("window=%q", value)
			}
		case "time":
			var ns int64
			ns, err = strconv.ParseInt(value, 10, 64)
			c.Time = time.Unix(0, ns)
		case "number":
			c.Number, err = strconv.Atoi(value)
		case "windows":
			c.Windows, err = strconv.Atoi(value)
		}
		if err != nil {
			return c, err
		}
	}
	return c, nil
}
