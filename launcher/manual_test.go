package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

// shown writes the manual pages and returns what man shows of each, in wide lines; groff may have nothing to complain of.
func shown(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	app := application()
	if err := app.Run([]string{"sigmatrace", "manual", dir}); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "man?", "*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	pages := map[string]string{}
	for _, file := range files {
		cmd := exec.Command("man", "--warnings", "-l", file)
		cmd.Env = append(os.Environ(), "MANWIDTH=1000", "LC_ALL=C.UTF-8", "MAN_KEEP_FORMATTING=", "PAGER=cat", "MANPAGER=cat")
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil || errs.Len() > 0 {
			t.Errorf("man -l %s (man-db): %v\n%s", filepath.Base(file), err, errs.String())
		}
		pages[filepath.Base(file)] = strings.ReplaceAll(out.String(), "‐", "-")
	}
	return pages
}

func TestManualHasEveryCommandAndOption(t *testing.T) {
	pages := shown(t)
	var check func(page string, c *cli.Command)
	check = func(page string, c *cli.Command) {
		for _, f := range c.Flags {
			if v, is := f.(cli.VisibleFlag); is && !v.IsVisible() {
				continue
			}
			for _, name := range f.Names() {
				dashes := "--"
				if len(name) == 1 {
					dashes = "-"
				}
				if !regexp.MustCompile(`(?m)^ +(-.*, )?` + regexp.QuoteMeta(dashes+name) + `\b`).MatchString(pages[page]) {
					t.Errorf("%s does not name %s%s of %s", page, dashes, name, c.Name)
				}
			}
		}
		for _, sub := range c.Subcommands {
			if !sub.Hidden && !strings.Contains(pages[page], "sigmatrace "+c.Name+" "+sub.Name) {
				t.Errorf("%s does not name %s %s", page, c.Name, sub.Name)
			}
			check(page, sub)
		}
	}
	for _, c := range commands() {
		page := "sigmatrace-" + c.Name + ".1"
		if _, there := pages[page]; there == c.Hidden {
			t.Errorf("%s: there %v", page, there)
		}
		if !c.Hidden {
			check(page, c)
			if !strings.Contains(pages["sigmatrace.1"], "sigmatrace-"+c.Name+"(1)") {
				t.Errorf("sigmatrace(1) does not name %s", c.Name)
			}
		}
	}
}

// The plugin's own tables are in C: site.c has the arguments in plugstack.conf, options.c the options.
func TestManualHasWhatThePluginTakes(t *testing.T) {
	page := shown(t)["sigmatrace-slurm.7"]
	for _, table := range []struct {
		file, names string
		least       int
	}{
		{"../spank/site.c", `(?:strcmp\((?:name|av\[i\]), |\{)"([a-z_]+)"`, 15},
		{"../spank/options.c", `(?m)^    \{"([a-z-]+)",`, 3},
	} {
		text, err := os.ReadFile(table.file)
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile(table.names).FindAllStringSubmatch(string(text), -1)
		if len(names) < table.least {
			t.Fatalf("%s has %d names by this test's reading, at least %d are there", table.file, len(names), table.least)
		}
		for _, n := range names {
			if !regexp.MustCompile(`(?m)^ +(.*, )?(--)?` + n[1] + `\b`).MatchString(page) {
				t.Errorf("sigmatrace-slurm(7) does not name %s of %s", n[1], table.file)
			}
		}
	}
}

// What the page says the plugin says, the plugin says: each message of its own is in its sources, or in those of the command that it runs.
func TestManualQuotesMessagesAsTheyAre(t *testing.T) {
	_, messages, _ := strings.Cut(shown(t)["sigmatrace-slurm.7"], "\nMESSAGES\n")
	var sources []byte
	files, err := filepath.Glob("../spank/*.c")
	for _, file := range append(files, "../profiles/search.go", "../profiles/resolve.go", "../profiles/problem.go", "slurm.go", "slurm_merge.go") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, text...)
	}
	quoted := 0
	for _, line := range regexp.MustCompile(`(?m)^       (\S.*)$`).FindAllStringSubmatch(messages, -1) {
		if strings.Contains(line[1], "Slurm plugin") {
			break // Slurm's own
		}
		quoted++
		for _, part := range regexp.MustCompile(`: |\.\.\.|"|full`).Split(strings.TrimPrefix(line[1], "--sigmatrace: "), -1) {
			if part = strings.TrimSpace(part); !bytes.Contains(sources, []byte(part)) {
				t.Errorf("sigmatrace-slurm(7) quotes %q, and nothing says %q", line[1], part)
			}
		}
	}
	if err != nil || quoted < 5 {
		t.Fatalf("%d messages found, %v", quoted, err)
	}
}
