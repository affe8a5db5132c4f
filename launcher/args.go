package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// reorder moves a command's options before its other arguments, so that `sigmatrace info RUN --json` means what
// `sigmatrace info --json RUN` does; the flag package stops at the first argument. launch keeps its order: what follows the command
// is the command's.
func reorder(table []*cli.Command, args []string) []string {
	var c *cli.Command
	i := 1
	for ; i < len(args); i++ {
		at := slices.IndexFunc(table, func(c *cli.Command) bool { return c.HasName(args[i]) })
		if at < 0 {
			break
		}
		c, table = table[at], table[at].Subcommands
	}
	if c == nil || c.Name == "launch" || len(c.Subcommands) > 0 {
		return args
	}
	var options, others []string
	for rest := args[i:]; len(rest) > 0; rest = rest[1:] {
		word := rest[0]
		if word == "--" {
			others = append(others, rest[1:]...)
			break
		}
		if word == "-" || !strings.HasPrefix(word, "-") {
			others = append(others, word)
			continue
		}
		options = append(options, word)
		if takesValue(c, word) && len(rest) > 1 {
			rest = rest[1:]
			options = append(options, rest[0])
		}
	}
	out := append(slices.Clone(args[:i]), options...)
	return append(append(out, "--"), others...)
}

// takesValue says whether the option's value is the next word.
func takesValue(c *cli.Command, word string) bool {
	if strings.Contains(word, "=") {
		return false
	}
	for _, f := range c.Flags {
		if d, ok := f.(cli.DocGenerationFlag); ok && slices.Contains(f.Names(), strings.TrimLeft(word, "-")) {
			return d.TakesValue()
		}
	}
	return false
}
