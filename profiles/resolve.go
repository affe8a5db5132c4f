package profiles

import (
	"cmp"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"
)

// DefaultProfile is used when nobody names one.
const DefaultProfile = "simple"

// Request says what to resolve. Precedence, lowest first: built-in defaults, profile files, environment, command line.
type Request struct {
	Profile   string            // name or path from the command line; empty: $SIGMATRACE_PROFILE, else DefaultProfile
	By        string            // who named Profile, for messages; empty: "command line"
	Providers string            // --providers, comma separated; empty: not given
	Set       []string          // --set key=value, in order
	SetOption string            // what the option of these is called, for messages; empty: --set
	Environ   map[string]string // the environment's twins; nil: none
	Output    string            // the site's output.directory, which holds where only a built-in profile names one; empty: none
	Relative  bool              // a job's relative output.directory stays so: each job's own working directory counts
	Search    Search
}

// Value is a resolved value and where it came from.
type Value struct {
	Key    *Key
	Text   string // the flat file's spelling
	Source string // "path/simple.toml:12", "built in simple.toml:12", "environment SIGMATRACE_MODE", "command line --set", "default"
}

// Resolved is a profile with every key decided.
type Resolved struct {
	Name   string
	Path   string // "" for a built-in profile
	Chain  []*File
	ByName string // who named the profile: "command line", "environment SIGMATRACE_PROFILE", "default"
	values map[string]Value
}

// Environ turns os.Environ's form into a map; a name set twice keeps the first value, as getenv does.
func Environ(list []string) map[string]string {
	m := make(map[string]string, len(list))
	for _, kv := range list {
		if name, value, ok := strings.Cut(kv, "="); ok {
			if _, seen := m[name]; !seen {
				m[name] = value
			}
		}
	}
	return m
}

// Named returns the profile argument that holds and who gave it.
func (r *Request) Named() (name, by string) {
	if r.Profile != "" {
		return r.Profile, cmp.Or(r.By, "command line")
	}
	if name := r.Environ["SIGMATRACE_PROFILE"]; name != "" {
		return name, "environment SIGMATRACE_PROFILE"
	}
	return DefaultProfile, "default"
}

// Resolve finds the profile and decides every key. The error is a *Problem, Problems, or one of reading a file.
func Resolve(r Request) (*Resolved, error) {
	name, by := r.Named()
	if name == Off {
		return nil, &Problem{Where: by, What: `"off" switches tracing off: there is nothing to resolve`}
	}
	f, err := r.Search.Find(name)
	if err != nil {
		if p, ok := err.(*Problem); ok && p.Where == "" {
			return nil, at(by, "", p)
		}
		return nil, err
	}
	chain, err := r.Search.Chain(f)
	if err != nil {
		return nil, err
	}
	res := &Resolved{Name: f.Name, Path: f.Path, Chain: chain, ByName: by, values: map[string]Value{}}
	res.applyFiles()
	problems := res.applySite(r.Output)
	problems = append(problems, res.applyEnvironment(r.Environ)...)
	problems = append(problems, res.applyCommandLine(r)...)
	res.completeProviders()
	problems = append(problems, res.checkTogether()...)
	if err := problems.orNil(); err != nil {
		return nil, err
	}
	return res, nil
}

func (res *Resolved) applyFiles() {
	for i := range Keys {
		k := &Keys[i]
		v := Value{Key: k, Text: k.Default, Source: "default"}
		for _, f := range res.Chain {
			if fv, ok := f.Values[k.Name]; ok {
				v.Text, v.Source = fv.Text, f.at(fv.Line)
				break
			}
			if k.FileOnly { // what a file says of itself is not inherited
				break
			}
		}
		res.values[k.Name] = v
	}
	if res.Text("name") == "" {
		res.values["name"] = Value{Key: findKey("name"), Text: res.Name, Source: res.Chain[0].Place()}
	}
}

// applySite sets the site's base for run directories, where no file of a user's or the site's says otherwise.
func (res *Resolved) applySite(output string) Problems {
	key := findKey("output.directory")
	for _, f := range res.Chain {
		if _, says := f.Values[key.Name]; says && f.Path != "" {
			return nil
		}
	}
	if output == "" {
		return nil
	}
	return res.set(key, output, "the site's output", "site")
}

// variables that belong to sigmatrace and are not twins of a key.
var otherVariables = []string{"SIGMATRACE", "SIGMATRACE_CONFIG", "SIGMATRACE_LIBDIR", "SIGMATRACE_PROFILE", "SIGMATRACE_PROFILE_PATH"}

