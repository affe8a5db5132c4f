package main

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/sigmatrace/sigmatrace/profiles"
	"github.com/urfave/cli/v2"
)

// manuals are the written parts of the manual pages, in Markdown: COMMAND.md goes into the page of that command, text before its first heading into the
// description and the rest behind the options; NAME.SECTION.md is a page of its own.
//
//go:embed manual/*.md
var manuals embed.FS

// manualCommand writes the manual pages. What they say of commands and options is made from their definitions.
func manualCommand() *cli.Command {
	return &cli.Command{Name: "manual", Usage: "write the manual pages into a directory", ArgsUsage: "DIR", Hidden: true, Action: writeManual}
}

func writeManual(c *cli.Context) error {
	if c.NArg() != 1 {
		return &usageError{err: fmt.Errorf("manual takes one directory, not %d arguments", c.NArg())}
	}
	pages, err := manualPages(c.App)
	if err != nil {
		return err
	}
	for name, text := range pages {
		dir := filepath.Join(c.Args().First(), "man"+name[strings.LastIndexByte(name, '.')+1:])
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return fmt.Errorf("making a directory for manual pages: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), md2man.Render([]byte(text)), 0o666); err != nil {
			return fmt.Errorf("writing a manual page: %w", err)
		}
	}
	return nil
}

// manualPages are the pages in Markdown by the names of their files, such as sigmatrace-launch.1.
func manualPages(app *cli.App) (map[string]string, error) {
	pages := map[string]string{}
	var all []*cli.Command
	for _, c := range app.Commands {
		if c.Hidden || c.Name == "help" {
			continue
		}
		all = append(all, c)
		intro, rest, err := written(c.Name)
		if err != nil {
			return nil, err
		}
		pages["sigmatrace-"+c.Name+".1"] = commandPage(app, c, intro, rest)
	}
	intro, rest, err := written("sigmatrace")
	if err != nil {
		return nil, err
	}
	pages["sigmatrace.1"] = mainPage(app, all, intro, rest)
	return pages, fs.WalkDir(manuals, ".", func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimSuffix(filepath.Base(path), ".md")
		if err != nil || d.IsDir() || !strings.Contains(name, ".") {
			return err
		}
		text, err := manuals.ReadFile(path)
		stem, section, _ := strings.Cut(name, ".")
		pages[name] = title(app, stem, section) + string(text)
		return err
	})
}

// written returns the parts of manual/NAME.md before and from its first heading on; both are empty where there is none.
func written(name string) (intro, rest string, err error) {
	text, err := manuals.ReadFile("manual/" + name + ".md")
	if os.IsNotExist(err) {
		return "", "", nil
	}
	if at := strings.Index("\n"+string(text), "\n# "); at >= 0 {
		return string(text[:at]), string(text[at:]), err
	}
	return string(text), "", err
}

func title(app *cli.App, name, section string) string {
	return fmt.Sprintf("%% %s %s \"\" \"sigmatrace %s\" \"sigmatrace\"\n\n", strings.ToUpper(name), section, app.Version)
}

func commandPage(app *cli.App, c *cli.Command, intro, rest string) string {
	var b strings.Builder
	name := app.Name + "-" + c.Name
	b.WriteString(title(app, name, "1"))
	fmt.Fprintf(&b, "# NAME\n%s - %s\n\n# SYNOPSIS\n", name, escaped(c.Usage))
	if len(c.Subcommands) == 0 {
		b.WriteString(synopsis(app.Name+" "+c.Name, c))
	}
	for _, sub := range c.Subcommands {
		if !sub.Hidden {
			b.WriteString(synopsis(app.Name+" "+c.Name+" "+sub.Name, sub))
		}
	}
	fmt.Fprintf(&b, "# DESCRIPTION\n%s\n\n%s\n", sentence(c), intro)
	options(&b, "# OPTIONS\n", c.Flags)
	for i, sub := range c.Subcommands {
		if i == 0 {
			b.WriteString("# COMMANDS\n")
		}
		if !sub.Hidden {
			fmt.Fprintf(&b, "## %s %s\n%s\n\n", c.Name, sub.Name, sentence(sub))
			options(&b, "", sub.Flags)
		}
	}
	if c.Name == "profile" {
		b.WriteString(profileKeys())
	}
	b.WriteString(rest)
	if !strings.Contains(rest, "\n# EXIT STATUS\n") {
		b.WriteString("\n# EXIT STATUS\n0 where it succeeded, 1 where it failed, 2 where the command line was wrong.\n")
	}
	b.WriteString("\n# SEE ALSO\n**sigmatrace**(1)\n")
	return b.String()
}

