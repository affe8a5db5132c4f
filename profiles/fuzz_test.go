package profiles

import (
	"strconv"
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

// inRanges tells whether a list of ranges has a rank.
func inRanges(t *testing.T, list string, rank int64) bool {
	in := false
	for item := range strings.SplitSeq(list, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		first, last, isRange := strings.Cut(item, "-")
		if !isRange {
			last = first
		}
		a, err1 := strconv.ParseInt(strings.TrimSpace(first), 10, 64)
		b, err2 := strconv.ParseInt(strings.TrimSpace(last), 10, 64)
		if err1 != nil || err2 != nil {
			t.Fatalf("%q was taken: %v, %v", list, err1, err2)
		}
		in = in || a <= rank && rank <= b
	}
	return in
}

// A list of ranks that is taken means the same ranks in its canonical spelling, which is taken again and stays as it is.
func FuzzRanges(f *testing.F) {
	for _, s := range []string{"0-7,16", "3", "7-7, 2 - 4 ,0", "5-1", "1,,2", "-1", "9007199254740993", ""} {
		f.Add(s, int64(3))
	}
	f.Fuzz(func(t *testing.T, text string, rank int64) {
		canonical, err := canonicalRanges(text, "rank")
		if err != nil {
			return
		}
		again, err := canonicalRanges(canonical, "rank")
		if err != nil || again != canonical {
			t.Fatalf("%q became %q, then %q, %v", text, canonical, again, err)
		}
		if want := inRanges(t, text, rank); inRanges(t, canonical, rank) != want {
			t.Errorf("rank %d in %q is %v, in %q it is not so", rank, text, want, canonical)
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
