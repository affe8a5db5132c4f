package profiles

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

//go:embed aggregate.toml simple.toml full.toml
var builtin embed.FS

// maxFile bounds a profile file, so that a wrong path does not read a core dump into memory.
const maxFile = 1 << 20

// nameForm keeps profile names usable as file names, in comma lists and in messages.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)

// Off is the reserved name that switches tracing off.
const Off = "off"

// File is one profile file, checked against the schema. Values are in the flat file's spelling.
type File struct {
	Name   string // the file's name without .toml
	Path   string // "" for a built-in profile
	Text   []byte // as read
	Values map[string]FileValue
}

// FileValue is a value and the line it starts in, from 1.
type FileValue struct {
	Text string
	Line int
}

// Place names the file in messages.
func (f *File) Place() string {
	if f.Path == "" {
		return "built in " + f.Name + ".toml"
	}
	return f.Path
}

func (f *File) at(line int) string { return fmt.Sprintf("%s:%d", f.Place(), line) }

func (f *File) value(key string) string { return f.Values[key].Text }

// ReadFile reads and checks the profile file at path. Problems with its content are returned as Problems, all of them.
func ReadFile(path string) (*File, error) {
	fd, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading profile: %w", err)
	}
	defer fd.Close()
	text, err := io.ReadAll(io.LimitReader(fd, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("reading profile: %w", err)
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("reading profile: %s is larger than %s", path, FormatSize(maxFile))
	}
	return parseFile(FileName(path), path, text)
}

// FileName is the profile's name that a file's path gives it.
func FileName(path string) string { return strings.TrimSuffix(filepath.Base(path), ".toml") }

// CheckName says whether a profile may have the name.
func CheckName(name string) error {
	if name == Off || !nameForm.MatchString(name) {
		return &Problem{What: fmt.Sprintf("%q cannot name a profile", name),
			Advice: "letters, digits, '_', '.' and '-', at most 63, beginning with a letter or digit; \"off\" is taken"}
	}
	return nil
}

func readBuiltin(name string) (*File, error) {
	text, err := builtin.ReadFile(name + ".toml")
	if err != nil {
		return nil, err
	}
	return parseFile(name, "", text)
}

// unquoted tells whether the value in a row, counted from 1, begins with a letter and is no word of TOML.
func unquoted(text []byte, row int) bool {
	lines := strings.Split(string(text), "\n")
	if row < 1 || row > len(lines) {
		return false
	}
	_, value, _ := strings.Cut(lines[row-1], "=")
	value, _, _ = strings.Cut(value, "#")
	value = strings.TrimSpace(value)
	return value != "" && unicode.IsLetter(rune(value[0])) && value != "true" && value != "false"
}

// parseFile parses TOML and checks every key and value against the schema.
func parseFile(name, path string, text []byte) (*File, error) {
	f := &File{Name: name, Path: path, Text: text, Values: map[string]FileValue{}}
	// The whole decoder goes first: it checks what the parser below leaves open (keys defined twice, tables reopened).
	var whole map[string]any
	if err := toml.Unmarshal(text, &whole); err != nil {
		var syntax *toml.DecodeError
		if errors.As(err, &syntax) {
			row, _ := syntax.Position()
			what := strings.TrimPrefix(syntax.Error(), "toml: ")
			if unquoted(text, row) {
				what += ": words stand in quotes"
			}
			return nil, Problems{{Where: f.at(row), What: what}}
		}
		return nil, Problems{{Where: f.Place(), What: strings.TrimPrefix(err.Error(), "toml: ")}}
	}
	var parser unstable.Parser
	parser.Reset(text)
	w := walker{file: f, parser: &parser}
	var table []string
	for parser.NextExpression() {
		switch e := parser.Expression(); e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = nil
			line := w.keys(e.Key(), &table)
			if e.Kind == unstable.ArrayTable || !isSection(strings.Join(table, ".")) {
				w.unknownTable(strings.Join(table, "."), line)
			}
		case unstable.KeyValue:
			w.keyValue(table, e)
		}
	}
	if err := parser.Error(); err != nil {
		return nil, Problems{{Where: f.Place(), What: err.Error()}}
	}
	if err := append(w.problems, f.checkNames()...).orNil(); err != nil {
		return nil, err
	}
	return f, nil
}

// walker turns the expressions of one file into values and problems.
type walker struct {
	file     *File
	parser   *unstable.Parser
	problems Problems
}

func (w *walker) line(n *unstable.Node) int {
	return w.parser.Shape(n.Raw).Start.Line
}

// keys appends the parts of a dotted key to path and returns the line of its first part.
func (w *walker) keys(it unstable.Iterator, path *[]string) int {
	line := 0
	for it.Next() {
		if line == 0 {
			line = w.line(it.Node())
		}
		*path = append(*path, string(it.Node().Data))
	}
	return line
}

