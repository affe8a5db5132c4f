package merge_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/sigmatrace/sigmatrace/merge"
)

func check(t testing.TB, what string, schema, document []byte) error {
	t.Helper()
	s, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatalf("schema of %s: %v", what, err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", s); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile("schema.json")
	if err != nil {
		t.Fatalf("schema of %s: %v", what, err)
	}
	d, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return compiled.Validate(d)
}

// validate checks the JSON of an account and a matrix against the committed schemas.
func validate(t testing.TB, info *merge.Info, matrix *merge.Matrix) {
	t.Helper()
	text, err := info.JSON()
	if err != nil {
		t.Fatal(err)
	}
	if err := check(t, "info", merge.InfoSchema, text); err != nil {
		t.Errorf("info: %v\n%s", err, text)
	}
	if text, err = matrix.JSON(nil); err != nil {
		t.Fatal(err)
	}
	if err := check(t, "matrix", merge.MatrixSchema, text); err != nil {
		t.Errorf("matrix: %v\n%s", err, text)
	}
}

// The schemas refuse what is not an account: a field that is missing, or of another type.
func TestSchemasRefuse(t *testing.T) {
	good, err := newRig(t).open(merge.Options{}).Info().JSON()
	if err != nil {
		t.Fatal(err)
	}
	if err := check(t, "info", merge.InfoSchema, good); err != nil {
		t.Fatalf("an empty run's account: %v", err)
	}
	for _, spoil := range []func(map[string]any){
		func(m map[string]any) { delete(m, "ranks") },
		func(m map[string]any) { m["version"] = 2 },
		func(m map[string]any) { m["completions"] = "many" },
	} {
		var v map[string]any
		if err := json.Unmarshal(good, &v); err != nil {
			t.Fatal(err)
		}
		spoil(v)
		text, _ := json.Marshal(v)
		if check(t, "info", merge.InfoSchema, text) == nil {
			t.Errorf("accepted %s", text)
		}
	}
}
