package recorder

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
	"github.com/sigmatrace/sigmatrace/merge/rundir"
)

// asked builds testdata/select.c with sanitizers and has it answer questions.
func asked(t *testing.T, questions []string) []string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "select")
	args := []string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-I", filepath.Join(root, "preload"), "-o", program, "testdata/select.c"}
	if b, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, b)
	}
	cmd := exec.Command(program)
	cmd.Stdin = strings.NewReader(strings.Join(questions, "\n") + "\n")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	answers := strings.Fields(string(out))
	if len(answers) != len(questions) {
		t.Fatalf("%d answers to %d questions", len(answers), len(questions))
	}
	return answers
}

// inList is what a list of ranges means: "1", "0", or "-1" where it is malformed.
func inList(list string, n uint64) string {
	answer := "0"
	for _, item := range strings.Split(list, ",") {
		m := regexp.MustCompile(`^(\d+)(?:-(\d+))?$`).FindStringSubmatch(item)
		if m == nil {
			return "-1"
		}
		a, _ := strconv.ParseUint(m[1], 10, 64)
		b := a
		if m[2] != "" {
			b, _ = strconv.ParseUint(m[2], 10, 64)
		}
		if a > b {
			return "-1"
		}
		if a <= n && n <= b {
			answer = "1"
		}
	}
	return answer
}

// The recorder's reader of ranges and patterns agrees with a second one on lists that are right, and takes no harm from others.
func TestSelectionInC(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 14))
	var questions, want []string
	for range 20000 {
		var b strings.Builder
		for range 1 + r.IntN(12) {
			b.WriteByte("0123456789-,,-"[r.IntN(14)])
		}
		n := r.Uint64N(100)
		questions = append(questions, fmt.Sprintf("r %s\t%d", b.String(), n))
		want = append(want, inList(b.String(), n))
	}
	for _, list := range []string{"0-7,16", "16", "5-3", "", "-", "1-", ",", "1,", "18446744073709551615", "99999999999999999999999", "x", "1 "} {
		for _, n := range []uint64{0, 7, 8, 16} {
			answer := inList(list, n)
			if strings.HasPrefix(list, "9999999999") {
				answer = "-1" // more digits than are read
			}
			if list == "18446744073709551615" {
				answer = "-1"
			}
			questions, want = append(questions, fmt.Sprintf("r %s\t%d", list, n)), append(want, answer)
		}
	}
	match := func(pattern, text string) bool {
		expression := regexp.QuoteMeta(pattern)
		for from, to := range map[string]string{`\*`: `(?s:.*)`, `\?`: `(?s:.)`} {
			expression = strings.ReplaceAll(expression, from, to)
		}
		return regexp.MustCompile(`^` + expression + `$`).MatchString(text)
	}
	for range 20000 {
		var pattern, path strings.Builder
		for range 1 + r.IntN(8) {
			pattern.WriteByte("ab*?/b**"[r.IntN(8)])
		}
		path.WriteByte('/')
		for range 1 + r.IntN(8) {
			path.WriteByte("abab/"[r.IntN(5)])
		}
		text, answer := path.String(), "0"
		if !strings.Contains(pattern.String(), "/") {
			text = text[strings.LastIndexByte(text, '/')+1:]
		}
		if match(pattern.String(), text) {
			answer = "1"
		}
		questions, want = append(questions, fmt.Sprintf("g %s\t%s", pattern.String(), path.String())), append(want, answer)
	}
	for _, c := range []struct{ patterns, path, answer string }{
		{"bash,python*", "/usr/bin/python3.11", "1"}, {"bash,python", "/usr/bin/python3.11", "0"}, {"/usr/*/python3", "/usr/local/bin/python3", "1"},
		{"[a-c]x", "/bin/bx", "1"}, {"[a-c]x", "/bin/dx", "0"}, {"[!a-c]x", "/bin/dx", "1"}, {"[]]x", "/bin/]x", "1"}, {"[a-", "/bin/[a-", "1"}, {"[", "/bin/x", "0"},
		{"", "/bin/x", "0"}, {",,", "/bin/x", "0"}, {"x", "", "0"}, {"*", "", "1"}, {"a[-]b", "/a-b", "1"}, {strings.Repeat("*a", 200), "/" + strings.Repeat("a", 199), "0"},
	} {
		questions, want = append(questions, "g "+c.patterns+"\t"+c.path), append(want, c.answer)
	}
	for i, got := range asked(t, questions) {
		if got != want[i] {
			t.Errorf("%q: %s, want %s", questions[i], got, want[i])
		}
	}
}