func (w *walker) keyValue(table []string, e *unstable.Node) {
	path := append([]string(nil), table...)
	line := w.keys(e.Key(), &path)
	name, value := strings.Join(path, "."), e.Value()
	if value.Kind == unstable.InlineTable {
		if !isSection(name) {
			w.unknownTable(name, line)
			return
		}
		for it := value.Children(); it.Next(); {
			w.keyValue(path, it.Node())
		}
		return
	}
	if len(table) > 0 && !isSection(strings.Join(table, ".")) {
		return // the table was reported
	}
	key := findKey(name)
	if key == nil {
		w.problems = append(w.problems, unknownKey(w.file.at(line), name))
		return
	}
	text, err := w.text(key, value)
	if err == nil {
		text, err = key.Canonical(text)
	}
	if err != nil {
		w.problems = append(w.problems, at(w.file.at(line), name, err))
		return
	}
	w.file.Values[name] = FileValue{Text: text, Line: line}
}

var kindNames = map[unstable.Kind]string{unstable.String: "a string", unstable.Integer: "an integer", unstable.Float: "a float",
	unstable.Bool: "a boolean", unstable.Array: "a list"}

// text returns the value in the spelling that Canonical takes, when its TOML type fits the key.
func (w *walker) text(key *Key, n *unstable.Node) (string, error) {
	wrong := func(want string) error {
		got, ok := kindNames[n.Kind]
		if !ok {
			got = "a date or time"
		}
		return &Problem{What: got + " where " + want + " is needed"}
	}
	switch key.Kind {
	case Bool:
		if n.Kind != unstable.Bool {
			return "", wrong("true or false")
		}
	case Size:
		if n.Kind == unstable.Integer {
			return strings.ReplaceAll(string(n.Data), "_", ""), nil
		}
		if n.Kind != unstable.String {
			return "", wrong(`a size such as "256MiB"`)
		}
	case Duration:
		if n.Kind != unstable.String {
			return "", wrong(`a duration such as "30s"`)
		}
	case Number:
		if n.Kind != unstable.Integer {
			return "", wrong("a whole number")
		}
		return strings.ReplaceAll(string(n.Data), "_", ""), nil
	case Ranges, CPUs:
		if n.Kind == unstable.Integer {
			return string(n.Data), nil
		}
		if n.Kind != unstable.String {
			return "", wrong(map[Kind]string{Ranges: `a string of ranks such as "0-7,16"`, CPUs: `a string of processors such as "2-3,8"`}[key.Kind])
		}
	case List, Patterns:
		example := `["bash", "*/bin/python*"]`
		if key.Kind == List {
			example = `["` + key.Valid[0] + `"]`
		}
		if n.Kind != unstable.Array {
			return "", wrong("a list such as " + example)
		}
		var items []string
		for it := n.Children(); it.Next(); {
			if it.Node().Kind == unstable.Comment {
				continue
			}
			if it.Node().Kind != unstable.String {
				return "", wrong("a list of strings")
			}
			items = append(items, string(it.Node().Data))
		}
		if key.Kind == Patterns {
			return canonicalPatterns(items)
		}
		return key.canonicalList(items)
	default:
		if n.Kind != unstable.String {
			return "", wrong("a string")
		}
	}
	return string(n.Data), nil
}

func (w *walker) unknownTable(name string, line int) {
	w.problems = append(w.problems, &Problem{Where: w.file.at(line), What: fmt.Sprintf("unknown table [%s]", name),
		Valid: sections(), Nearest: Nearest(name, sections())})
}

// checkNames checks what the file says of itself.
func (f *File) checkNames() Problems {
	var problems Problems
	if err := CheckName(f.Name); err != nil {
		problems = append(problems, at(f.Place(), "", err))
	}
	if v, ok := f.Values["name"]; ok && v.Text != f.Name {
		problems = append(problems, &Problem{Where: f.at(v.Line), What: fmt.Sprintf("name: %q is not the file's name", v.Text),
			Advice: fmt.Sprintf("write name = %q or rename the file to %s.toml", f.Name, v.Text)})
	}
	return problems
}

func unknownKey(where, name string) *Problem {
	return &Problem{Where: where, What: fmt.Sprintf("unknown key %q", name), Valid: KeyNames(), Nearest: nearestKey(name)}
}

// nearestKey also finds a key that was written in the wrong table, or in none.
func nearestKey(name string) string {
	last := name[strings.LastIndexByte(name, '.')+1:]
	for _, k := range KeyNames() {
		if k != name && k[strings.LastIndexByte(k, '.')+1:] == last {
			return k
		}
	}
	return Nearest(name, KeyNames())
}

// sections returns the tables of the schema.
func sections() []string {
	var list []string
	for _, k := range KeyNames() {
		if section, _, ok := strings.Cut(k, "."); ok && !contains(list, section) {
			list = append(list, section)
		}
	}
	return list
}

func isSection(name string) bool { return contains(sections(), name) }
