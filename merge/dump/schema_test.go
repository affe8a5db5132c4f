package dump

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

func lineSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	s, err := jsonschema.UnmarshalJSON(bytes.NewReader(LineSchema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("line.schema.json", s); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile("line.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

func valid(t *testing.T, s *jsonschema.Schema, line []byte) error {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return s.Validate(v)
}

// Every line, also of damage, is as the schema says; every value of a line that it asks for is needed and has its type.
func TestJSONLinesFollowTheSchema(t *testing.T) {
	s := lineSchema(t)
	_, path := sample(t)
	lines := dumped(t, path, Options{Chunk: -1, JSON: true})
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[4203] = 0x3b // slot 59 was never filled
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Dump(t.Context(), &out, path, Options{Chunk: -1, JSON: true}); err == nil {
		t.Error("no damage")
	}
	lines = append(lines, strings.Split(strings.TrimSpace(out.String()), "\n")...)
	seen := map[string]bool{}
	for _, line := range lines {
		if err := valid(t, s, []byte(line)); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatal(err)
		}
		kind := v["type"].(string)
		seen[kind] = true
		optional := map[string]bool{"size": true, "last": true, "earliest": true, "records": true, "crc": true}
		for name, value := range v {
			spoiled := map[string]any{}
			for k, x := range v {
				spoiled[k] = x
			}
			delete(spoiled, name)
			text, _ := json.Marshal(spoiled)
			if !optional[name] && valid(t, s, text) == nil {
				t.Errorf("accepted a line of type %s without %s: %s", kind, name, text)
			}
			spoiled[name] = []any{value}
			text, _ = json.Marshal(spoiled)
			if valid(t, s, text) == nil {
				t.Errorf("accepted another type of %s: %s", name, text)
			}
		}
	}
	for _, kind := range []string{"file", "error", "header", "process", "clock", "domain", "live", "lost", "chunk", "event", "definition", "aggregate"} {
		if !seen[kind] {
			t.Errorf("no line of type %s was tried", kind)
		}
	}
	if valid(t, s, []byte(`{"offset": 0, "type": "poem"}`)) == nil {
		t.Error("accepted a line of an unknown type")
	}
}