// Windows opened and closed while a thread records: the counters at the begin of each say how many requests there had been, so that every
// recorded request has its number, and the tables have all of them.
func TestWindowsKeepNumbers(t *testing.T) {
	client := build(t)
	for _, backEnd := range []string{"mapped", "written"} {
		t.Run(backEnd, func(t *testing.T) {
			t.Parallel()
			d, err := rundir.Create(filepath.Join(t.TempDir(), "run"))
			if err != nil {
				t.Fatal(err)
			}
			env, captures := configure(t, d.Path(), settings{"window.start": "closed", "run.control": d.ControlPath(), "record.back_end": backEnd})
			cmd := exec.Command(client, "paced", "20", "5000")
			cmd.Env = env
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			for _, word := range []string{rundir.WindowStart, rundir.WindowStop, rundir.WindowStart} {
				time.Sleep(1200 * time.Millisecond)
				if _, changed, err := d.Command(word, time.Now()); err != nil || !changed {
					t.Fatal(changed, err)
				}
			}
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
			f := files(t, captures)[0]
			var total, recorded uint64
			if err := f.Aggregates(func(a *capture.Aggregate) error { total += a.Count; return nil }); err != nil {
				t.Fatal(err)
			}
			var opened []bool
			if err := f.Definitions(catalogue.Default, func(x *capture.Definition) error {
				if x.ID == catalogue.DefWindow {
					opened = append(opened, x.Uint(catalogue.DefWindowOpen) != 0)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(opened, []bool{false, true, false, true}) {
				t.Errorf("windows: %v", opened)
			}
			at, jumps := uint64(0), 0
			for _, chunk := range f.Chunks() {
				var dec capture.Decoder
				dec.Reset(f, &chunk, catalogue.Default)
				for first := true; ; {
					var ev capture.Event
					ok, err := dec.Next(&ev)
					if err != nil {
						t.Fatal(err)
					}
					if !ok {
						break
					}
					switch {
					case ev.Form == capture.FormCounters:
						if n := ev.Fields[capture.CountersPosted]; n != at {
							jumps++
							if n < at {
								t.Errorf("counters go back from %d to %d", at, n)
							}
							at = n
						}
						first = false
					case ev.ID == catalogue.EventUcpPut:
						if first {
							t.Error("a chunk begins without the counters of its object")
						}
						// the client's remote addresses say which request it is
						if n := ev.Fields[catalogue.UcpRequestRemoteAddress] / 8; n != at {
							t.Fatalf("request %d comes as number %d", n, at)
						}
						at++
						recorded++
					}
				}
			}
			if jumps != 2 || at != total || recorded == 0 || recorded >= total {
				t.Errorf("%d jumps, the last request is number %d of %d, %d recorded", jumps, at, total, recorded)
			}
		})
	}
}

// When epochs of ever new names use their room up, the rest is counted together and the totals stay exact.
func TestEpochsLeaveRoomForTotals(t *testing.T) {
	client := build(t)
	env, captures := configure(t, t.TempDir(), settings{"mode": "aggregate", "record.budget": "1048576", "record.chunk": "16384"})
	run(t, env, client, "marks", "3000", "7")
	f := files(t, captures)[0]
	sums, total := map[uint32]uint64{}, uint64(0)
	if err := f.Aggregates(func(a *capture.Aggregate) error {
		sums[a.Epoch] += a.Count
		total += a.Count
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	kinds := map[uint64]int{}
	more := uint32(0)
	if err := f.Definitions(catalogue.Default, func(x *capture.Definition) error {
		if x.ID == catalogue.DefEpoch {
			kinds[x.Uint(catalogue.DefEpochKind)]++
			if x.Uint(catalogue.DefEpochKind) == catalogue.EpochKindMore {
				more = uint32(x.Uint(catalogue.DefEpochNumber))
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if total != 3000*7 || f.Live().LostTables != 0 || f.Live().LostEvents != 0 {
		t.Errorf("%d counted of %d, lost %+v", total, 3000*7, f.Live())
	}
	marks := kinds[catalogue.EpochKindMark]
	if marks < 500 || marks >= 3000 || kinds[catalogue.EpochKindMore] != 1 || sums[more] != uint64(3000-marks)*7 {
		t.Errorf("epochs by kind %v, %d counted in the last", kinds, sums[more])
	}
	for number, n := range sums {
		if number != more && n != 7 {
			t.Errorf("epoch %d: %d", number, n)
		}
	}
}
