package main

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// printDryRun prints the run directory, the flat profile and the command line, in a form that a shell takes.
func (s *session) printDryRun(w io.Writer) error {
	base, name, err := s.candidate()
	if err != nil {
		return err
	}
	dir := filepath.Join(base, name)
	config := filepath.Join(dir, "profile.resolved")
	p, err := s.prepare(dir, config)
	if err != nil {
		return err
	}
	text, err := p.flat.Bytes()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "# dialect: %s\n# run directory: %s\n# %s:\n", s.dialect.name, dir, config)
	for line := range bytes.Lines(text) {
		fmt.Fprintf(w, "#   %s", line)
	}
	if line := p.line(s.profile.Text("record.back_end")); line != "" {
		fmt.Fprintf(w, "# %s\n", line)
	}
	fmt.Fprintf(w, "# %s\n", p.place())
	s.printEstimate(w, s.bases(base))
	return printCommand(w, s.cmd, p.plan)
}

// printCommand prints the command with the variables that differ from the present environment.
func printCommand(w io.Writer, c *command, p *plan) error {
	words := []string{}
	for _, name := range sortedNames(c.environ) {
		if _, kept := p.environ[name]; !kept {
			words = append(words, "-u", quote(name))
		}
	}
	for _, name := range sortedNames(p.environ) {
		if old, had := c.environ[name]; !had || old != p.environ[name] {
			words = append(words, name+"="+quote(p.environ[name]))
		}
	}
	if len(words) > 0 {
		words = append([]string{"env"}, words...)
	}
	for _, arg := range p.argv {
		words = append(words, quote(arg))
	}
	_, err := fmt.Fprintln(w, strings.Join(words, " "))
	return err
}

func sortedNames(environ map[string]string) []string {
	names := make([]string, 0, len(environ))
	for name := range environ {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// quote writes a word so that a POSIX shell reads it back.
func quote(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-+=./:,@%", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
