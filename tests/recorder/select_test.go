package recorder

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/capture"
	"github.com/sigmatrace/sigmatrace/merge/catalogue"
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
