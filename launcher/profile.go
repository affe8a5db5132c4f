package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"text/tabwriter"

	"github.com/sigmatrace/sigmatrace/profiles"
	"github.com/urfave/cli/v2"
)

func profileCommand() *cli.Command {
	asJSON := &cli.BoolFlag{Name: "json", Usage: "print JSON"}
	values := append(profileFlags()[1:], asJSON)
	return &cli.Command{
		Name:  "profile",
		Usage: "list, show, validate and copy trace profiles",
		Subcommands: []*cli.Command{
			{Name: "list", Usage: "list the profiles that can be named", Flags: []cli.Flag{asJSON}, Action: profileList},
			{Name: "show", Usage: "print a profile's values as TOML, without environment and command line", ArgsUsage: "[PROFILE]",
				Flags: []cli.Flag{asJSON}, Action: profileShow},
			{Name: "explain", Usage: "print every key's value and where it came from", ArgsUsage: "[PROFILE]", Flags: values, Action: profileExplain},
			{Name: "validate", Usage: "check profiles (all that can be named, unless some are given)", ArgsUsage: "[PROFILE...]", Action: profileValidate},
			{Name: "export", Usage: "write a commented copy of a profile to your own profile directory", ArgsUsage: "PROFILE [NEW-NAME]",
				Flags:  []cli.Flag{&cli.StringFlag{Name: "o", Usage: "write to `FILE`, - for standard output"}},
				Action: profileExport},
			{Name: "resolve", Usage: "write the flat file that the recorder reads", ArgsUsage: "[PROFILE]",
				Flags: append(profileFlags()[1:],
					&cli.StringFlag{Name: "o", Usage: "write to `FILE` instead of standard output"},
					&cli.StringFlag{Name: "capture", Usage: "record into `DIR`", Value: "capture"},
					&cli.StringFlag{Name: "run-name", Usage: "call the run `NAME`"},
					&cli.IntFlag{Name: "world", Usage: "expect `N` ranks; 0 where it is not known"},
					&cli.BoolFlag{Name: "job", Usage: "print what travels with a job instead (spank/README.md)"},
					&cli.BoolFlag{Name: "relative", Usage: "with --job, leave a relative output.directory to each job's working directory"},
					&cli.StringFlag{Name: "named-by", Usage: "with --job, from the plugin: `WHO` named the profile, for messages"},
					&cli.StringFlag{Name: "site-profiles", Usage: "look for profiles in `DIR` in the place of " + profiles.SiteDirectory},
					&cli.StringFlag{Name: "site-output", Usage: "make run directories in `DIR`, where no profile but a built-in one says where"},
					&cli.BoolFlag{Name: "site-only", Usage: "take profiles of the site only, and no variables"}),
				Action: profileResolve},
		},
	}
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// profileArgument returns the only argument, "" where there is none.
func profileArgument(c *cli.Context, most int) (string, error) {
	if c.NArg() > most {
		return "", &usageError{err: fmt.Errorf("%d arguments; at most %d are taken", c.NArg(), most), hint: fmt.Sprintf("see `%s --help`", c.Command.HelpName)}
	}
	return c.Args().First(), nil
}

func profileList(c *cli.Context) error {
	if _, err := profileArgument(c, 0); err != nil {
		return err
	}
	list := profiles.DefaultSearch(os.Getenv).List()
	if c.Bool("json") {
		return printJSON(c.App.Writer, list)
	}
	t := tabwriter.NewWriter(c.App.Writer, 0, 0, 2, ' ', 0)
	for _, l := range list {
		what := l.Description
		if l.Error != "" {
			what = "cannot be used: " + oneLine(l.Error)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", l.Name, place(l.Path), what)
		for _, hidden := range l.Hides {
			fmt.Fprintf(t, "\t%s\t(hidden by the one above)\n", hidden)
		}
	}
	return t.Flush()
}

func place(path string) string {
	if path == "" {
		return "built in"
	}
	return path
}

// fileValues resolves a profile from its files alone.
func fileValues(name string) (*profiles.Resolved, error) {
	return profiles.Resolve(profiles.Request{Profile: name, Search: profiles.DefaultSearch(os.Getenv)})
}

func profileShow(c *cli.Context) error {
	name, err := profileArgument(c, 1)
	if err != nil {
		return err
	}
	res, err := fileValues(name)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(c.App.Writer, jsonValues(res))
	}
	_, err = c.App.Writer.Write(res.TOML(res.Name, false))
	return err
}

// jsonValues maps keys to values: numbers of bytes, booleans, lists and strings.
func jsonValues(res *profiles.Resolved) map[string]any {
	m := map[string]any{}
	for _, v := range res.Values() {
		m[v.Key.Name] = jsonValue(res, v)
	}
	return m
}

func jsonValue(res *profiles.Resolved, v profiles.Value) any {
	switch v.Key.Kind {
	case profiles.Size:
		return res.Size(v.Key.Name)
	case profiles.Bool:
		return res.Bool(v.Key.Name)
	case profiles.List:
		return append([]string{}, res.List(v.Key.Name)...)
	}
	return v.Text
}

// resolveArgument resolves the profile in the first argument with environment and command line.
func resolveArgument(c *cli.Context) (*profiles.Resolved, error) {
	name, err := profileArgument(c, 1)
	if err != nil {
		return nil, err
	}
	req := request(c)
	req.Profile = name
	return profiles.Resolve(req)
}

func profileExplain(c *cli.Context) error {
	res, err := resolveArgument(c)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		type explained struct {
			Value  any    `json:"value"`
			Source string `json:"source"`
		}
		keys := map[string]explained{}
		for _, v := range res.Values() {
			keys[v.Key.Name] = explained{jsonValue(res, v), v.Source}
		}
		return printJSON(c.App.Writer, map[string]any{"profile": res.Name, "named_by": res.ByName, "values": keys})
	}
	t := tabwriter.NewWriter(c.App.Writer, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "profile\t%s\t%s\n", res.Name, res.ByName)
	for _, v := range res.Values() {
		fmt.Fprintf(t, "%s\t%s\t%s\n", v.Key.Name, show(v), v.Source)
	}
	return t.Flush()
}

