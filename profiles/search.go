package profiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// SiteDirectory holds the profiles that an administrator gives to all users.
const SiteDirectory = "/etc/sigmatrace/profiles"

// Search is an ordered list of directories with profile files; the built-in profiles follow the last one.
type Search struct {
	Dirs []string
}

// DefaultSearch is $SIGMATRACE_PROFILE_PATH (a colon list), the user's configuration directory, the site's directory.
func DefaultSearch(getenv func(string) string) Search {
	var s Search
	for dir := range strings.SplitSeq(getenv("SIGMATRACE_PROFILE_PATH"), ":") {
		if dir != "" {
			s.Dirs = append(s.Dirs, dir)
		}
	}
	if dir := UserDirectory(getenv); dir != "" {
		s.Dirs = append(s.Dirs, dir)
	}
	s.Dirs = append(s.Dirs, SiteDirectory)
	return s
}

// UserDirectory is the user's own profile directory, as os.UserConfigDir has it but by getenv; "" where there is no home.
func UserDirectory(getenv func(string) string) string {
	if dir := getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sigmatrace", "profiles")
	}
	if home := getenv("HOME"); home != "" {
		return filepath.Join(home, ".config", "sigmatrace", "profiles")
	}
	return ""
}

// IsPath says whether a profile argument names a file and not a profile on the search path.
func IsPath(arg string) bool {
	return strings.ContainsRune(arg, '/') || strings.HasSuffix(arg, ".toml")
}

// Find returns the profile that arg means: the file at that path, or the first of that name on the search path.
func (s Search) Find(arg string) (*File, error) {
	if IsPath(arg) {
		return ReadFile(arg)
	}
	f, err := s.findAfter(arg, -1)
	if errors.Is(err, fs.ErrNotExist) {
		names := s.names()
		return nil, &Problem{What: fmt.Sprintf("unknown profile %q%s", arg, s.unreadable()), Valid: names, Nearest: Nearest(arg, names)}
	}
	return f, err
}

// unreadable says which directories were not looked through, " (DIR cannot be read)".
func (s Search) unreadable() string {
	for _, dir := range s.Dirs {
		if _, err := os.ReadDir(dir); errors.Is(err, fs.ErrPermission) {
			return fmt.Sprintf(" (%s cannot be read)", dir)
		}
	}
	return ""
}

// findAfter looks for name in the directories behind index after (-1: in all), then among the built-in ones.
func (s Search) findAfter(name string, after int) (*File, error) {
	for _, dir := range s.Dirs[after+1:] {
		path := filepath.Join(dir, name+".toml")
		f, err := ReadFile(path)
		if err == nil || !absent(path, err) {
			return f, err
		}
	}
	return readBuiltin(name)
}

// absent says whether a file that could not be read is none for us: it is not there, or its directory cannot even be searched, as with
// the home of another user or one that is /dev/null. A file that is there and cannot be read is an error.
func absent(path string, err error) bool {
	if errors.Is(err, fs.ErrPermission) {
		_, err = os.Stat(path)
		return errors.Is(err, fs.ErrPermission)
	}
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

// parent returns the profile that f extends. A file that extends its own name means the next of that name on the search path, so
// that a user's simple.toml may extend the built-in one.
func (s Search) parent(f *File) (*File, error) {
	v := f.Values["extends"]
	if IsPath(v.Text) {
		path := v.Text
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(f.Path), path)
		}
		p, err := ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, &Problem{Where: f.at(v.Line), What: fmt.Sprintf("extends: there is no file %s", path)}
		}
		return p, err
	}
	after := -1
	if v.Text == f.Name {
		after = s.index(f)
	}
	p, err := s.findAfter(v.Text, after)
	if errors.Is(err, fs.ErrNotExist) {
		names := s.names()
		return nil, &Problem{Where: f.at(v.Line), What: fmt.Sprintf("extends: unknown profile %q", v.Text), Valid: names, Nearest: Nearest(v.Text, names)}
	}
	return p, err
}

// index is the place of f's directory on the search path, or -1 where f lies elsewhere.
func (s Search) index(f *File) int {
	for i, dir := range s.Dirs {
		if f.Path != "" && filepath.Clean(dir) == filepath.Dir(f.Path) {
			return i
		}
	}
	return -1
}

// Chain returns f and the profiles it extends, the nearest first.
func (s Search) Chain(f *File) ([]*File, error) {
	chain := []*File{f}
	for f.value("extends") != "" {
		next, err := s.parent(f)
		if err != nil {
			return nil, err
		}
		for i, seen := range chain {
			if sameFile(seen, next) {
				return nil, cycle(append(chain[i:], next))
			}
		}
		chain, f = append(chain, next), next
	}
	return chain, nil
}

func sameFile(a, b *File) bool {
	if a.Path == "" || b.Path == "" {
		return a.Path == b.Path && a.Name == b.Name
	}
	ia, errA := os.Stat(a.Path)
	ib, errB := os.Stat(b.Path)
	return errA == nil && errB == nil && os.SameFile(ia, ib)
}

func cycle(files []*File) error {
	places := make([]string, len(files))
	for i, f := range files {
		places[i] = f.Place()
	}
	last := files[len(files)-2]
	return &Problem{Where: last.at(last.Values["extends"].Line), What: "extends goes in a circle: " + strings.Join(places, " -> ")}
}

// Listed is one profile on the search path.
type Listed struct {
	Name        string   `json:"name"`
	Path        string   `json:"path"` // "" for a built-in profile
	Description string   `json:"description"`
	Error       string   `json:"error,omitempty"` // why the file cannot be used
	Hides       []string `json:"hides,omitempty"` // files of the same name behind it; "built in" for a built-in one
}

// List returns the profiles on the search path by name, each with the files that it hides.
func (s Search) List() []Listed {
	byName := map[string]*Listed{}
	add := func(name, path string, read func() (*File, error)) {
		if l := byName[name]; l != nil {
			if path == "" {
				path = "built in"
			}
			l.Hides = append(l.Hides, path)
			return
		}
		l := &Listed{Name: name, Path: path}
		if f, err := read(); err != nil {
			l.Error = err.Error()
		} else {
			l.Description = f.value("description")
		}
		byName[name] = l
	}
	for _, dir := range s.Dirs {
		paths, _ := filepath.Glob(filepath.Join(escapeGlob(dir), "*.toml"))
		for _, path := range paths {
			add(strings.TrimSuffix(filepath.Base(path), ".toml"), path, func() (*File, error) { return ReadFile(path) })
		}
	}
	for _, name := range builtinNames() {
		add(name, "", func() (*File, error) { return readBuiltin(name) })
	}
	list := make([]Listed, 0, len(byName))
	for _, l := range byName {
		list = append(list, *l)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	return list
}

func (s Search) names() []string {
	var names []string
	for _, l := range s.List() {
		names = append(names, l.Name)
	}
	return names
}

func builtinNames() []string {
	entries, _ := builtin.ReadDir(".")
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".toml"))
	}
	return names
}

// escapeGlob makes a directory's name literal for filepath.Glob.
func escapeGlob(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}
