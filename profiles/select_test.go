package profiles

import (
	"errors"
	"strings"
	"testing"
)

func TestSelectionIsWrittenInOneForm(t *testing.T) {
	for _, c := range []struct{ key, text, want string }{
		{"ranks.include", "16,0-7", "0-7,16"},
		{"ranks.include", "3, 4, 5-5, 1", "1,3-5"},
		{"ranks.include", "2-9,4-6,10", "2-10"},
		{"ranks.exclude", "", ""},
		{"window.delay", "1m30s", "90000000000ns"},
		{"window.delay", "0", "0ns"},
		{"window.duration", "1500ms", "1500000000ns"},
		{"epoch.interval", "10ms", "10000000ns"},
		{"window.max_events", "0010", "10"},
		{"processes.exclude", "bash, python*,/opt/*/x", "bash,python*,/opt/*/x"},
	} {
		if got, err := findKey(c.key).Canonical(c.text); err != nil || got != c.want {
			t.Errorf("%s = %q: got %q, %v; want %q", c.key, c.text, got, err, c.want)
		}
	}
}

// What is wrong with a selection is said where it stands, before anything runs.
func TestBadSelectionNamesFileAndLine(t *testing.T) {
	for text, want := range map[string]string{
		"[ranks]\ninclude = \"0-7,x\"":         `:2: ranks.include: "x" is not a rank or a range of ranks`,
		"[ranks]\n\nexclude = \"7-3\"":         `:3: ranks.exclude: the range 7-3 ends before it begins`,
		"[ranks]\nexclude = \"1,,2\"":          `:2: ranks.exclude: "" is not a rank or a range of ranks`,
		"[ranks]\nexclude = \"-1\"":            `:2: ranks.exclude: "-1" is not a rank or a range of ranks`,
		"[ranks]\nexclude = -1":                `:2: ranks.exclude: "-1" is not a rank or a range of ranks`,
		"[ranks]\nexclude = [1]":               `:2: ranks.exclude: a list where a string of ranks such as "0-7,16" is needed`,
		"[window]\ndelay = \"30\"":             `:2: window.delay: "30" is not a duration`,
		"[window]\ndelay = 30":                 `:2: window.delay: an integer where a duration such as "30s" is needed`,
		"[window]\nduration = \"-1s\"":         `:2: window.duration: -1s is negative`,
		"[window]\nmax_events = -1":            `:2: window.max_events: "-1" is not a number`,
		"[window]\nmax_events = \"9\"":         `:2: window.max_events: a string where a whole number is needed`,
		"[doorbell]\nbatch_threshold = 32769":  `:2: doorbell.batch_threshold: 32769 is more than the largest queue holds, 32768`,
		"[doorbell]\nthreads = -1":             `:2: doorbell.threads: "-1" is not a number`,
		"[doorbell]\npoll = \"spin\"":          `:2: doorbell.poll: "spin" is not valid`,
		"[doorbell]\ncpus = \"2-x\"":           `:2: doorbell.cpus: "2-x" is not a processor or a range of processors`,
		"[doorbell]\ncpus = [2]":               `:2: doorbell.cpus: a list where a string of processors such as "2-3,8" is needed`,
		"[epoch]\ninterval = \"1ms\"":          `:2: epoch.interval: 1ms is less than 10ms`,
		"[processes]\nexclude = \"bash\"":      `:2: processes.exclude: a string where a list such as ["bash", "*/bin/python*"] is needed`,
		"[processes]\nexclude = [\"a\", \"\"]": `:2: processes.exclude: an empty pattern matches nothing`,
		"[processes]\nexclude = [\"a,b\"]":     `:2: processes.exclude: the pattern "a,b" has a comma`,
	} {
		_, err := parseFile("p", "/d/p.toml", []byte(text+"\n"))
		if err == nil || !strings.HasPrefix(err.Error(), "/d/p.toml"+want) {
			t.Errorf("%q: got %v\nwant %s", text, err, want)
		}
	}
}

// The hint is true of every number: 0 is no limit of threads or of a priority.
func TestHintOfNumbers(t *testing.T) {
	var p *Problem
	if _, err := (&Key{Kind: Number}).canonicalNumber("-1"); !errors.As(err, &p) || p.Advice != "write a whole number, from 0" {
		t.Errorf("%v, %+v", err, p)
	}
}
