package launchers

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/tests/needs"
)

// The command is started with the signals ignored and the standard files closed that sigmatrace itself was started with, although the Go
// runtime takes every signal and opens /dev/null in the place of closed files.
func TestCommandInheritsIgnoredSignalsAndClosedFiles(t *testing.T) {
	dir := t.TempDir()
	runs := 0
	both := func(before, command, redirect string) (plain, launched string) {
		t.Helper()
		runs++
		launch := fmt.Sprintf("%s launch --no-merge -o %s -- ", needs.Built(t, "bin/sigmatrace"), filepath.Join(dir, fmt.Sprint(runs)))
		for i, front := range []string{"", launch} {
			out := filepath.Join(dir, "out")
			execute(t, dir, []string{"OUT=" + out}, "sh", "-c", before+"exec "+front+command+redirect).succeed(t)
			text := execute(t, dir, nil, "cat", out).succeed(t).stdout
			if i == 0 {
				plain = text
			} else {
				launched = text
			}
		}
		return plain, launched
	}
	for _, signals := range []string{"USR1 USR2 TERM PIPE QUIT", "HUP INT", "ALRM CONT TSTP 40"} {
		plain, launched := both("trap '' "+signals+"; ", `sh -c 'grep SigIgn /proc/self/status >$OUT'`, "")
		if plain != launched || strings.HasSuffix(plain, "\t0000000000000000\n") {
			t.Errorf("with %s ignored: %q under launch, %q without", signals, launched, plain)
		}
	}
	const list = `sh -c 'for f in 0 1 2; do [ -e /proc/$$/fd/$f ] && echo $f; done >$OUT.new; mv $OUT.new $OUT'`
	for _, closed := range []string{" <&-", " 2>&-", " <&- 2>&-"} {
		if plain, launched := both("", list, closed); plain != launched || strings.Count(plain, "\n") == 3 {
			t.Errorf("with%s: files %q under launch, %q without", closed, launched, plain)
		}
	}
	if plain, launched := both("", `sh -c '[ -e /proc/$$/fd/1 ]; echo $? >&2' 2>$OUT`, " >&-"); !strings.HasPrefix(launched, plain) || plain != "1\n" { // and then our own lines
		t.Errorf("with standard output closed: %q under launch, %q without", launched, plain)
	}
}