func show(v profiles.Value) string {
	if v.Text == "" {
		return `""`
	}
	return v.Key.Readable(v.Text)
}

func profileValidate(c *cli.Context) error {
	names := c.Args().Slice()
	if len(names) == 0 {
		for _, l := range profiles.DefaultSearch(os.Getenv).List() {
			names = append(names, l.Name)
		}
	}
	status := 0
	for _, name := range names {
		res, err := fileValues(name)
		if err != nil {
			status = max(status, report(c.App.ErrWriter, err))
			continue
		}
		fmt.Fprintf(c.App.Writer, "%s: valid (%s)\n", res.Name, res.Chain[0].Place())
	}
	setStatus(c, status)
	return nil
}

func profileExport(c *cli.Context) error {
	name, err := profileArgument(c, 2)
	if err != nil {
		return err
	}
	if name == "" {
		return &usageError{err: errors.New("no profile to export"), hint: "sigmatrace profile export PROFILE [NEW-NAME]"}
	}
	res, err := fileValues(name)
	if err != nil {
		return err
	}
	newName, file := c.Args().Get(1), c.String("o")
	switch {
	case newName == "" && file != "" && file != "-":
		newName = profiles.FileName(file)
	case newName == "":
		newName = res.Name
	}
	if err := profiles.CheckName(newName); err != nil {
		return err
	}
	text := res.TOML(newName, true)
	if file == "-" {
		_, err = c.App.Writer.Write(text)
		return err
	}
	if file == "" {
		dir := profiles.UserDirectory(os.Getenv)
		if dir == "" {
			return failf("name a file with -o", "there is no home directory to write to")
		}
		file = filepath.Join(dir, newName+".toml")
	}
	if err := writeNew(file, text); err != nil {
		return err
	}
	note(c.App.ErrWriter, "wrote %s", file)
	return nil
}

// writeNew writes a file that must not exist.
func writeNew(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return fmt.Errorf("writing profile: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, os.ErrExist) {
		return failf("give another name, or another file with -o", "%s exists; it is left as it is", path)
	}
	if err != nil {
		return fmt.Errorf("writing profile: %w", err)
	}
	_, err = f.Write(text)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("writing profile: %w", err)
	}
	return nil
}

func profileResolve(c *cli.Context) error {
	if c.Bool("job") {
		return resolveForJob(c)
	}
	res, err := resolveArgument(c)
	if err != nil {
		return err
	}
	capture, err := filepath.Abs(c.String("capture"))
	if err != nil {
		return fmt.Errorf("capture directory: %w", err)
	}
	if c.Int("world") < 0 {
		return &usageError{err: errors.New("--world " + strconv.Itoa(c.Int("world")) + " is negative")}
	}
	flat := &profiles.Flat{Profile: res, Capture: capture, Run: c.String("run-name"), World: c.Int("world")}
	if file := c.String("o"); file != "" {
		return flat.WriteFile(file)
	}
	text, err := flat.Bytes()
	if err != nil {
		return err
	}
	_, err = c.App.Writer.Write(text)
	return err
}