func mainPage(app *cli.App, all []*cli.Command, intro, rest string) string {
	var b strings.Builder
	b.WriteString(title(app, app.Name, "1"))
	fmt.Fprintf(&b, "# NAME\n%s - %s\n\n# SYNOPSIS\n**%s** *COMMAND* [*OPTION*...] [*ARGUMENT*...]\n\n# DESCRIPTION\n%s\n", app.Name, escaped(app.Usage), app.Name, intro)
	options(&b, "# OPTIONS\n", []cli.Flag{cli.HelpFlag, cli.VersionFlag})
	b.WriteString("# COMMANDS\n")
	see := []string{"**sigmatrace-slurm**(7)"}
	for _, c := range all {
		fmt.Fprintf(&b, "**%s-%s**(1)\n:   %s\n\n", app.Name, c.Name, escaped(c.Usage))
		see = append(see, fmt.Sprintf("**%s-%s**(1)", app.Name, c.Name))
	}
	fmt.Fprintf(&b, "%s\n# SEE ALSO\n%s\n", rest, strings.Join(see, ", "))
	return b.String()
}

func synopsis(name string, c *cli.Command) string {
	text := "**" + name + "**"
	if len(c.Flags) > 0 {
		text += " [*OPTION*...]"
	}
	if c.ArgsUsage != "" {
		text += " " + escaped(c.ArgsUsage)
	}
	return text + "\n\n"
}

// sentence is what the help says of a command.
func sentence(c *cli.Command) string {
	text := escaped(strings.ToUpper(c.Usage[:1])+c.Usage[1:]) + "."
	if c.Description != "" {
		text += " " + escaped(c.Description)
	}
	return text
}

func options(b *strings.Builder, heading string, flags []cli.Flag) {
	for _, f := range flags {
		doc, is := f.(cli.DocGenerationFlag)
		if v, has := f.(cli.VisibleFlag); !is || has && !v.IsVisible() {
			continue
		}
		b.WriteString(heading)
		heading = ""
		before, rest, found := strings.Cut(doc.GetUsage(), "`")
		placeholder, after, _ := strings.Cut(rest, "`")
		var names []string
		for _, n := range f.Names() {
			names = append(names, "**"+dashed(n)+"**")
		}
		term := strings.Join(names, ", ")
		if doc.TakesValue() {
			if !found {
				placeholder = "VALUE"
			}
			term += " *" + escaped(placeholder) + "*"
		}
		text := escaped(before)
		if found {
			text += "*" + escaped(placeholder) + "*" + escaped(after)
		}
		if value := strings.Trim(doc.GetValue(), `"`); doc.TakesValue() && value != "" && value != "[]" {
			text += " (default: " + escaped(value) + ")"
		}
		fmt.Fprintf(b, "%s\n:   %s\n\n", term, text)
	}
}

func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// profileKeys is the section on the keys of profiles.
func profileKeys() string {
	var b strings.Builder
	b.WriteString("# KEYS\nWhat a profile may hold; all but what a file says of itself can be set by **--set** *key*=*value* and by the variable beside it.\n\n")
	for _, k := range profiles.Keys {
		term := "**" + escaped(k.Name) + "**"
		if env := k.Variable(); env != "" {
			term += ", " + escaped(env)
		}
		text := escaped(k.Doc) + " Values: " + escaped(k.Describe()) + "."
		if k.Default != "" {
			text += " Default: " + escaped(k.Readable(k.Default)) + "."
		}
		fmt.Fprintf(&b, "%s\n:   %s\n\n", term, text)
	}
	return b.String()
}

// escaped makes Markdown of text in which nothing is meant as such.
func escaped(text string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "_", `\_`, "`", "\\`", "[", `\[`, "]", `\]`, "<", `\<`, "|", `\|`, "\n", " ").Replace(text)
}
