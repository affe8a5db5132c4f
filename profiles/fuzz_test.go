package profiles

import (
	"strings"
	"testing"
)

// Whatever a profile file holds, reading it ends in values that pass the schema or in errors that name the file.
func FuzzParseFile(f *testing.F) {
	for _, name := range builtinNames() {
		text, _ := builtin.ReadFile(name + ".toml")
		f.Add(text)
	}
	f.Add([]byte("[[record]]\nchunk = 1\n"))
	f.Add([]byte("record.chunk = 0x10000\n[record]\n"))
	f.Add([]byte("mode.x = { a = [1, {b = 2}] }\n\"record\".\"budget\" = \"1MiB\"\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := parseFile("p", "/d/p.toml", text)
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				if line == "" {
					t.Errorf("empty line in %q", err)
				}
			}
			if !strings.HasPrefix(err.Error(), "/d/p.toml") {
				t.Errorf("%q does not name the file", err)
			}
			return
		}
		lines := strings.Count(string(text), "\n") + 1
		for name, v := range file.Values {
			again, err := findKey(name).Canonical(v.Text)
			if findKey(name).Kind == List && v.Text == "" {
				continue // an empty array has no spelling outside TOML
			}
			if err != nil || again != v.Text || v.Line < 1 || v.Line > lines {
				t.Errorf("%s = %q in line %d of %d: %q, %v", name, v.Text, v.Line, lines, again, err)
			}
		}
	})
}

// What ParseFlat takes can be written again and read back the same; nothing makes it panic.
func FuzzParseFlat(f *testing.F) {
	f.Add([]byte(flatExample))
	f.Add([]byte("sigmatrace.profile=1\n"))
	f.Add([]byte("sigmatrace.profile=1\na==\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		pairs, err := ParseFlat(text)
		if err != nil {
			return
		}
		var b strings.Builder
		b.WriteString("sigmatrace.profile=1\n")
		for key, value := range pairs {
			b.WriteString(key + "=" + value + "\n")
		}
		again, err := ParseFlat([]byte(b.String()))
		if err != nil || len(again) != len(pairs) {
			t.Fatalf("read back %d of %d pairs: %v", len(again), len(pairs), err)
		}
		for key, value := range pairs {
			if again[key] != value {
				t.Errorf("%s: %q became %q", key, value, again[key])
			}
		}
	})
}
