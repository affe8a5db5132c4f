package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// progressLine shows how far long work has come: on a terminal a line that is written over, elsewhere a line for each stage.
type progressLine struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	stage    string
	shown    time.Time
	begun    time.Time
	dirty    bool
}

const (
	progressEvery = 100 * time.Millisecond
	quickStage    = time.Second // elsewhere, stages of quick work are not worth a line
)

func newProgressLine(f *os.File) *progressLine {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return &progressLine{w: f, terminal: err == nil, begun: time.Now()}
}

// show takes a stage and how much of it is done.
func (p *progressLine) show(stage string, done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	switch {
	case p.terminal:
		if stage == p.stage && now.Sub(p.shown) < progressEvery {
			return
		}
		percent := int64(100)
		if total > 0 {
			percent = 100 * done / total
		}
		fmt.Fprintf(p.w, "\r\x1b[Ksigmatrace: %s %d %%", stage, percent)
		p.dirty = true
	case stage != p.stage && now.Sub(p.begun) > quickStage:
		fmt.Fprintf(p.w, "sigmatrace: %s\n", stage)
	}
	p.stage, p.shown = stage, now
}

// end clears the line.
func (p *progressLine) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dirty {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.dirty = false
	}
}