func (res *Resolved) applyEnvironment(environ map[string]string) Problems {
	twins, known := map[string]*Key{}, append([]string(nil), otherVariables...)
	for i := range Keys {
		if v := Keys[i].Variable(); v != "" {
			twins[v] = &Keys[i]
			known = append(known, v)
		}
	}
	var names []string
	for name, value := range environ {
		if strings.HasPrefix(name, "SIGMATRACE_") && value != "" {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	var problems Problems
	for _, name := range names {
		key := twins[name]
		switch {
		case key == nil && !contains(known, name):
			if p := misspelt(name, known); p != nil {
				problems = append(problems, p)
			}
		case key != nil:
			problems = append(problems, res.set(key, environ[name], name, "environment "+name)...)
		}
	}
	return problems
}

// misspelt returns the problem of an unknown variable that was meant for a profile: it is in one of the schema's sections, ends like
// a key, or is much like a known one. Other variables that begin with SIGMATRACE_ belong to somebody else: nil.
func misspelt(name string, known []string) *Problem {
	rest := strings.TrimPrefix(name, "SIGMATRACE_")
	p := &Problem{Where: name, What: "unknown variable", Valid: known, Nearest: nearestVariable(rest, known)}
	for _, section := range sections() {
		if strings.HasPrefix(rest, strings.ToUpper(section)+"_") {
			return p
		}
	}
	if p.Nearest == "" {
		return nil
	}
	return p
}

// nearestVariable compares what follows the prefix that all have in common.
func nearestVariable(rest string, known []string) string {
	var rests []string
	for _, k := range known {
		if strings.HasSuffix(k, "_"+rest) {
			return k
		}
		rests = append(rests, strings.TrimPrefix(k, "SIGMATRACE_"))
	}
	if nearest := Nearest(rest, rests); nearest != "" {
		return "SIGMATRACE_" + nearest
	}
	return ""
}

func (res *Resolved) applyCommandLine(r Request) Problems {
	var problems Problems
	if r.Providers != "" {
		problems = res.set(findKey("providers"), r.Providers, "--providers", "command line --providers")
	}
	option := cmp.Or(r.SetOption, "--set")
	for _, kv := range r.Set {
		name, text, ok := strings.Cut(kv, "=")
		where := option + " " + name
		if !ok {
			problems = append(problems, &Problem{Where: where, What: "no value", Advice: "write " + option + " key=value"})
			continue
		}
		key := findKey(name)
		if key == nil || key.FileOnly {
			p := unknownKey(where, name)
			p.Valid = settable()
			problems = append(problems, p)
			continue
		}
		problems = append(problems, res.set(key, text, where, "command line --set")...)
	}
	return problems
}

func (res *Resolved) set(key *Key, text, where, source string) Problems {
	canonical, err := key.Canonical(text)
	if err != nil {
		return Problems{at(where, "", err)}
	}
	res.values[key.Name] = Value{Key: key, Text: canonical, Source: source}
	return nil
}

// completeProviders selects what the selected providers need, and says so.
func (res *Resolved) completeProviders() {
	v, selected := res.values["providers"], res.List("providers")
	all := withNeeds(selected)
	if more := all[len(selected):]; len(more) > 0 {
		v.Text = strings.Join(all, ",")
		v.Source += " (needed by others: " + strings.Join(more, ", ") + ")"
		res.values["providers"] = v
	}
}

// minChunks is how many chunks a budget must hold: the recorder reserves some for tables and definitions.
const minChunks = 8

// checkTogether checks what no key can by itself.
func (res *Resolved) checkTogether() Problems {
	if start, control := res.values["window.start"], res.values["window.control"]; start.Text == "closed" && !res.Bool("window.control") {
		return Problems{{Where: start.Source, Advice: `leave one of them out, or set mode = "aggregate" where no events are wanted`,
			What: fmt.Sprintf("window.start: with closed and window.control = false (%s) the window never opens", control.Source)}}
	}
	budget, chunk := res.values["record.budget"], res.values["record.chunk"]
	if res.Size("record.budget") >= minChunks*res.Size("record.chunk") {
		return nil
	}
	return Problems{{Where: budget.Source, Advice: "raise record.budget or lower record.chunk",
		What: fmt.Sprintf("record.budget: %s is less than %d chunks of %s (record.chunk, %s)", budget.Key.Readable(budget.Text), minChunks,
			chunk.Key.Readable(chunk.Text), chunk.Source)}}
}

func settable() []string {
	var names []string
	for i := range Keys {
		if !Keys[i].FileOnly {
			names = append(names, Keys[i].Name)
		}
	}
	return names
}

// Values returns every key's value in schema order.
func (res *Resolved) Values() []Value {
	list := make([]Value, len(Keys))
	for i := range Keys {
		list[i] = res.values[Keys[i].Name]
	}
	return list
}

// Text returns a value in the flat file's spelling.
func (res *Resolved) Text(key string) string { return res.values[key].Text }

// Size returns the value of a Size key in bytes.
func (res *Resolved) Size(key string) int64 {
	n, err := strconv.ParseInt(res.Text(key), 10, 64)
	if err != nil {
		panic(fmt.Sprintf("profiles: %s is not a size key", key)) // every Size value went through Canonical
	}
	return n
}

// Bool returns the value of a Bool key.
func (res *Resolved) Bool(key string) bool { return res.Text(key) == "true" }

// Duration returns the value of a Duration key.
func (res *Resolved) Duration(key string) time.Duration {
	d, err := parseDuration(res.Text(key))
	if err != nil {
		panic(fmt.Sprintf("profiles: %s is not a duration key", key)) // every Duration value went through Canonical
	}
	return d
}

// Number returns the value of a Number key.
func (res *Resolved) Number(key string) int {
	n, err := strconv.Atoi(res.Text(key))
	if err != nil {
		panic(fmt.Sprintf("profiles: %s is not a number key", key)) // every Number value went through Canonical
	}
	return n
}

// List returns the value of a List key.
func (res *Resolved) List(key string) []string {
	if res.Text(key) == "" {
		return nil
	}
	return strings.Split(res.Text(key), ",")
}
