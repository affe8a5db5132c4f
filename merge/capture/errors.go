package capture

import (
	"errors"
	"fmt"
)

// Kinds of errors about a capture; test for them with errors.Is.
var (
	// ErrForeign: another kind of file, or a capture in another byte order than this reader knows.
	ErrForeign = errors.New("not a sigmatrace capture")
	// ErrNewer: a major version this reader does not know.
	ErrNewer = errors.New("newer capture format")
	// ErrTruncated: the file ends before what its headers promise.
	ErrTruncated = errors.New("truncated capture")
	// ErrCorrupt: content that no writer makes.
	ErrCorrupt = errors.New("corrupt capture")
	// ErrUnknownEvent: an event id outside the catalogue; the rest of its chunk cannot be decoded.
	ErrUnknownEvent = errors.New("unknown event")
)

// Error says what is wrong with a capture and where. Unwrap gives its kind, one of the sentinels above.
type Error struct {
	Path   string
	Offset int64 // in bytes from the start of the file
	Kind   error
	Detail string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: offset %d: %v: %s", e.Path, e.Offset, e.Kind, e.Detail)
}

// Unwrap returns the kind of the error.
func (e *Error) Unwrap() error { return e.Kind }

func (f *File) errorf(kind error, offset int64, format string, args ...any) *Error {
	return &Error{Path: f.path, Offset: offset, Kind: kind, Detail: fmt.Sprintf(format, args...)}
}
