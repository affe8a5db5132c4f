package main

import (
	"slices"
	"strconv"
	"strings"
)

// option is one option of a launcher's command line.
type option struct {
	name  string   // without dashes, but with them where one launcher has -n and --n apart
	value string   // its first argument; NAME=VALUE of one that sets a variable
	words []string // as the user wrote it
}

// appContext is one of the parts of a command line that are separated by ":": options, then a program with its arguments. Every
// launcher that knows such parts splits at each ":" word, those among a program's arguments included.
type appContext struct {
	options []option
	program []string // the program and its arguments, a leading "--" included
}

// syntax says how the options of a launcher are read.
type syntax struct {
	arguments map[string]int  // how many words belong to an option; none to one that is not here
	attached  string          // letters whose argument may be in the same word: -n4
	pairs     map[string]bool // options that set a variable, by NAME VALUE or by NAME=VALUE
}

// arguments makes a table of option -> number of arguments out of pairs (number, space separated options).
func arguments(pairs ...any) map[string]int {
	table := map[string]int{}
	for i := 0; i < len(pairs); i += 2 {
		for name := range strings.FieldsSeq(pairs[i+1].(string)) {
			table[name] = pairs[i].(int)
		}
	}
	return table
}

// splitContexts cuts the words behind a launcher's name at each ":".
func splitContexts(argv []string) [][]string {
	var parts [][]string
	start := 1
	for i := 1; i <= len(argv); i++ {
		if i == len(argv) || argv[i] == ":" {
			parts = append(parts, argv[start:i])
			start = i + 1
		}
	}
	return parts
}

// contexts takes a command line apart.
func (s *syntax) contexts(argv []string) []appContext {
	var list []appContext
	for _, part := range splitContexts(argv) {
		list = append(list, s.parse(part))
	}
	return list
}

func (s *syntax) parse(args []string) appContext {
	var a appContext
	for i := 0; i < len(args); {
		if args[i] == "--" || !strings.HasPrefix(args[i], "-") || args[i] == "-" {
			a.program = args[i:]
			break
		}
		o, n := s.option(args[i:])
		n = min(n, len(args)-i)
		o.words = args[i : i+n]
		a.options = append(a.options, o)
		i += n
	}
	return a
}

// option reads the option at the head of args and says of how many words it is; there may be fewer.
func (s *syntax) option(args []string) (option, int) {
	word := args[0]
	name, value, set := strings.Cut(strings.TrimLeft(word, "-"), "=")
	next := func(i int) string {
		if i < len(args) {
			return args[i]
		}
		return ""
	}
	switch n, known := s.arguments[name]; {
	case s.pairs[name] && set: // -genv=NAME is no form that anything takes: left as it is
		return option{name: name, value: value}, 1
	case s.pairs[name] && strings.Contains(next(1), "="):
		return option{name: name, value: next(1)}, 2
	case s.pairs[name]:
		return option{name: name, value: next(1) + "=" + next(2)}, 3
	case set && !s.letter(word):
		return option{name: name, value: value}, 1
	case known:
		return option{name: name, value: next(1)}, 1 + n
	case s.letter(word):
		return option{name: word[1:2], value: word[2:]}, 1
	}
	return option{name: name}, 1
}

// letter tells whether the word is a letter with its argument, as -n4 or -eNAME=VALUE.
func (s *syntax) letter(word string) bool {
	if len(word) < 3 || word[1] == '-' || strings.IndexByte(s.attached, word[1]) < 0 {
		return false
	}
	name, _, _ := strings.Cut(word[1:], "=")
	_, known := s.arguments[name]
	return !known
}

// words puts a context together again, with ours before its options.
func (a *appContext) words(ours []string) []string {
	list := ours
	for _, o := range a.options {
		list = append(list, o.words...)
	}
	return append(list, a.program...)
}

// value returns the last value of an option by any of its names.
func (a *appContext) value(names ...string) (string, bool) {
	for i := len(a.options) - 1; i >= 0; i-- {
		if slices.Contains(names, a.options[i].name) {
			return a.options[i].value, true
		}
	}
	return "", false
}

// executable is the program that the context runs, "" where it names none.
func (a *appContext) executable() string {
	program := a.program
	if len(program) > 0 && program[0] == "--" {
		program = program[1:]
	}
	if len(program) == 0 {
		return ""
	}
	return program[0]
}

// executables are those of all contexts.
func executables(contexts []appContext) []string {
	var programs []string
	for i := range contexts {
		if name := contexts[i].executable(); name != "" {
			programs = append(programs, name)
		}
	}
	return programs
}

// takeVariables removes the options that set or pass on our variables, and returns the LD_PRELOAD that the last of them sets. An
// option sets when its value is NAME=VALUE.
func (a *appContext) takeVariables(names ...string) (preload string, set bool) {
	kept := a.options[:0:0]
	for _, o := range a.options {
		name, value, assigned := strings.Cut(o.value, "=")
		ours := name == "LD_PRELOAD" || name == "SIGMATRACE_CONFIG"
		if !ours || !slices.Contains(names, o.name) {
			kept = append(kept, o)
		} else if name == "LD_PRELOAD" && assigned {
			preload, set = value, true
		}
	}
	a.options = kept
	return preload, set
}

// total adds up a number that each context gives by one of the options; 0 where one does not give it.
func total(contexts []appContext, names ...string) int {
	sum := 0
	for i := range contexts {
		text, _ := contexts[i].value(names...)
		n, _ := strconv.Atoi(text)
		if n <= 0 {
			return 0
		}
		sum += n
	}
	return sum
}

// join puts the contexts behind the launcher's name again.
func join(launcher string, contexts [][]string) []string {
	argv := []string{launcher}
	for i, words := range contexts {
		if i > 0 {
			argv = append(argv, ":")
		}
		argv = append(argv, words...)
	}
	return argv
}

// environmentOption injects into each context by an option that sets one variable of the ranks as NAME=VALUE, for launchers that pass
// their own environment on as well: option is the one that we write, others are further names of it.
func (s *syntax) environmentOption(c *command, in *injection, ours string, others ...string) *plan {
	p := &plan{environ: in.environment(c)}
	var parts [][]string
	for _, a := range s.contexts(c.argv) {
		existing, set := a.takeVariables(append(others, strings.TrimLeft(ours, "-"))...)
		if !set {
			existing = c.environ["LD_PRELOAD"]
		}
		p.preload = in.preload(existing)
		parts = append(parts, a.words([]string{ours, "LD_PRELOAD=" + p.preload, ours, "SIGMATRACE_CONFIG=" + in.config}))
	}
	p.argv = join(c.argv[0], parts)
	return p
}
