package profiles

import (
	"fmt"
	"strings"
)

// TOML writes the resolved values as a profile file that stands alone. With comments each key is described, and keys that have
// their default are written as comments, so that the file says what its author decided.
func (res *Resolved) TOML(name string, comments bool) []byte {
	var b strings.Builder
	if comments {
		fmt.Fprintf(&b, "# %s: made from %s. Lines that begin with '#' and a key show defaults.\n\n", name, res.Chain[0].Place())
	}
	fmt.Fprintf(&b, "name = %s\n", tomlString(name))
	if d := res.Text("description"); d != "" {
		fmt.Fprintf(&b, "description = %s\n", tomlString(d))
	}
	section := ""
	for _, v := range res.Values() {
		if v.Key.FileOnly {
			continue
		}
		key := v.Key.Name
		if s, rest, ok := strings.Cut(key, "."); ok {
			if s != section {
				section = s
				fmt.Fprintf(&b, "\n[%s]\n", s)
			}
			key = rest
		}
		mark := ""
		if comments {
			fmt.Fprintf(&b, "\n%s", comment(fmt.Sprintf("%s Values: %s. (%s)", v.Key.Doc, v.Key.Describe(), v.Key.Variable())))
			if v.Source == "default" || v.Text == v.Key.Default {
				mark = "# "
			}
		}
		fmt.Fprintf(&b, "%s%s = %s\n", mark, key, v.toml())
	}
	return []byte(b.String())
}

func (v Value) toml() string {
	switch v.Key.Kind {
	case Bool, Number:
		return v.Text
	case Duration:
		return tomlString(v.Key.Readable(v.Text))
	case Size:
		if readable := v.Key.Readable(v.Text); readable != v.Text {
			return tomlString(readable)
		}
		return v.Text
	case List, Patterns:
		var items []string
		for item := range strings.SplitSeq(v.Text, ",") {
			if item != "" {
				items = append(items, tomlString(item))
			}
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	return tomlString(v.Text)
}

// tomlString quotes text as a basic string. Values hold no control characters, so Go's escapes of them never arise; what is not
// ASCII is kept, as both languages take it.
func tomlString(text string) string {
	if strings.ContainsAny(text, `"\`) {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
	}
	return `"` + text + `"`
}

// comment wraps text at 110 columns into comment lines.
func comment(text string) string {
	var b strings.Builder
	line := "#"
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > 110 {
			b.WriteString(line + "\n")
			line = "#"
		}
		line += " " + word
	}
	b.WriteString(line + "\n")
	return b.String()
}

// KeyTable is the README's table of keys, in Markdown.
func KeyTable() string {
	var b strings.Builder
	b.WriteString("| key | values | default | environment | what it does |\n| --- | --- | --- | --- | --- |\n")
	for i := range Keys {
		k := &Keys[i]
		variable, def := "", ""
		if v := k.Variable(); v != "" {
			variable = "`" + v + "`"
		}
		if k.Default != "" {
			def = "`" + k.Readable(k.Default) + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", k.Name, k.Describe(), def, variable, k.Doc)
	}
	return b.String()
}

// PlaceholderTable is the README's table of placeholders, in Markdown.
func PlaceholderTable() string {
	var b strings.Builder
	b.WriteString("| placeholder | stands for |\n| --- | --- |\n")
	for _, p := range Placeholders {
		fmt.Fprintf(&b, "| `%%%s` | %s |\n", string(p.Letter), p.Doc)
	}
	return b.String()
}

// ProviderTable is the README's table of providers, in Markdown.
func ProviderTable() string {
	var b strings.Builder
	b.WriteString("| provider | records | needs |\n| --- | --- | --- |\n")
	for _, p := range Providers {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", p.Name, p.Doc, strings.Join(p.Needs, ", "))
	}
	return b.String()
}
