package profiles

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of README.md anew")

// The README's tables are made from the tables in Go; `go test ./profiles -run README -update` writes them.
func TestREADMEHasTheTables(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for mark, table := range map[string]string{"keys": KeyTable(), "providers": ProviderTable(), "placeholders": PlaceholderTable()} {
		open, end := "<!-- "+mark+" -->\n", "<!-- /"+mark+" -->\n"
		head, rest, ok := strings.Cut(want, open)
		_, tail, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("README.md has no marks %s", mark)
		}
		want = head + open + table + end + tail
	}
	if want == string(text) {
		return
	}
	if *update {
		if err := os.WriteFile("README.md", []byte(want), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Error("README.md is behind the tables in Go; run: go test ./profiles -run README -update")
}
